"""The mean of the other clients."""

from __future__ import annotations

import numpy as np
import pytest

from fuels.errors import FuelsError
from fuels.sharing.live_mean import CLIP, ESTIMATED, LiveMean, estimated, exchange
from fuels.sharing.sums import LocalSums

NAN = np.nan


def live_mean(values: np.ndarray) -> LiveMean:
    """Of clients with values [client, step]."""
    parts = {str(i): row for i, row in enumerate(values)}
    found = exchange(LocalSums(2), parts, min_clients=2)
    assert found is not None
    return found


def test_a_client_sees_the_mean_of_the_others() -> None:
    values = np.array([[1.0, NAN], [2.0, 2.0], [3.0, 4.0]])
    others = live_mean(values).others(values)
    assert others.tolist() == [[2.5, 3.0], [2.0, 4.0], [1.5, 2.0]]


def test_a_newcomer_has_nothing_to_subtract() -> None:
    values = np.array([[1.0], [3.0]])
    others = live_mean(values).others(np.array([[9.0], [NAN]]), member=False)
    assert others.tolist() == [[2.0], [2.0]]


def test_values_are_clipped_before_they_are_added() -> None:
    values = np.array([[100.0], [0.0], [0.0]])
    others = live_mean(values).others(values)
    assert others.tolist() == [[0.0], [CLIP / 2], [CLIP / 2]]


def test_own_value_and_future_change_nothing() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(12, 40))
    before = live_mean(values).others(values)
    own = values.copy()
    own[3] = rng.normal(size=40)
    assert np.allclose(live_mean(own).others(own)[3], before[3], atol=1e-12)
    future = values.copy()
    future[:, 25:] = 3.0
    assert np.array_equal(live_mean(future).others(future)[:, :25], before[:, :25])


def test_too_few_values_or_an_impossible_mean_count_as_missing() -> None:
    values = np.array([[1.0, NAN, 1.0], [1.0, NAN, 1.0], [1.0, 2.0, 1.0], [1.0, NAN, 1.0]])
    found = live_mean(values)
    assert np.isnan(found.others(values)[0]).tolist() == [False, True, False]
    wrong = LiveMean(found.total * 1000, found.count, found.min_clients)
    assert np.isnan(wrong.others(values)).all()


def test_others_need_the_same_steps() -> None:
    with pytest.raises(FuelsError, match="the live mean has 2 steps, the clients' values 3"):
        live_mean(np.ones((2, 2))).others(np.ones((2, 3)))


def test_no_live_mean_of_too_few_clients() -> None:
    assert exchange(LocalSums(), {"a": np.ones(3)}) is None


def test_short_gaps_are_estimated_from_the_day_before() -> None:
    mean = np.array([[1.0, 2.0, 3.0, 1.5, NAN, NAN, NAN, NAN, 9.0, NAN]])
    found = estimated(mean, period=3)
    # A day before: 2, then 3, then 1.5; the last known mean was 0.5 above its day before.
    assert found[0, :7].tolist() == [1.0, 2.0, 3.0, 1.5, 2.5, 3.5, 2.0]
    assert ESTIMATED == 3 and np.isnan(found[0, 7])
    assert found[0, 8] == 9.0
    assert np.isnan(mean[0, 4])  # unchanged
    later = mean.copy()
    later[0, 8] = -1.0
    assert np.array_equal(estimated(later, 3)[:, :8], found[:, :8], equal_nan=True)
    assert np.isnan(estimated(mean[:, 3:], 3)[0, 1:4]).all()  # nothing is known of the day before


def test_gaps_are_those_of_each_client() -> None:
    mean = np.array([[1.0, 1.0, 1.0, NAN], [2.0, 2.0, NAN, NAN], [0.0, 4.0, 4.0, 4.0]])
    assert estimated(mean, 1).tolist() == [[1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0], [0, 4, 4, 4]]
    large = np.array([[CLIP, -CLIP, CLIP, NAN]])
    assert estimated(large, 1)[0, 3] == CLIP
