"""The live mean that a site has received from a federation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fuels.errors import FuelsError
from fuels.sharing.live_mean import LiveMean, contribution
from fuels.sharing.received import FILE, ReceivedMean

HOUR, START = np.timedelta64(3600, "s"), np.datetime64("2024-01-01T00:00:00", "s")
NAN = np.nan


def received(values: np.ndarray) -> ReceivedMean:
    """All clients [client, step] contributed; the first two belong to this site."""
    found = ReceivedMean.begin(("a", "b"), START, HOUR)
    for step in range(values.shape[1]):
        parts = contribution(values[:, step])
        time = START + step * HOUR
        found = found.contributed(time, np.where(parts[:2, 1] > 0, parts[:2, 0], NAN))
        found = found.with_sums(time, parts[:, :1].sum(axis=0), parts[:, 1:].sum(axis=0))
    return found


def test_the_mean_is_that_of_the_others() -> None:
    values = np.array([[1.0, NAN, 9.0], [2.0, 2.0, -1.0], [3.0, 4.0, 0.5]])
    parts = contribution(values).sum(axis=0)
    expected = LiveMean(parts[:, 0], parts[:, 1], 2).others(values)
    found = received(values).seen(("a", "b"), START, 3, min_clients=2)
    assert np.array_equal(found, expected[:2], equal_nan=True)
    # A newcomer has contributed nothing.
    assert received(values).seen(("new",), START, 3, 2).tolist() == [[2.0, 3.0, 3.5 / 3]]


def test_steps_without_a_sum_and_outside_the_series_have_no_mean() -> None:
    found = received(np.ones((3, 2)))
    later = found.with_sums(START + 4 * HOUR, np.array([4.0]), np.array([4.0]))
    assert later.length == 5
    seen = later.seen(("new",), START - HOUR, 8, min_clients=2)
    assert np.array_equal(seen, [[NAN, 1, 1, NAN, NAN, 1, NAN, NAN]], equal_nan=True)
    assert np.isnan(later.seen(("new",), START, 5, min_clients=4)[0, :2]).all()


def test_a_revised_value_is_subtracted_as_it_was_contributed() -> None:
    found = received(np.array([[1.0], [2.0], [4.0]]))
    assert found.seen(("a",), START, 1, 2).tolist() == [[3.0]]
    assert found.contributed(START + HOUR, np.array([3.0, NAN])).own[:, 0].tolist() == [1.0, 2.0]


def test_sums_that_are_known_stay() -> None:
    found = received(np.ones((3, 2)))
    again = found.with_sums(START, np.array([7.0, 7.0, 7.0]), np.array([7.0, 7.0, 7.0]))
    assert again.total.tolist() == [3.0, 3.0, 7.0]
    assert again.count.tolist() == [3.0, 3.0, 7.0]
    earlier = found.with_sums(START - HOUR, np.array([7.0]), np.array([7.0]))
    assert earlier.total.tolist() == [7.0, 3.0, 3.0]
    assert earlier.start == START - HOUR


def test_only_the_newest_steps_are_kept() -> None:
    found = received(np.ones((3, 5))).newest(2)
    assert found.start == START + 3 * HOUR
    assert found.length == 2
    assert found.own.shape == (2, 2)


def test_a_series_on_disk(tmp_path: Path) -> None:
    found = received(np.array([[1.0, NAN], [2.0, 2.0], [3.0, 4.0]]))
    found.save(tmp_path / FILE)
    loaded = ReceivedMean.load(tmp_path / FILE)
    assert np.array_equal(loaded.seen(("a", "b"), START, 2, 2), found.seen(("a", "b"), START, 2, 2))
    content = bytearray((tmp_path / FILE).read_bytes())
    content[-1] ^= 1
    (tmp_path / FILE).write_bytes(bytes(content))
    with pytest.raises(FuelsError, match="live-mean"):
        ReceivedMean.load(tmp_path / FILE)
    with pytest.raises(FuelsError, match="different times"):
        found.seen(("a",), START + np.timedelta64(1800, "s"), 2)
