"""Every reference has a twin of the same name; both give the same results.

The twins that need more than a call are compared in test_gru_kernels (encode), test_loss_kernels
(local_losses), test_divergence_kernel (pairwise_jsd), training/test_step (descend, differentiate),
experts/test_regressions (those of regressions) and test_smoothing (choose_pace). Loops with one
source are compared with themselves as plain Python.
"""

from __future__ import annotations

import importlib
import inspect
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fuels.data.panel import Panel
from fuels.data.screening import Screen
from fuels.experts.intervals import Intervals
from fuels.experts.linear import fit_ridges, forecast_ridges
from fuels.experts.mixture import Mixture
from fuels.experts.shared import contributions, forecast_pooled
from fuels.kernels.screening import Constants
from fuels.kernels.smoothing import choose_pace, smooth_all
from fuels.kernels.telecom import sum_lines
from fuels.model.gru import encode
from fuels.model.optimiser import adam, proximal, sgd
from fuels.paper.divergence import pairwise_jsd
from fuels.paper.losses import local_losses
from fuels.training.step import descend, differentiate

REFERENCES = [
    adam, choose_pace, contributions, descend, differentiate, encode, fit_ridges, forecast_pooled,
    forecast_ridges, local_losses, pairwise_jsd, proximal, sgd,
]  # fmt: skip


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda function: function.__name__)
def test_a_twin_has_the_name_of_its_reference(reference: Callable[..., Any]) -> None:
    module, name = reference.__dict__["twin"].rsplit(".", 1)
    assert name == inspect.unwrap(reference).__name__
    assert callable(getattr(importlib.import_module(module), name))


def test_the_optimisers_have_the_defaults_of_their_references() -> None:
    from fuels.kernels.optimiser import STAGES

    for reference in (adam, sgd, proximal):
        wanted = inspect.signature(inspect.unwrap(reference)).parameters
        found = dict(inspect.signature(STAGES[reference.__name__]).parameters)
        found.pop("shared")
        assert {n: p.default for n, p in found.items()} == {n: p.default for n, p in wanted.items()}


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("rule", [adam, sgd, proximal], ids=lambda function: function.__name__)
def test_an_update_equals_its_reference(rule: Callable[..., None]) -> None:
    """Three steps of three clients, the second of which sits out."""
    draw = torch.Generator().manual_seed(7)
    start, anchor = (torch.randn(3, 37, generator=draw) for _ in range(2))
    gradients = [torch.randn(3, 37, generator=draw) for _ in range(3)]
    active = torch.tensor([True, False, True])
    left = []
    for function in (rule, inspect.unwrap(rule)):
        param, state = start.clone(), [torch.zeros(3, 37) for _ in range(2)]
        step = torch.zeros(3, dtype=torch.int64)
        settings: tuple[Any, ...] = {
            "adam": (*state, step, active, 0.01),
            "sgd": (state[0], active, 0.1, 0.9),
            "proximal": (anchor, 0.3),
        }[rule.__name__]
        moved = [gradient.clone() for gradient in gradients]
        for gradient in moved:
            function(param, gradient, *settings)
        left.append([param, *state, *moved, step])
        assert step.tolist() == ([3, 0, 3] if rule is adam else [0, 0, 0])
    for one, other in zip(*left, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def loops() -> list[np.ndarray]:
    """What the loops with one source give on drawn numbers."""
    rng = np.random.default_rng(3)
    truth = rng.normal(size=(2, 40))
    truth[0, 7] = np.nan
    forecasts = truth + rng.normal(size=(3, 2, 40))
    mixture = Mixture(2, ["a", "b", "c"], delay=2)
    past = mixture.run(truth, forecasts)
    intervals = Intervals(2, 6, delay=2)
    bands = intervals.run(truth, past.combined, 0)
    after = intervals.next(mixture.next(forecasts[:, :, -1])[0], 40)
    slot = np.arange(48) % 6
    grid = np.array([[0.1, 0.2, 0.5], [0.5, 0.1, 0.0]])
    best = choose_pace(truth, slot, 6, 2, 12, grid)
    smoothed = np.full((2, 44), np.nan)
    state = np.full((2, 8), np.nan)
    state[:, 1] = 0.0
    smooth_all(truth, slot, 2, grid[best], state, smoothed)
    screen = Screen.begin(2, 6, Constants(weeks=2.0))
    series = 10 + rng.normal(size=(60, 2))
    series[40], series[45:52, 1] = 1e4, 8.0
    panel = Panel(series, ("a", "b"), np.datetime64("2024-01-01", "s"), np.timedelta64(4, "h"))
    screened = screen.check(panel, whole_from=0)
    text = np.frombuffer(b"1\t0\t39\t0.5\t1e-2\t\t2\t7.25\n0\t3600000\t\t\t\t\t\t1\n", np.uint8)
    sums, seen = np.zeros((2, 2, 2)), np.zeros((2, 2), np.uint8)
    slots, span = np.array([0, 1, 0, 0, 1]), np.array([10**15, 0])
    status = sum_lines(text, 0, len(text), 0, 3_600_000, 0, slots, sums, seen, span)
    return [
        past.combined, past.weights, bands.lower, bands.upper, after.upper, best.astype(float),
        smoothed, state, screened.score, screened.low, screened.code.astype(float),
        *screen.arrays().values(),
        sums, seen.astype(float), span.astype(float), np.array(status, dtype=float),
    ]  # fmt: skip


CHILD = """
import sys, numpy as np, test_twins
np.save(sys.stdout.buffer, np.concatenate([part.ravel() for part in test_twins.loops()]))
"""


def test_loops_equal_themselves_without_the_compiler() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        cwd=Path(__file__).parent,
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    plain = np.load(io.BytesIO(done.stdout))
    compiled = np.concatenate([part.ravel() for part in loops()])
    assert np.isfinite(compiled).sum() > 300
    np.testing.assert_allclose(compiled, plain, rtol=1e-9, atol=1e-12)
