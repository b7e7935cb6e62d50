"""Exact Gaussian noise on integers."""

from __future__ import annotations

import numpy as np
import pytest

from fuels.errors import FuelsError
from fuels.privacy import gaussian


def test_small_noise_has_the_probabilities_of_the_discrete_gaussian() -> None:
    drawn, sigma = gaussian.draw(2, 20_000), 2
    values = np.arange(-40, 41)
    weight = np.exp(-(values**2) / (2 * sigma**2))
    expected = weight / weight.sum()
    for value in range(-4, 5):
        share, probability = (drawn == value).mean(), expected[value + 40]
        assert abs(share - probability) < 5 * np.sqrt(probability / len(drawn))


def test_noise_has_the_standard_deviation_asked_for_and_never_repeats() -> None:
    first, second = (gaussian.draw(gaussian.FINE, 3000) for _ in range(2))
    assert first.std() == pytest.approx(gaussian.FINE, rel=0.07)
    assert abs(first.mean()) < 5 * gaussian.FINE / np.sqrt(len(first))
    assert (first == second).sum() < 3


def test_sites_that_do_not_collude_add_the_whole_noise() -> None:
    each = gaussian.share_of_noise(12.0, sites=5, colluding=1)
    assert 4 * each**2 == pytest.approx(12.0**2)
    with pytest.raises(FuelsError, match="5 sites cannot tolerate 5 colluding ones: at most 4"):
        gaussian.share_of_noise(12.0, sites=5, colluding=5)


def test_rounding_is_part_of_the_sensitivity() -> None:
    numbers, multiplier = 400, 1.5
    steps = gaussian.steps_of_noise(2.0, multiplier, numbers)
    rounding = np.sqrt(numbers)  # steps of the grid: half a step in each number of both neighbours
    assert steps / (gaussian.FINE + rounding) >= multiplier
    assert gaussian.grid(2.0) * gaussian.FINE == 2.0
