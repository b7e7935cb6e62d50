"""The panel's clock: steps, spans, resampling, daylight saving."""

from datetime import date, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuels.data.clock import format_moment, format_step, parse_moment, parse_step
from fuels.data.panel import Panel, sort_ids
from fuels.errors import FuelsError

HOUR = np.timedelta64(3600, "s")


def panel(values, start="2013-11-01T00:00:00", step=HOUR, timezone=None) -> Panel:
    array = np.asarray(values, dtype=np.float64)
    array = array[:, None] if array.ndim == 1 else array
    ids = tuple(f"c{i}" for i in range(array.shape[1]))
    return Panel(array, ids, np.datetime64(start, "s"), step, timezone=timezone)


@pytest.mark.parametrize(
    ("text", "seconds", "back"),
    [
        ("1h", 3600, "1h"),
        ("15min", 900, "15min"),
        ("60 minutes", 3600, "1h"),
        ("d", 86400, "1d"),
        ("90s", 90, "90s"),
        (timedelta(days=2), 172800, "2d"),
        (np.timedelta64(5, "m"), 300, "5min"),
        (7200, 7200, "2h"),
    ],
)
def test_steps_are_understood_and_written_short(text, seconds, back):
    step = parse_step(text)
    assert step / np.timedelta64(1, "s") == seconds
    assert format_step(step) == back


@pytest.mark.parametrize("text", ["1 fortnight", "h1", "", "1m", "0h", "-1h", -5, 0.5])
def test_an_invalid_step_is_rejected(text):
    with pytest.raises(FuelsError, match="step"):
        parse_step(text)


def test_ids_sort_as_numbers_where_all_are_numbers():
    assert sort_ids(["10", "9", "100"]) == ["9", "10", "100"]
    assert sort_ids(["b", "10", "9"]) == ["10", "9", "b"]


def test_between_includes_an_end_that_is_a_date_and_excludes_one_with_a_time():
    days = panel(np.arange(72))
    assert days.between("2013-11-02", "2013-11-02").values[:, 0].tolist() == list(range(24, 48))
    assert days.between("2013-11-02T06:00", "2013-11-02T08:00").values[:, 0].tolist() == [30, 31]
    assert days.between(end=date(2013, 11, 1)).length == 24
    assert days.between(start=datetime(2013, 11, 3, 23)).values[:, 0].tolist() == [71]
    assert days.between("2013-11-02").start == np.datetime64("2013-11-02T00:00:00")


def test_an_empty_selection_names_the_span():
    with pytest.raises(
        FuelsError, match=r"no data from 2014.*run from 2013-11-01 00:00 to 2013-11"
    ):
        panel(np.arange(24)).between("2014-01-01")
    with pytest.raises(FuelsError, match="--to 'soon' is not a date"):
        panel(np.arange(24)).between(end="soon")


def test_a_date_is_a_day_in_standard_time_and_a_time_is_wall_clock():
    # 1 July in Rome: standard time is UTC+1, the wall clock shows UTC+2.
    summer = panel(np.arange(72), start="2013-06-29T23:00:00", timezone="Europe/Rome")
    day = summer.between("2013-07-01", "2013-07-01")
    assert day.start == np.datetime64("2013-06-30T23:00:00") and day.length == 24
    assert (day.phases(24) == np.arange(24)).all()
    assert summer.between("2013-07-01T08:00").start == np.datetime64("2013-07-01T06:00:00")
    moment = summer.between("2013-07-01T08:00:00+00:00").start
    assert moment == np.datetime64("2013-07-01T08:00:00")
    assert format_moment(moment, "Europe/Rome") == "2013-07-01 10:00"


def test_an_offset_needs_a_known_zone():
    with pytest.raises(FuelsError, match="time zone of the data is not known"):
        parse_moment("2013-07-01T08:00:00+00:00", None, upper=False, option="--from")


def test_phases_follow_standard_time_across_a_change_of_daylight_saving():
    # Rome set its clocks forward on 31 March 2013, 01:00 UTC: the phase does not jump.
    spring = panel(np.arange(72), start="2013-03-30T00:00:00", timezone="Europe/Rome")
    assert spring.phases(24)[:3].tolist() == [1, 2, 3]
    assert (np.diff(spring.phases(24)) % 24 == 1).all()


def test_sums_and_means_by_hand():
    half_hours = panel([1, 2, 3, np.nan, 5, 6], step=np.timedelta64(1800, "s"))
    assert np.array_equal(
        half_hours.resample("1h", "sum").values[:, 0], [3, np.nan, 11], equal_nan=True
    )
    assert half_hours.resample("1h", "mean").values[:, 0].tolist() == [1.5, 3.0, 5.5]
    nothing = panel([np.nan, np.nan, 1, 1], step=np.timedelta64(1800, "s"))
    assert np.isnan(nothing.resample("1h", "mean").values[0, 0])


def test_bins_follow_the_clock_and_incomplete_ones_are_dropped_and_counted():
    late = panel(np.arange(10), start="2013-11-01T00:40:00", step=np.timedelta64(600, "s"))
    hourly = late.resample("1h", "sum")
    assert hourly.start == np.datetime64("2013-11-01T01:00:00")
    assert hourly.values[:, 0].tolist() == [2 + 3 + 4 + 5 + 6 + 7]
    assert hourly.notes == (
        "resampled from 10min to 1h by sum; 4 steps in incomplete bins at the ends were dropped",
    )


def test_a_day_is_the_local_standard_day():
    # Kolkata is UTC+5:30: its midnight is 18:30 UTC.
    india = panel(
        np.ones(200), "2020-01-01T00:00:00", np.timedelta64(1800, "s"), timezone="Asia/Kolkata"
    )
    days = india.resample("1d", "sum")
    assert days.start == np.datetime64("2020-01-01T18:30:00")
    assert days.values[:, 0].tolist() == [48, 48, 48]


def test_steps_off_the_hour_go_into_the_hour_that_contains_them():
    quarter_past = panel(np.arange(4), "2013-11-01T00:15:00", np.timedelta64(1800, "s"))
    hourly = quarter_past.resample("1h", "sum")
    assert hourly.start == np.datetime64("2013-11-01T00:00:00")
    assert hourly.values[:, 0].tolist() == [1, 5]


@pytest.mark.parametrize(("step", "how"), [("90min", "sum"), ("30min", "sum"), ("1h", "median")])
def test_invalid_resampling_is_rejected(step, how):
    with pytest.raises(FuelsError):
        panel(np.arange(48)).resample(step, how)


def test_too_few_steps_for_one_bin_are_rejected():
    with pytest.raises(FuelsError, match="no complete 1d"):
        panel(np.arange(30), start="2013-11-01T12:00:00").resample("1d", "sum")


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=12, max_size=60),
    st.integers(0, 11),
    st.sampled_from([2, 3, 4, 6]),
)
def test_resampling_preserves_the_total_of_complete_bins(values, offset, parts):
    start = np.datetime64("2020-01-01", "s") + np.timedelta64(offset * 600, "s")
    fine = Panel(np.array(values)[:, None], ("a",), start, np.timedelta64(600, "s"))
    coarse = fine.resample(parts * 600, "sum")
    skip = int((coarse.start - fine.start) / fine.step)
    kept = fine.values[skip : skip + coarse.length * parts]
    assert coarse.values.sum() == pytest.approx(kept.sum(), abs=1e-3)
    assert 0 <= skip < parts and fine.length - skip - coarse.length * parts < parts
    assert int((coarse.start - np.datetime64("2020-01-01", "s")) / coarse.step) * coarse.step == (
        coarse.start - np.datetime64("2020-01-01", "s")
    )
