"""Adaptive conformal intervals: the promise kept under change, and the mechanics by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fuels.errors import FuelsError
from fuels.experts.intervals import Bands, Constants, Intervals


def test_coverage_holds_while_the_spread_changes() -> None:
    rng = np.random.default_rng(0)
    spread = np.repeat([1.0, 4.0, 0.5], 300)
    truth = rng.standard_t(3, size=(40, 900)) * spread
    bands = Intervals(40, 24, (80, 95)).run(truth, np.zeros_like(truth), 0)
    for first in (100, 300, 600):
        part = slice(first, first + 300)
        window = Bands(bands.levels, bands.lower[:, :, part], bands.upper[:, :, part])
        assert np.abs(100 * window.coverage(truth[:, part]) - [80, 95]).max() < 2


def test_quiet_times_of_the_period_get_narrow_intervals() -> None:
    rng = np.random.default_rng(0)
    busy = np.arange(960) % 24 >= 12
    truth = rng.normal(size=(10, 960)) * np.where(busy, 3.0, 0.3)
    bands = Intervals(10, 24, (80,)).run(truth, np.zeros_like(truth), 0)
    width = (bands.upper - bands.lower)[0, :, 480:]
    assert width[:, busy[480:]].mean() > 3 * width[:, ~busy[480:]].mean()


def test_constants_can_be_given() -> None:
    truth = np.random.default_rng(1).normal(size=(2, 60))
    usual = Intervals(2, 4, (80,)).run(truth, np.zeros_like(truth), 0)
    same = Intervals(2, 4, (80,), constants=Constants()).run(truth, np.zeros_like(truth), 0)
    np.testing.assert_array_equal(usual.upper, same.upper)
    other = Intervals(2, 4, (80,), constants=Constants(rate=0.5)).run(truth, truth * 0, 0)
    assert (other.upper[:, :, 10:] != usual.upper[:, :, 10:]).any()


def test_first_steps_by_hand() -> None:
    intervals = Intervals(1, 2, (80,))
    truth = np.array([[3.0, 0.0]])
    bands = intervals.run(truth, np.array([[1.0, 1.0]]), 0)
    assert np.isnan(bands.lower[0, 0, 0])  # nothing is known before the first truth
    # The first error is 2 with usual error 1: score 2. Then the usual error of the other slot is
    # that of all, 2: radius 2 x 2, no correction yet.
    assert bands.upper[0, 0, 1] == pytest.approx(1 + 4)
    following = intervals.next(np.array([0.0]), 2)
    # |0 - 1| was inside, so the correction is -rate x 0.2; scores are 2 and 1 / 2; the rank
    # ceil(0.8 x 3) = 3 is more than there are, so the largest counts.
    usual = (0.99 * 4 + 1) / 1.99
    expected = 2 * np.exp(-0.2 * Constants().rate) * np.sqrt((4 + usual) / 2)
    assert following.upper[0, 0, 0] == pytest.approx(expected)


@pytest.mark.parametrize("delay", [1, 4])
def test_truth_counts_only_after_its_delay(delay: int) -> None:
    truth = np.random.default_rng(0).normal(size=(3, 100))
    changed = truth.copy()
    changed[:, 60:] *= 5
    points = np.zeros_like(truth)
    one = Intervals(3, 24, delay=delay).run(truth, points, 0)
    two = Intervals(3, 24, delay=delay).run(changed, points, 0)
    same = slice(0, 60 + delay)
    np.testing.assert_array_equal(one.upper[:, :, same], two.upper[:, :, same])
    assert not np.allclose(one.upper[:, :, 60 + delay :], two.upper[:, :, 60 + delay :])


def test_missing_truth_and_missing_forecasts_are_skipped() -> None:
    rng = np.random.default_rng(0)
    truth, points = rng.normal(size=(2, 200)), np.zeros((2, 200))
    truth[0, 50:60], points[1, 70:80] = np.nan, np.nan
    bands = Intervals(2, 24).run(truth, points, 0)
    assert not np.isnan(bands.upper[:, 0, 1:]).any()
    assert np.isnan(bands.upper[:, 1, 70:80]).all()
    assert not np.isnan(bands.upper[:, 1, 80:]).any()
    assert bands.coverage(truth).shape == (2,)


def test_levels_are_nested_and_scale_with_the_data() -> None:
    truth = np.random.default_rng(0).normal(size=(3, 300))
    points = np.zeros_like(truth)
    bands = Intervals(3, 24, (50, 80, 95)).run(truth, points, 0)
    late = (bands.upper - bands.lower)[:, :, 100:].mean(axis=(1, 2))
    assert late[0] < late[1] < late[2]
    large = Intervals(3, 24, (50, 80, 95)).run(1000 * truth, points, 0)
    # The very first score is in units of the data; once it has left the memory all is alike.
    np.testing.assert_allclose(large.upper[:, :, 250:], 1000 * bands.upper[:, :, 250:], rtol=0.3)


def test_state_goes_on_where_it_stopped() -> None:
    truth = np.random.default_rng(0).normal(size=(3, 100))
    points = 0.1 * truth
    whole = Intervals(3, 24, delay=2).run(truth, points, 7)
    first, second = Intervals(3, 24, delay=2), Intervals(3, 24, delay=2)
    first.run(truth[:, :41], points[:, :41], 7)
    second.load(first.arrays())
    rest = second.run(truth[:, 41:], points[:, 41:], 48)
    np.testing.assert_array_equal(rest.upper, whole.upper[:, :, 41:])


def test_refusals() -> None:
    for levels in ((), (0,), (100,), (80, 101)):
        with pytest.raises(FuelsError, match="between 0 and 100"):
            Intervals(2, 24, levels)
    intervals = Intervals(2, 24)
    with pytest.raises(FuelsError, match="2 clients"):
        intervals.run(np.zeros((3, 4)), np.zeros((3, 4)), 0)
    with pytest.raises(FuelsError, match="does not fit"):
        intervals.run(np.zeros((2, 5)), np.zeros((2, 4)), 0)
    with pytest.raises(FuelsError, match="train again"):
        intervals.load(Intervals(2, 24, (80,)).arrays())


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [("queue", (1, 0, 2), 1e12), ("queue", (0, 0, 2), -1), ("seen", (1, 0), -1), ("steps", 0, -1)],
)
def test_a_damaged_state_is_refused(name: str, place: int | tuple[int, ...], value: float) -> None:
    """Compiled code finds its place by these numbers and would write anywhere."""
    intervals = Intervals(2, 24)
    intervals.run(np.ones((2, 30)), np.zeros((2, 30)), 0)
    state = intervals.arrays()
    intervals.load(state)
    state[name][place] = value
    with pytest.raises(FuelsError, match="damaged, so train again"):
        intervals.load(state)


def test_what_lies_in_a_narrow_interval_lies_in_a_wide_one() -> None:
    """Where all errors are equal only the corrections differ, which go up and down apart."""
    truth = np.ones((1, 400))
    bands = Intervals(1, 24, (95, 50, 80)).run(truth, np.zeros_like(truth), 0)  # in any order
    known = ~np.isnan(bands.upper[0])
    wide, narrow, middle = (bands.upper[i][known] for i in range(3))
    assert (narrow <= middle).all() and (middle <= wide).all()
    assert (narrow < middle).any() and (middle < wide).any()
