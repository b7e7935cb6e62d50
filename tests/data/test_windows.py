"""Windows, split and scale against numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fuels.data.panel import Panel
from fuels.data.sample import Sample, paper_branches
from fuels.data.windows import draw_clients, panel_calendar, prepare, split_periods
from fuels.errors import FuelsError
from helpers.panels import make_panel


def paper_sample(period: int = 24, closeness: int = 3, periodicity: int = 3) -> Sample:
    return Sample(paper_branches(period, closeness, periodicity), period)


def counting_panel(steps: int = 40, start: str = "2024-01-01", period: int = 4) -> Panel:
    """One client that counts 0, 1, 2, ...; six hours a step, so a period of 4 is a day."""
    return Panel(
        values=np.arange(steps, dtype=np.float64)[:, None],
        ids=("a",),
        start=np.datetime64(start, "s"),
        step=np.timedelta64(86400 // period, "s"),
    )


def test_lags_are_oldest_first() -> None:
    assert paper_branches(24, 3, 3) == ((3, 2, 1), (72, 48, 24))
    assert paper_branches(24, 1, 2) == ((1,), (48, 24))


def test_windows_by_hand() -> None:
    data = prepare(counting_panel(), paper_sample(4, 3, 2), split="6/2/2")
    assert (data.split.train, data.split.val, data.split.test) == (24, 32, 40)
    # The training part is 0..23: mean 11.5, variance (24^2 - 1) / 12.
    assert data.mean[0] == pytest.approx(11.5)
    assert data.std[0] == pytest.approx(np.sqrt((24**2 - 1) / 12))
    window = data.inputs(np.array([0]), 10, 11)[0, 0] * data.std[0] + data.mean[0]
    np.testing.assert_allclose(window, [7, 8, 9, 2, 6], rtol=1e-5)  # closeness, then k-2p, k-p
    assert not data.window[0, :8].any() and data.window[0, 8:].all()
    np.testing.assert_allclose(data.values("test")[0], np.arange(32, 40), rtol=1e-6)


def test_paper_has_37_training_periods() -> None:
    data = prepare(make_panel(clients=2, days=62), paper_sample())
    assert data.target[:, : data.split.train].sum(axis=1).tolist() == [888, 888]
    assert (data.split.train, data.split.val, data.split.test) == (960, 1224, 1488)


def test_a_start_in_mid_period_is_aligned() -> None:
    data = prepare(counting_panel(start="2024-01-01T12:00"), paper_sample(4, 1, 1), split="6/2/2")
    assert data.offset == 2
    assert data.split.train == 24  # six days of the calendar, the first of them half
    assert data.mean[0] == pytest.approx(np.arange(22).mean())
    assert data.times("test")[0] == np.datetime64("2024-01-09T00:00")


@pytest.mark.parametrize(
    ("periods", "expected"), [(62, (40, 11, 11)), (31, (19, 6, 6)), (9, (5, 2, 2))]
)
def test_default_split_is_in_proportion(periods: int, expected: tuple[int, int, int]) -> None:
    assert split_periods("", periods) == expected


@pytest.mark.parametrize("text", ["40/11", "a/b/c", "0/1/1", "5/-1/2", "50/10/10"])
def test_bad_splits_are_refused(text: str) -> None:
    with pytest.raises(FuelsError, match=r"windows\.split"):
        split_periods(text, 62)


@pytest.mark.parametrize(
    ("days", "split", "message"),
    [
        (5, "", "the data span 120 steps, 5.0 days; training needs at least 6, 3 for the windows"),
        (6, "", "--split 6/0/1, or train without a test: --split 6/0/0"),
        (9, "", "the split leaves 5 of 9 days for training; .* --split 6/1/2"),
        (14, "4/1/1", "the split leaves 4 of 14 days for training; .* --split 10/2/2"),
        (9, "5/2/2", "the split leaves 5 of 9 days for training; .* --split 6/1/2"),
    ],
)
def test_too_few_periods_are_refused(days: int, split: str, message: str) -> None:
    with pytest.raises(FuelsError, match=message):
        prepare(make_panel(days=days), paper_sample(), split=split)


def test_periods_that_are_no_days_are_called_periods() -> None:
    half = Sample(paper_branches(12, 3, 3), 12)
    with pytest.raises(FuelsError, match=r"the data span 48 steps, 4\.0 periods of 12 steps"):
        prepare(make_panel(days=2), half)


def test_clients_are_drawn_as_numpy_draws() -> None:
    ids = [f"{i:03d}" for i in range(50)]
    expected = np.random.default_rng(7).choice(np.array(ids), size=10, replace=False)
    assert draw_clients(ids, 10, 7) == sorted(expected)
    with pytest.raises(FuelsError, match="only 50"):
        draw_clients(ids, 51, 0)


def test_future_changes_nothing_in_training() -> None:
    """Statistics, filling and windows of the training part do not see what comes later."""
    panel = make_panel(days=20)
    panel.values[100:103, 1] = np.nan
    changed = panel.values.copy()
    changed[12 * 24 :] = 1000 - changed[12 * 24 :]
    sample = paper_sample()
    one = prepare(panel, sample, split="12/4/4")
    other = prepare(replace(panel, values=changed), sample, split="12/4/4")
    end = one.split.train
    np.testing.assert_array_equal(one.series[:, :end], other.series[:, :end])
    np.testing.assert_array_equal(one.mean, other.mean)
    np.testing.assert_array_equal(one.target[:, :end], other.target[:, :end])


def test_filled_values_are_never_targets() -> None:
    panel = make_panel(days=20)
    panel.values[100:103, 1] = np.nan
    panel.values[-30, 2] = np.nan
    data = prepare(panel, paper_sample(), split="12/4/4")
    assert data.filled == 4
    assert not data.target[1, 100:103].any()
    assert data.window[1, 103:106].all()  # but they serve as inputs
    assert np.isnan(data.values("test")[2]).sum() == 1


def test_dead_clients_are_named() -> None:
    panel = make_panel(clients=3, days=20)
    panel.values[:, 1] = 5.0
    data = prepare(panel, paper_sample())
    assert data.ids == ("c0", "c2")
    assert "constant" in data.left_out["c1"]


def test_order_of_clients_does_not_matter() -> None:
    panel = make_panel(clients=4, days=12)
    shuffled = panel.take([2, 0, 3, 1])
    sample = paper_sample()
    one, other = prepare(panel, sample), prepare(shuffled, sample)
    assert one.ids == other.ids
    np.testing.assert_array_equal(one.series, other.series)


def test_data_that_end_in_mid_period() -> None:
    """A final incomplete period may belong to any part, also to training."""
    panel = make_panel(days=12)
    short = replace(panel, values=panel.values[:-5])
    sample = paper_sample()
    for split, bounds in (("12/0/0", (288, 288, 288)), ("9/3/0", (216, 283, 283))):
        data = prepare(short, sample, split=split)
        assert (data.split.train, data.split.val, data.split.test) == bounds
        assert data.target[0].sum() == 283 - 72
        assert not data.window[:, 283:].any()


def test_clients_whose_gaps_cannot_be_filled_are_left_out_by_name() -> None:
    panel = make_panel(clients=3, days=40)
    hours = np.arange(panel.length)
    panel.values[(hours // 24) % 3 != 0, 1] = np.nan  # reports every third day only
    data = prepare(panel, paper_sample())
    assert data.ids == ("c0", "c2") and "gaps are too long" in data.left_out["c1"]


def test_the_mask_of_validation_does_not_reach_training() -> None:
    """Whether a gap at the end of training is filled does not depend on what is observed later."""
    panel = make_panel(days=20)
    panel.values[12 * 24 - 10 : 12 * 24, 1] = np.nan
    later = panel.values.copy()
    later[12 * 24 : 12 * 24 + 40, 1] = np.nan
    sample = paper_sample()
    one = prepare(panel, sample, split="12/4/4")
    other = prepare(replace(panel, values=later), sample, split="12/4/4")
    end = one.split.train
    np.testing.assert_array_equal(one.series[:, :end], other.series[:, :end])
    np.testing.assert_array_equal(one.window[:, :end], other.window[:, :end])


def test_a_horizon_beyond_training_is_refused() -> None:
    """Six periods of 4 steps, two of them for the windows: the last value is the 16th ahead."""
    sample = paper_sample(4, 3, 2)
    data = prepare(counting_panel(), replace(sample, horizon=16), split="6/2/2")
    assert data.target[0, 8] and data.observed[0, 8 + 15] and data.split.train == 8 + 16
    with pytest.raises(FuelsError, match=r"windows\.horizon is 17, .* it can be at most 16"):
        prepare(counting_panel(), replace(sample, horizon=17), split="6/2/2")


def test_clients_that_hardly_change_in_a_part() -> None:
    panel = make_panel(clients=4, days=12)
    panel.values[9 * 24 :, 1] = 5.0
    panel.values[9 * 24 :, 2] = np.nan
    panel.values[10 * 24, 1] = np.nan
    data = prepare(panel, paper_sample(), split="7/2/3")
    assert data.nearly_constant("test") == ["c1"] and data.nearly_constant("val") == []
    assert prepare(panel, paper_sample(), split="7/2/0").nearly_constant("test") == []


def test_the_calendar_reaches_years_beyond_the_data() -> None:
    calendar = panel_calendar(make_panel(start="2013-11-01"), ("IT",))
    weekdays = ["2013-12-25", "2015-12-25", "2023-12-25", "2023-12-27"]  # the last: a Wednesday
    free = calendar.free(np.array(weekdays, dtype="datetime64[s]"))
    np.testing.assert_array_equal(free, [True, True, True, False])
