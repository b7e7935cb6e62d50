"""Coverage by time and client, and the pinball loss, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fuels.evaluation.coverage import interval_scores, pinball, restricted
from fuels.experts.intervals import Bands

NAN = float("nan")


def bands_of(lower: list[list[float]], upper: list[list[float]]) -> Bands:
    return Bands((80.0,), np.array([lower]), np.array([upper]))


def test_coverage_by_phase_and_client() -> None:
    truth = np.array([[0.0, 5.0, 0.0, NAN], [0.0, 0.0, 9.0, 0.0], [NAN] * 4])
    bands = bands_of([[-1] * 4, [-1] * 4, [-1] * 4], [[1] * 4, [1, 1, 1, NAN], [1] * 4])
    bands = restricted(bands, ~np.isnan(bands.upper[0]))
    scores = interval_scores(bands, truth, first=3, period=2)  # phases 1, 0, 1, 0
    np.testing.assert_allclose(scores.by_client, [[2 / 3, 2 / 3, NAN]])
    np.testing.assert_allclose(scores.by_phase, [[1 / 2, 3 / 4]])
    assert scores.coverage == pytest.approx([2 / 3]) and scores.width == pytest.approx([2.0])
    found = scores.summary()["80"]
    assert found["by_phase"] == pytest.approx([1 / 2, 3 / 4])
    assert found["by_client"]["lowest"] == found["by_client"]["highest"] == pytest.approx(2 / 3)
    frame = scores.frame(("a", "b", "c"))
    assert frame.columns == ["client", "inside-80"] and frame["inside-80"][2] is None


def test_a_zero_is_inside_an_interval_that_begins_or_ends_at_zero() -> None:
    """However zero is rounded on the scale of a client."""
    mean, std = np.random.default_rng(0).uniform(1, 9, (2, 50))
    zero = (0.0 - mean[:, None]) / std[:, None]
    truth = zero.astype(np.float32)  # as in a dataset
    assert (truth < zero).any() and (truth > zero).any()
    bands = Bands((80.0, 95.0), np.stack([zero, zero - 1]), np.stack([zero + 1, zero]))
    assert (interval_scores(bands, truth.astype(np.float64), 0, 1).by_client == 1).all()


def test_pinball_loss_by_hand() -> None:
    truth = np.array([[0.0, 3.0, -3.0, NAN]])
    bands = bands_of([[-1] * 4], [[1] * 4])
    # Quantiles 10 and 90 %: inside 0.1 x 1 each; 2 outside: 0.9 x 2 and 0.1 x 4.
    expected = np.mean([0.1, (0.9 * 2 + 0.1 * 4) / 2, (0.9 * 2 + 0.1 * 4) / 2])
    assert pinball(bands, truth) == pytest.approx(expected)
    assert np.isnan(pinball(bands, np.full((1, 4), NAN)))


def test_the_true_quantiles_have_the_least_pinball_loss() -> None:
    truth = np.random.default_rng(0).exponential(size=(1, 20000))
    ones = np.ones((1, 1, truth.shape[1]))
    loss = {
        factor: pinball(Bands((80.0,), factor * 0.1054 * ones, factor * 2.3026 * ones), truth)
        for factor in (0.8, 1.0, 1.25)
    }
    assert min(loss, key=lambda factor: loss[factor]) == 1.0
