"""The steps and the form of the sums of a run, and what a site receives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.errors import FuelsError
from fuels.experts.history import history_of
from fuels.experts.run_sums import (
    LIVE_MEAN,
    STATISTICS,
    ReceivedSums,
    Steps,
    common_steps,
    has_rows,
    live_words,
    mostly_known,
    parts_of,
    received_mean,
    received_statistics,
    shape_of,
    statistics_words,
    steps_of,
)
from fuels.sharing.fixed_point import from_words
from fuels.sharing.live_mean import CLIP
from fuels.sharing.received_statistics import ReceivedStatistics
from helpers.small_federation import PERIOD, job_of, small_panel

HOUR = 3600
STEP = 4 * HOUR  # a week is then seven periods


def steps(**changes: int) -> Steps:
    return replace(Steps(0, HOUR, PERIOD, 15 * PERIOD, 12 * PERIOD), **changes)


def test_common_steps_begin_first_end_last_and_train_on_what_all_train_on() -> None:
    later = steps(start=2 * PERIOD * HOUR)
    sites = {"a": steps(), "b": later, "c": steps(end=9 * PERIOD)}
    found, left_out = common_steps(sites, sites, 3)
    assert (found.start, found.count, found.end) == (0, 17 * PERIOD, 9 * PERIOD)
    assert left_out == {}
    assert found.live == slice(2 * PERIOD, 15 * PERIOD)  # where all three have data
    sites["d"] = steps(count=20 * PERIOD)
    assert common_steps(sites, sites, 3)[0].live == slice(0, 15 * PERIOD)
    assert common_steps(sites, ["a", "b", "d"], 3)[0].live == slice(2 * PERIOD, 15 * PERIOD)
    assert common_steps(sites, ["a", "b"], 3)[0].live == slice(0, 0)
    sites["d"] = steps(start=30 * PERIOD * HOUR)
    assert not len(range(*common_steps(sites, ["a", "b", "d"], 3)[0].live.indices(10**6)))


def test_the_live_mean_has_nothing_where_too_few_sites_have_data(tmp_path: Path) -> None:
    dataset = job_of("fuels", replace(small_panel(), step=np.timedelta64(STEP, "s"))).dataset
    own, history = steps_of(dataset), history_of(dataset)
    few = replace(own, live_first=PERIOD, live_last=own.count - 5)
    words = from_words(live_words(history, few, 3)).reshape(shape_of(LIVE_MEAN, few, 1, False))
    assert words[few.live, 1].all()
    assert not words[: few.live.start].any() and not words[few.live.stop :].any()
    mean = received_mean(dataset, few, words, contributed=True)
    assert mean.length == own.count - 5 - PERIOD
    last = history.times(own.count - 6, own.count - 4)
    assert mean.decided(last[0]) and not mean.decided(last[1])  # a live series may begin there
    np.testing.assert_array_equal(
        mean.own, np.clip(history.observed[:, PERIOD : own.count - 5], -CLIP, CLIP)
    )


def test_statistics_have_no_rows_where_too_few_sites_have_data() -> None:
    dataset = job_of("fuels", replace(small_panel(), step=np.timedelta64(STEP, "s"))).dataset
    own, history = steps_of(dataset), history_of(dataset)
    later = own.start + PERIOD * STEP
    sites = {"a": own, "b": replace(own, start=later), "c": replace(own, start=later)}
    found, _ = common_steps(sites, sites, 3)
    assert found.rows_first == PERIOD and found.end == own.end
    shorter = replace(history, observed=history.observed.copy(), filled=history.filled.copy())
    for values in (shorter.observed, shorter.filled):
        values[:, :PERIOD] = np.nan  # as of a client that began with the others
    added, whole = (statistics_words(history, asked, 1, False, 3) for asked in (found, own))
    np.testing.assert_array_equal(added, statistics_words(shorter, own, 1, False, 3))
    assert added.any() and not np.array_equal(added, whole)
    longest = max(parts_of(own, 1, False)[0].columns.lags)
    assert has_rows(found, 1) and not has_rows(replace(found, rows_first=own.end - longest), 1)


@pytest.mark.parametrize("other", [{"step": 600}, {"period": 2 * PERIOD}, {"start": HOUR}])
def test_a_site_with_another_clock_is_left_out(other: dict[str, int]) -> None:
    found, left_out = common_steps({"a": steps(), "b": steps(**other), "c": steps()}, "ac", 2)
    assert (
        found == steps(live_last=15 * PERIOD)
        and list(left_out) == ["b"]
        and "do not match" in left_out["b"]
    )


def test_a_site_in_another_time_zone_is_left_out() -> None:
    """A live series counts in UTC: an hour of one site would be added to the next one of others."""
    found, left_out = common_steps({"a": steps(zone=HOUR), "b": steps(), "c": steps()}, "bc", 2)
    assert found.zone == 0
    assert left_out["a"].startswith("its time zone is UTC+1, that of the others UTC or not named:")


@pytest.mark.parametrize(
    "facts", [None, {}, {**steps().facts(), "count": 0}, {**steps().facts(), "end": 1.5},
              {**steps().facts(), "end": 10**6}, {**steps().facts(), "start": 2**50}]
)  # fmt: skip
def test_steps_that_cannot_be(facts: Any) -> None:
    with pytest.raises(FuelsError, match="the steps of a sum"):
        Steps.from_facts(facts)
    assert Steps.from_facts(steps().facts()) == steps()
    with pytest.raises(FuelsError, match="at most 2097152 are added up"):
        common_steps({"a": steps(), "b": steps(start=PERIOD * HOUR * 2**24)}, "ab", 2)


def test_a_site_adds_its_values_where_it_has_them(tmp_path: Path) -> None:
    dataset = job_of("fuels", replace(small_panel(), step=np.timedelta64(STEP, "s"))).dataset
    own, history = steps_of(dataset), history_of(dataset)
    wide = replace(own, start=own.start - 2 * PERIOD * STEP, count=own.count + 4 * PERIOD,
                   end=own.end + 2 * PERIOD)  # fmt: skip
    words = from_words(live_words(history, wide, 3)).reshape(shape_of(LIVE_MEAN, wide, 1, False))
    here = slice(2 * PERIOD, 2 * PERIOD + own.count)
    np.testing.assert_array_equal(words[here, 1], (~np.isnan(history.observed)).sum(axis=0))
    assert not words[: 2 * PERIOD].any() and not words[here.stop :].any()
    assert mostly_known(wide, words, 2) and not mostly_known(wide, words, 4)
    mean = received_mean(dataset, wide, words, contributed=True)
    outside = received_mean(dataset, wide, words, contributed=False)
    assert np.isnan(outside.own).all() and not np.isnan(mean.own[:, here]).all()
    with pytest.raises(FuelsError, match="begin or end outside"):
        live_words(history, replace(wide, count=own.count), 3)
    with pytest.raises(FuelsError, match="not those of this site's data"):
        live_words(history, replace(wide, start=wide.start + STEP), 3)
    # Statistics of two parts; a site without data in one of them adds zeros there.
    total = from_words(statistics_words(history, wide, 1, False, 3))
    assert total.shape == shape_of(STATISTICS, wide, 1, False)
    first, second = parts_of(wide, 1, False)
    found = received_statistics(wide, 1, False, total)
    begin, end = (np.datetime64(wide.time(part.last), "s") for part in (first, second))
    early, late = found.until(begin, 1), found.until(end + np.timedelta64(9 * STEP, "s"), 1)
    assert early is not None and late is not None and 0 < early.rows < late.rows
    assert found.until(begin - np.timedelta64(STEP, "s"), 1) is None and found.until(end, 2) is None
    sums = ReceivedSums(mean, found, {})
    sums.save(tmp_path)
    again = ReceivedStatistics.load(tmp_path / "statistics.safetensors")
    np.testing.assert_array_equal(again.totals[1, second.last].products, late.products)
    elsewhere = replace(wide, start=wide.start - 100 * PERIOD * STEP, count=200 * PERIOD)
    assert not statistics_words(history, elsewhere, 1, False, 3).any()


def test_notes_name_what_is_missing_once() -> None:
    one = ReceivedSums(notes={"live_mean": "no roster", "statistics": "no roster"})
    assert one.note == "no live mean and statistics: no roster" and one.experts is None
    two = ReceivedSums(notes={"live_mean": "a", "statistics": "b"})
    assert two.note == "no live mean: a; no statistics: b"
