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
