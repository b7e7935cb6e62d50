"""Numbers as integers modulo 2^64: rounding, bounds, and totals that do not depend on the order."""

from __future__ import annotations

import numpy as np
import pytest

from fuels.errors import FuelsError
from fuels.sharing.fixed_point import LARGEST, from_words, to_words


def test_rounding_is_at_most_half_a_unit_for_each_contribution() -> None:
    parts = [np.random.default_rng(i).normal(0, 1000, 500) for i in range(9)]
    found = from_words(to_words(parts, 3, "a sum"))
    assert np.abs(found - np.sum(parts, axis=0)).max() <= 9 * 2.0**-33 + 1e-11
    assert from_words(to_words([np.array([-1.5, 0.0, 2.0])], 3, "a sum")).tolist() == [-1.5, 0, 2]


def test_a_total_does_not_depend_on_how_clients_are_divided_over_sites() -> None:
    parts = [np.random.default_rng(i).normal(0, 1e5, 50) for i in range(12)]
    whole = to_words(parts, 3, "a sum")
    split = to_words(parts[:2], 3, "a") + to_words(parts[2:5], 3, "b") + to_words(parts[5:], 3, "c")
    np.testing.assert_array_equal(whole, split)


def test_a_total_cannot_wrap_around() -> None:
    most = np.array([LARGEST / 4, -LARGEST / 4])
    total = sum(to_words([most], 4, "a sum") for _ in range(4))
    assert from_words(total).tolist() == [LARGEST, -LARGEST]  # type: ignore[arg-type]
    with pytest.raises(FuelsError, match=r"exceeds 2\.68435e\+08, the most that each of 4 sites"):
        to_words([most, np.array([0.0, 1.0])], 4, "a sum")
    with pytest.raises(FuelsError, match="could wrap around"):
        to_words([np.array([1e300])], 3, "a sum")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_must_be_finite(bad: float) -> None:
    with pytest.raises(FuelsError, match="a sum: a contribution is not finite"):
        to_words([np.array([1.0, bad])], 3, "a sum")
    with pytest.raises(FuelsError, match="nothing to add up"):
        to_words([], 3, "a sum")
