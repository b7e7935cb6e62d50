"""Sums over clients, computed in this process."""

from __future__ import annotations

import numpy as np
import pytest

from fuels.errors import FuelsError
from fuels.sharing.sums import LocalSums


def test_total_adds_up_and_counts_the_numbers_of_one_client() -> None:
    carrier = LocalSums(min_clients=2)
    total = carrier.total("a", 0, {"x": np.array([1.0, 2.0]), "y": np.array([10.0, 20.0])})
    assert total is not None and total.tolist() == [11.0, 22.0]
    carrier.total("a", 1, {"x": np.ones(3), "y": np.ones(3)})
    assert carrier.sent == {"a": 5} and carrier.received == {"a": 5}


def test_no_sum_over_too_few_clients() -> None:
    carrier = LocalSums()
    nine = {str(i): np.ones(1) for i in range(9)}
    assert carrier.total("a", 0, nine) is None and carrier.sent == {}
    assert carrier.total("a", 0, nine | {"9": np.ones(1)}) == np.array([10.0])


@pytest.mark.parametrize("bad", [np.ones(3), np.array([1.0, np.nan])])
def test_contributions_must_match_and_be_finite(bad: np.ndarray) -> None:
    with pytest.raises(FuelsError, match="the contribution of y"):
        LocalSums(2).total("live mean", 7, {"x": np.ones(2), "y": bad})


def test_noise_depends_on_seed_and_name_and_not_on_later_steps() -> None:
    def total(steps: int, seed: int = 0, name: str = "live mean", noise: float = 4.0) -> np.ndarray:
        parts = {client: np.ones((steps, 2)) for client in "ab"}
        found = LocalSums(2, noise, seed).total(name, 0, parts)
        assert found is not None
        return found

    long = total(4000)
    assert abs(long.mean() - 2) < 0.2 and abs(long.std() - 4) < 0.2
    np.testing.assert_array_equal(total(30), long[:30])
    assert not np.array_equal(total(30, seed=1), long[:30])
    assert not np.array_equal(total(30, name="other"), long[:30])
    assert (total(3, noise=0.0) == 2).all()
