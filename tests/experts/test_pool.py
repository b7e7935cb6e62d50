"""The pool of local experts: hand-made numbers, causality, calendars and refusals."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fuels.config import Settings, merge
from fuels.data.calendar import Calendar, country_holidays, listed_holidays
from fuels.errors import FuelsError
from fuels.experts.history import History, fill_from_earlier, make_history
from fuels.experts.horizon import first_out_of_sample, fit_horizon
from fuels.experts.linear import change_of_period, drift, season_lag, week_lags
from fuels.experts.pool import EXPERTS, Pool
from fuels.experts.ridge import fit_ridge
from fuels.experts.smoothing import Smoothing
from fuels.runs.build import load_dataset
from helpers.panels import make_panel


def history(clients: int = 3, days: int = 24, seed: int = 0) -> History:
    panel = make_panel(clients=clients, days=days, seed=seed)
    return make_history(panel, 24, panel.values.mean(axis=0), panel.values.std(axis=0))


def with_values(source: History, observed: np.ndarray) -> History:
    return replace(source, observed=observed, filled=fill_from_earlier(observed, source.period))


def test_gaps_are_filled_from_earlier_periods_and_long_silence_is_not() -> None:
    nan = np.nan
    observed = np.array([[1.0, 2.0, nan, 4.0, 5.0, nan, nan, nan, nan]])
    filled = fill_from_earlier(observed, 2)
    # Step 2 takes step 0, steps 5 and 6 take 3 and 4; from step 7 on the silence exceeds a period.
    np.testing.assert_array_equal(filled, [[1, 2, 1, 4, 5, 4, 5, nan, nan]])


def test_filling_looks_only_back() -> None:
    observed = np.random.default_rng(1).normal(size=(4, 60))
    observed[np.random.default_rng(2).random((4, 60)) < 0.4] = np.nan
    changed = observed.copy()
    changed[:, 30:] = 99.0
    before = fill_from_earlier(observed, 6)[:, :30]
    np.testing.assert_array_equal(before, fill_from_earlier(changed, 6)[:, :30])


def test_fixed_experts_by_hand() -> None:
    source = history(clients=1, days=24)
    near, distant = (Pool().fit(source, 480, horizon) for horizon in (1, 30))
    x = source.observed[0]
    k = 500
    one = {name: f[0, 0] for name, f in near.forecasts(source, k, k + 1).items()}
    assert one["last value"] == x[k - 1]
    assert one["one period ago"] == x[k - 24]
    assert one["one week ago"] == x[k - 168]
    assert one["drift"] == pytest.approx(x[k - 1] + (x[k - 1] - x[k - 25]) / 24)
    expected = x[k - 1] + x[k - 24] - x[k - 25]
    assert one["last value + change of a period ago"] == pytest.approx(expected)
    far = {name: f[0, 0] for name, f in distant.forecasts(source, k, k + 1).items()}
    assert far["last value"] == x[k - 30]
    assert far["one period ago"] == x[k - 48]
    assert far["last value + change of a period ago"] == pytest.approx(
        x[k - 30] + x[k - 48] - x[k - 78]
    )


@pytest.mark.parametrize("horizon", [1, 3, 24, 25, 200])
def test_no_expert_looks_beyond_what_is_known(horizon: int) -> None:
    source = history()
    assert min(week_lags(source, horizon)) == horizon
    assert min(change_of_period(source, horizon)) >= horizon
    assert min(drift(source, horizon)) >= horizon
    assert season_lag(24, horizon) >= horizon


@pytest.mark.parametrize("horizon", [1, 5])
def test_altering_the_future_changes_no_past_forecast(horizon: int) -> None:
    source = history()
    cut, last = 520, 560
    observed = source.observed.copy()
    observed[:, cut:] = np.random.default_rng(3).normal(5, 9, observed[:, cut:].shape)
    observed[1, cut + 2 :] = np.nan
    changed = with_values(source, observed)
    online = fit_horizon(Pool(), source, 480, horizon=horizon)
    other = fit_horizon(Pool(), changed, 480, horizon=horizon)
    begin = first_out_of_sample(480, horizon)
    past = online.run(source, begin, last)
    altered = other.run(changed, begin, last)
    # A target k uses values up to k - horizon: all targets before cut + horizon stay the same.
    same = slice(0, cut + horizon - begin)
    for name, forecasts in past.experts.items():
        np.testing.assert_array_equal(forecasts[:, same], altered.experts[name][:, same], name)
    np.testing.assert_array_equal(past.mixed.combined[:, same], altered.mixed.combined[:, same])
    np.testing.assert_array_equal(past.mixed.weights[same], altered.mixed.weights[same])
    np.testing.assert_array_equal(past.bands.lower[:, :, same], altered.bands.lower[:, :, same])
    np.testing.assert_array_equal(past.bands.upper[:, :, same], altered.bands.upper[:, :, same])
    after = slice(cut + horizon - begin, None)
    assert not np.allclose(past.mixed.combined[0, after], altered.mixed.combined[0, after])


@pytest.mark.parametrize("cut", [329, 331, 333, 336, 340])
def test_the_warm_up_knows_no_future(cut: int) -> None:
    """5 steps ahead, around the end of what its experts were fitted on."""
    source = history()
    observed = source.observed.copy()
    observed[:, cut:] += 5.0
    warm, altered = (
        fit_horizon(Pool(), one, 480, horizon=5).warm_up
        for one in (source, with_values(source, observed))
    )
    assert warm is not None and altered is not None
    assert warm.mixed.combined.shape[1] == 144  # 11 / 40 of the training, in whole days
    same = max(cut + 5 - (480 - 144), 0)  # they are forecast from before the cut
    for name in warm.experts:
        np.testing.assert_array_equal(
            warm.experts[name][:, :same], altered.experts[name][:, :same], name
        )
    np.testing.assert_array_equal(warm.mixed.combined[:, :same], altered.mixed.combined[:, :same])


def test_a_far_horizon_and_a_short_training_leave_no_warm_up() -> None:
    source = history(days=5)
    online = fit_horizon(Pool(), source, 72, horizon=30)
    assert online.warm_up is None
    value, weights, _ = online.next(with_values(source, source.observed[:, :72]))
    assert np.isfinite(value).all() and np.allclose(weights.sum(axis=1), 1.0)


def test_next_is_what_run_will_say_and_leaves_no_trace() -> None:
    source = history()
    known = with_values(source, source.observed[:, :540])
    for horizon in (1, 4):
        online = fit_horizon(Pool(), known, 480, horizon=horizon)
        online.run(known, first_out_of_sample(480, horizon), 540)
        before = online.arrays()
        value, weights, bands = online.next(known)
        for name, array in online.arrays().items():
            np.testing.assert_array_equal(array, before[name], name)
        later = online.run(source, 540, 540 + horizon)
        np.testing.assert_array_equal(value, later.mixed.combined[:, -1])
        np.testing.assert_array_equal(weights, later.mixed.weights[-1])
        np.testing.assert_array_equal(bands.lower[:, :, 0], later.bands.lower[:, :, -1])


def test_state_is_saved_and_goes_on_where_it_stopped() -> None:
    source = history()
    whole = fit_horizon(Pool(), source, 480, horizon=3)
    expected = whole.run(source, 482, 560)
    first = fit_horizon(Pool(), source, 480, horizon=3)
    first.run(source, 482, 511)
    second = fit_horizon(Pool(), source, 480, horizon=3)
    second.load(first.arrays())
    rest = second.run(source, 511, 560)
    np.testing.assert_array_equal(rest.mixed.combined, expected.mixed.combined[:, 29:])
    np.testing.assert_array_equal(rest.bands.upper, expected.bands.upper[:, :, 29:])
    with pytest.raises(FuelsError, match="does not fit"):
        fit_horizon(Pool(), source, 480, horizon=2).load(first.arrays())


def test_a_fitted_pool_is_saved_and_loaded() -> None:
    source = history()
    for horizon in (1, 2):
        fitted = Pool().fit(source, 480, horizon)
        loaded = Pool().load(fitted.arrays(), source.clients, horizon)
        for name, forecasts in fitted.forecasts(source, 480, 500).items():
            np.testing.assert_array_equal(forecasts, loaded.forecasts(source, 480, 500)[name])
    with pytest.raises(FuelsError, match="not 4"):
        Pool().load(fitted.arrays(), 4)


def test_an_expert_without_its_input_abstains_and_the_others_forecast() -> None:
    source = history()
    observed = source.observed.copy()
    observed[0, 300:360] = np.nan  # longer than a period, so not filled to its end
    broken = with_values(source, observed)
    online = fit_horizon(Pool(), broken, 288)
    past = online.run(broken, 288, 520)
    weekly = past.experts["ridge, weekly lags, change"]
    assert np.isnan(weekly[0, 500 - 288])  # a week ago is unknown
    assert not np.isnan(past.mixed.combined[0, 500 - 288])
    assert past.mixed.weights[500 - 288, 0].sum() == pytest.approx(1.0)
    assert (
        np.isnan(past.mixed.combined[0, 350 - 288])
        == np.isnan([f[0, 350 - 288] for f in past.experts.values()]).all()
    )


def test_external_experts_join_abstain_and_are_checked() -> None:
    source = history()
    online = fit_horizon(Pool(), source, 480, external=["model"])
    oracle = source.observed[:, 480:560]
    past = online.run(source, 480, 560, {"model": oracle})
    assert past.mixed.weights[-1, :, -1].min() > 0.8  # an expert that is always right leads
    online.run(source, 560, 570)  # and may abstain
    with pytest.raises(FuelsError, match="shape"):
        online.run(source, 570, 576, {"model": oracle})
    with pytest.raises(FuelsError, match="'other' is not in the mixture"):
        online.run(source, 570, 576, {"other": oracle[:, :6]})


def test_ridge_recovers_a_line_and_shrinks_noise() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(2, 400, 3))
    y = x @ np.array([1.0, -2.0, 0.5]) + 3.0
    y[1] = rng.normal(size=400)
    used = np.ones((2, 400), dtype=np.bool_)
    used[0, 200:] = False
    y[0, 200:] = 1e6  # not used
    fit = fit_ridge(x, y, used)
    np.testing.assert_allclose(fit.weights[0], [1.0, -2.0, 0.5], atol=1e-4)
    assert fit.constant[0] == pytest.approx(3.0, abs=1e-3)
    free = np.linalg.lstsq(x[1] - x[1].mean(axis=0), y[1] - y[1].mean(), rcond=None)[0]
    assert np.linalg.norm(fit.weights[1]) < 0.9 * np.linalg.norm(free)
    empty = fit_ridge(x, np.full((2, 400), np.nan), np.zeros((2, 400), dtype=np.bool_))
    assert np.all(empty.predict(x) == 0.0)


def test_change_ridge_follows_a_shift_of_level() -> None:
    source = history()
    fitted = Pool().fit(source, 480)
    shifted = with_values(source, source.observed + 10.0)
    for name in ("ridge, recent lags, change", "ridge, weekly lags, calendar, change"):
        plain = fitted.forecasts(source, 500, 520)[name]
        np.testing.assert_allclose(fitted.forecasts(shifted, 500, 520)[name], plain + 10.0)


def test_the_calendar_ridge_repeats_no_spike_and_forecasts_one_step_only() -> None:
    source = history()
    fitted, two_ahead = (Pool().fit(source, 480, horizon) for horizon in (1, 2))
    name = "ridge, calendar"
    spiked = source.observed.copy()
    spiked[:, 480:499] = 1e3
    plain = fitted.forecasts(source, 500, 520)
    after = fitted.forecasts(with_values(source, spiked), 500, 520)
    np.testing.assert_array_equal(after[name], plain[name])
    assert np.abs(after["last value"] - plain["last value"]).max() == 0  # of step 499
    assert (after["one period ago"] != plain["one period ago"]).any()
    slots = plain[name].reshape(-1, 20)  # a working day: each slot has its own usual value
    assert (np.ptp(slots, axis=1) > 0).all()
    assert name in fitted.names and name not in two_ahead.names
    assert list(two_ahead.forecasts(source, 500, 520)) == list(two_ahead.names)


def test_smoothing_learns_a_profile_exactly() -> None:
    source = history(clients=1)
    profile = np.arange(24.0)
    observed = np.tile(profile, 24)[None, :]
    exact = with_values(source, observed)
    expert = Smoothing()
    learned = expert.fit(exact, 480, 2)
    said = expert.forecasts(learned, exact, 480, 500, 2)
    np.testing.assert_allclose(said[0], observed[0, 480:500], atol=1e-9)


def test_free_days_are_weekends_and_holidays() -> None:
    times = np.array(["2013-12-20T10", "2013-12-21T10", "2013-12-25T10"], dtype="datetime64[s]")
    np.testing.assert_array_equal(Calendar().free(times), [False, True, False])
    listed = listed_holidays(["2013-12-25"])
    np.testing.assert_array_equal(listed.free(times), [False, True, True])
    with pytest.raises(FuelsError, match="Christmas"):
        listed_holidays(["Christmas"])


def test_country_holidays_need_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "holidays", None)
    with pytest.raises(FuelsError, match=r"fuels-forecast\[calendar\]"):
        country_holidays("IT", [2013])


def columns(source: History, step: int) -> NDArray[np.float64]:
    """What the clock tells at one step."""
    times, phase = source.times(step, step + 1), np.array([step % source.period])
    return Calendar().indicator_columns(("time", "free"), times, phase, source.period)[0]


def test_calendar_columns_tell_slot_and_free_day() -> None:
    source = history(clients=1)  # 1 January 2024 was a Monday
    monday = columns(source, 5)
    saturday = columns(source, 5 * 24 + 5)
    assert np.flatnonzero(monday).tolist() == [5]
    assert np.flatnonzero(saturday).tolist() == [5, 29]


def test_refusals() -> None:
    source = history()
    with pytest.raises(FuelsError, match="horizon"):
        Pool().fit(source, 480, 0)
    with pytest.raises(FuelsError, match="the history has 576"):
        Pool().fit(source, 577)
    with pytest.raises(FuelsError, match="different names"):
        Pool((EXPERTS[0], EXPERTS[0]))
    fitted = Pool().fit(source, 480)
    with pytest.raises(FuelsError, match="fitted for 3 clients, the history has 2"):
        fitted.forecasts(history(clients=2), 480, 490)
    with pytest.raises(FuelsError, match="ends at step 576"):
        fitted.forecasts(source, 570, 578)
    with pytest.raises(FuelsError, match="too few"):
        fit_horizon(Pool(), source, 48)
    with pytest.raises(FuelsError, match="use next"):
        fit_horizon(Pool(), source, 480).run(source, 480, 577)


def test_milan_mixture_beats_every_expert_on_both_windows(real_data: Path) -> None:
    from fuels.experts.history import history_of

    changes = {
        "data": {"source": str(real_data / "milan_net_441cells_hourly.npz"), "clients": 30},
        "windows": {"split": "40/11/11"},
    }
    dataset = load_dataset(merge(Settings(), changes, "test"))
    source = history_of(dataset)
    past = fit_horizon(Pool(), source, 960).run(source, 960, source.length)
    truth = source.observed[:, 960:]
    for part in (slice(0, 264), slice(264, None)):
        alone = [np.mean((truth - f)[:, part] ** 2) for f in past.experts.values()]
        assert np.mean((truth - past.mixed.combined)[:, part] ** 2) < 0.9 * min(alone)
        bands = replace(
            past.bands, lower=past.bands.lower[:, :, part], upper=past.bands.upper[:, :, part]
        )
        assert np.abs(100 * bands.coverage(truth[:, part]) - [80, 95]).max() < 2
