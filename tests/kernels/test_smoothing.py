"""The paces of exponential smoothing, all at once in registers and one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from fuels.experts.smoothing import GRID
from fuels.kernels.smoothing import choose_pace


@pytest.mark.parametrize("horizon", [1, 5, 24])
@pytest.mark.parametrize("paces", [1, 7, len(GRID)])
def test_the_twin_chooses_the_same_paces(horizon: int, paces: int) -> None:
    rng = np.random.default_rng(horizon)
    slot = np.arange(300) % 24 + 24 * (np.arange(300) // 24 % 7 > 4)
    y = rng.normal(size=(12, 300)).cumsum(axis=1) + 5 * np.sin(np.arange(300) * np.pi / 12)
    y[rng.random(y.shape) < 0.05] = np.nan
    y[0, :60], y[1], y[2], y[3, 100:] = np.nan, np.nan, 4.0, np.nan
    chosen = [
        choose(y, slot, 48, horizon, 100, GRID[:paces])
        for choose in (choose_pace, choose_pace.__dict__["__wrapped__"])
    ]
    np.testing.assert_array_equal(*chosen)
    assert len(set(chosen[0])) > (paces > 1)
