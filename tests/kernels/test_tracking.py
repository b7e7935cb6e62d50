"""The twins of the tracking learner equal its plain loops to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from fuels.kernels import tracking, tracking_simd


@pytest.mark.parametrize("experts", [1, 2, 7, 8, 9, 17, 40])
def test_weights_and_products_equal_the_plain_loops(experts: int) -> None:
    rng = np.random.default_rng(experts)
    states = [
        (np.zeros((experts, experts)), np.zeros(1), np.full(experts, 1.0 / experts))
        for _ in range(2)
    ]
    for step in range(60):
        forecasts = rng.normal(size=experts) * 10.0 ** rng.integers(-3, 4)
        forecasts[rng.random(experts) < 0.2] = np.nan
        forecasts[: step % 3] = 1.0  # equal experts
        said, truth = 0.5, 0.0 if step % 10 == 0 else float(rng.normal())
        for twin, (moments, count, weights) in zip((tracking, tracking_simd), states, strict=True):
            pulls = (0.3, 10.0)
            twin.best_lately(forecasts, said, truth, moments, count, weights, 0.97, pulls)
        for plain, fast in zip(*states, strict=True):
            assert plain.tobytes() == fast.tobytes()
    assert states[1][2].min() >= 0.0
    assert states[1][2].sum() == pytest.approx(1.0)


def test_the_last_row_is_not_read_or_written_beyond_its_end() -> None:
    room = np.full((2, 9, 9), 7.0)
    room[0] = 0.0
    for _ in range(3):
        forecasts, weights = np.arange(9.0), np.full(9, 1 / 9)
        tracking_simd.best_lately(
            forecasts, 4.0, 1.0, room[0], np.zeros(1), weights, 0.9, (0.3, 10.0)
        )
    assert (room[1] == 7.0).all()


def test_forecasts_that_are_not_finite_harm_nobody_else() -> None:
    weights, moments = np.full(9, 1 / 9), np.full((9, 9), np.nan)
    tracking_simd.best_lately(
        np.arange(9.0), 4.0, 1.0, moments, np.zeros(1), weights, 0.9, (0.3, 10.0)
    )
    assert np.isnan(moments).all()


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 15, 34])
def test_the_median_is_that_of_numpy(count: int) -> None:
    rng = np.random.default_rng(count)
    for _ in range(50):
        values = rng.normal(size=count).round(1)  # with ties
        values[rng.random(count) < 0.3] = np.nan
        if not np.isnan(values).all():
            assert tracking_simd.median(values) == np.nanmedian(values) == tracking.median(values)
    assert np.isnan(tracking_simd.median(np.full(count, np.nan)))
