"""Adaptive conformal intervals: the promise kept under change, and the mechanics by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fuels.errors import FuelsError
from fuels.experts.intervals import Bands, Constants, Intervals, from_format_4


def test_coverage_holds_while_the_spread_changes() -> None:
    rng = np.random.default_rng(0)
    spread = np.repeat([1.0, 4.0, 0.5], 300)
    truth = rng.standard_t(3, size=(40, 900)) * spread
    bands = Intervals(40, 24, (80, 95)).run(truth, np.zeros_like(truth), 0)
    for first, most in ((0, 2), (300, 2), (600, 4)):  # it takes longer to shrink than to grow
        part = slice(first, first + 300)
        window = Bands(bands.levels, bands.lower[:, :, part], bands.upper[:, :, part])
        assert np.abs(100 * window.coverage(truth[:, part]) - [80, 95]).max() < most


def test_coverage_is_right_at_every_time_of_the_period() -> None:
    """Errors whose size and shape depend on the time."""
    rng = np.random.default_rng(0)
    time = np.arange(24 * 60) % 24
    size = np.exp(2 * np.sin(2 * np.pi * time / 24))
    night = time < 6
    normal, skew = rng.normal(size=(2, 40, len(time)))
    truth = size * np.where(night, np.exp(skew) - 1, normal)
    bands = Intervals(40, 24, (80, 95)).run(truth, np.zeros_like(truth), 0)
    inside = (truth >= bands.lower) & (truth <= bands.upper)
    late = slice(24 * 20, None)
    for level, held in zip((80, 95), inside, strict=True):
        shares = [100 * held[:, late][:, time[late] == hour].mean() for hour in range(24)]
        assert np.abs(np.array(shares) - level).max() < 4


def test_skewed_errors_get_asymmetric_intervals() -> None:
    truth = np.random.default_rng(0).exponential(size=(20, 960)) - 1
    bands = Intervals(20, 24, (80,)).run(truth, np.zeros_like(truth), 0)
    late = slice(480, None)
    assert -bands.lower[0, :, late].mean() == pytest.approx(1 - 0.105, rel=0.1)  # the quantiles
    assert bands.upper[0, :, late].mean() == pytest.approx(2.303 - 1, rel=0.15)


def test_width_follows_the_level_of_the_forecast() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(10, 960))
    truth = points + rng.normal(size=points.shape) * np.exp(0.7 * points)
    bands = Intervals(10, 24, (80,)).run(truth, points, 0)
    width, late = (bands.upper - bands.lower)[0, :, 480:], points[:, 480:]
    assert width[late > 1].mean() > 2 * width[late < -1].mean()


def test_nothing_leaves_the_limits() -> None:
    rng = np.random.default_rng(0)
    truth = rng.poisson(0.8, size=(5, 600)).astype(float)
    limits = np.tile([0.0, 4.0], (5, 1))
    intervals = Intervals(5, 24, (80, 95), limits=limits)
    points = intervals.confined(rng.normal(0.8, 2.0, size=truth.shape))
    assert points.min() == 0 and points.max() == 4
    bands = intervals.run(truth, points, 0)
    ahead = intervals.next(points[:, -1], 600)
    for found in (bands, ahead):
        assert np.nanmin(found.lower) >= 0 and np.nanmax(found.upper) <= 4
        assert not (found.lower > found.upper).any()


def test_the_correction_returns_after_a_long_calm() -> None:
    """Values at a bound are always inside; without a limit the corrections would fall for ever."""
    truth = np.zeros((1, 24 * 200))
    intervals = Intervals(1, 24, (80,), limits=np.array([[0.0, np.inf]]))
    intervals.run(truth, truth, 0)
    assert intervals.state["correction"].min() == -Constants().most
    rng = np.random.default_rng(0)
    busy = rng.poisson(5, size=(1, 24 * 10)).astype(float)
    bands = intervals.run(busy, np.full_like(busy, 5), 0)
    held = (busy >= bands.lower[0]) & (busy <= bands.upper[0])
    assert 0.6 < held[:, 48:].mean() < 0.95


def test_a_state_of_older_versions_is_converted() -> None:
    rng = np.random.default_rng(0)
    clients, memory, slots, delay = 2, 240, 24, 2
    old = {
        "correction": np.array([[0.1, -0.2], [0.0, 0.3]]),
        "scores": np.abs(rng.normal(size=(clients, memory))),
        "seen": np.array([[500.0], [30.0]]),
        "slots": np.stack([np.full((clients, slots), 40.0), np.full((clients, slots), 10.0)], -1),
        "all": np.array([[400.0, 100.0], [400.0, 100.0]]),
        "queue": np.concatenate(
            [np.tile([1.0, 2.0, 3.0, 1.5], (clients, delay, 1)), np.ones((clients, delay, 2))], 2
        ),
        "steps": np.array([500.0]),
    }
    intervals = Intervals(clients, 24, (80, 95), delay)
    intervals.load(from_format_4(old))
    bands = intervals.next(np.zeros(clients), 5)
    # Usual error 2 as before; the quantile of the absolute scores in both tails.
    expected = 2 * np.exp(0.1) * np.quantile(old["scores"][0], 0.8)
    assert bands.upper[0, 0, 0] == pytest.approx(expected, rel=0.1)
    assert bands.lower[0, 0, 0] == pytest.approx(-expected, rel=0.1)
    np.testing.assert_array_equal(intervals.state["queue"][0, 0, 4:], [0, 2, 0, 2])


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
    # No score was negative yet, so 0 was below the interval [1, 5] and the correction is
    # rate x 0.8; the slots are too far apart for the other one to move. Scores are 2 and -1 / 2:
    # the ends count in both tails, because the value to come weighs as much as a score.
    usual = (0.99 * 2 + 1) / 1.99
    factor = np.exp(0.8 * Constants().rate) * (2 + usual) / 2
    assert following.upper[0, 0, 0] == pytest.approx(2 * factor)
    assert following.lower[0, 0, 0] == pytest.approx(-0.5 * factor)


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
    truth = np.random.default_rng(0).normal(size=(3, 600))
    points = np.zeros_like(truth)
    bands = Intervals(3, 24, (50, 80, 95)).run(truth, points, 0)
    late = (bands.upper - bands.lower)[:, :, 100:].mean(axis=(1, 2))
    assert late[0] < late[1] < late[2]
    large = Intervals(3, 24, (50, 80, 95)).run(1000 * truth, points, 0)
    # The very first score is in units of the data; once it has left the memory all is alike.
    np.testing.assert_allclose(large.upper[:, :, 520:], 1000 * bands.upper[:, :, 520:], rtol=0.3)


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
