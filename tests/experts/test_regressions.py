"""Compiled regressions of a whole horizon against their references, one expert after the other."""

from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np
import pytest

from fuels.arrays import Floats
from fuels.config import Sharing
from fuels.data.synthetic import synthesise
from fuels.experts import groups, linear, regressions, shared
from fuels.experts.history import History, make_history
from fuels.experts.horizon import HorizonEnsemble, fit_horizon
from fuels.experts.linear import RidgeExpert
from fuels.experts.shared import EVERY_EXPERT, SharedExperts
from fuels.kernels.dispatch import set_threads, threads, use_kernels

END = 28 * 24
CLIENTS = 14
IDS = tuple(f"c{i}" for i in range(CLIENTS))


def sharing() -> SharedExperts:
    found = SharedExperts.of(Sharing(statistics=True, live_mean=True, min_clients=8))
    assert found is not None
    return found


def untidy(period: int = 24) -> History:
    """Clients 2 to 9 have gaps, a late start, no value or a spike; the others have every value."""
    panel = synthesise("net", clients=CLIENTS, days=35, seed=3)
    values, draw = panel.values.copy(), np.random.default_rng(0)
    values[draw.random(len(values)) < 0.05, 2] = np.nan  # short gaps, which the lags do not see
    values[draw.random(len(values)) < 0.5, 3] = np.nan
    for first in range(100, len(values), 60):
        values[first : first + 26 + first % 7, 4] = np.nan  # longer than a day: lags are missing
    values[300:500, 5] = np.nan
    values[:400, 6] = np.nan  # newcomers
    values[: END - 80, 7] = np.nan
    values[:END, 8] = np.nan
    values[200, 9] = values[:END, 9].mean() + 20 * values[:END, 9].std()
    past = np.where(np.isnan(values[:END]).all(axis=0), 0.0, values[:END])
    mean, std = np.nanmean(past, axis=0), np.nanstd(past, axis=0)
    history = make_history(replace(panel, values=values), period, mean, np.where(std, std, 1.0))
    return sharing().with_live_mean(history, IDS)


def close(found: Floats, expected: Floats, what: str, tolerance: float = 1e-8) -> None:
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected), what)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=what)


@pytest.mark.parametrize("horizon", [1, 2, 24, 30])
def test_ridges_equal_the_reference(horizon: int) -> None:
    history = untidy()
    experts = {e.name: e for e in EVERY_EXPERT.for_horizon(horizon)}
    pooled = sharing().coefficients(history, IDS, END, horizon)
    ridges = [e for e in experts.values() if isinstance(e, RidgeExpert)]
    bases = {
        e.towards: experts[e.towards].forecasts(pooled[e.towards], history, 0, END, horizon)
        for e in ridges
        if e.towards
    }
    given = ridges, history, END, horizon, bases
    found, expected = regressions.fit_ridges(*given), inspect.unwrap(linear.fit_ridges)(*given)
    for name in expected:
        for part, values in expected[name].items():
            close(found[name][part], values, f"{name}, {part}")
    assert np.isnan(expected["ridge, weekly lags, calendar, live mean"]["weights"][7]).all()
    fitted = ridges, expected, history, END, history.length + horizon, horizon
    ahead = regressions.forecast_ridges(*fitted)
    for name, made in inspect.unwrap(linear.forecast_ridges)(*fitted).items():
        close(ahead[name], made, name)
    assert np.isnan(ahead["ridge, period lags"][4]).any()
    for name, arrays in pooled.items():
        asked = arrays, history, END - 5, history.length + horizon, horizon
        made = inspect.unwrap(shared.forecast_pooled)(*asked)
        close(regressions.forecast_pooled(*asked), made, name)


@pytest.mark.parametrize("period", [12, 84])  # 84 steps share 48 slots
def test_slots_of_other_periods_equal_the_reference(period: int) -> None:
    history = untidy(period)
    ridges = [e for e in EVERY_EXPERT.for_horizon(1) if isinstance(e, RidgeExpert) and e.calendar]
    given = ridges, history, END, 1, {}
    found, expected = regressions.fit_ridges(*given), inspect.unwrap(linear.fit_ridges)(*given)
    for name in expected:
        close(found[name]["weights"], expected[name]["weights"], name)
        close(found[name]["constant"], expected[name]["constant"], name)


def test_more_sets_of_rows_than_are_kept_apart() -> None:
    """Values and live means are missing here and there: each row serves other regressions."""
    history = untidy()
    draw, filled, live = np.random.default_rng(1), history.filled.copy(), history.live
    assert live is not None
    filled[draw.random(filled.shape) < 0.05] = np.nan
    live = np.where(draw.random(live.shape) < 0.05, np.nan, live)
    holed = replace(history, filled=filled, live=live)
    ridges = [
        e for e in EVERY_EXPERT.for_horizon(2) if isinstance(e, RidgeExpert) and not e.towards
    ]
    given = ridges, holed, END, 2, {}
    found, expected = regressions.fit_ridges(*given), inspect.unwrap(linear.fit_ridges)(*given)
    for name in expected:
        close(found[name]["weights"], expected[name]["weights"], name)


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("first", [0, 400])
def test_contributions_equal_the_reference(live: bool, first: int) -> None:
    history = untidy()
    columns = shared.declared(history, 3, live=live)
    given = columns, history, first, END
    expected = inspect.unwrap(shared.contributions)(*given)
    for found, own in zip(regressions.contributions(*given), expected, strict=True):
        close(found, own, "contribution", 1e-10)
    assert expected[0].any() and not expected[8].any()


def backtest(history: History, horizon: int) -> tuple[HorizonEnsemble, Floats]:
    pooled = sharing()
    online = fit_horizon(
        EVERY_EXPERT,
        history,
        END,
        horizon=horizon,
        external=["model"],
        pooled=lambda end: pooled.coefficients(history, IDS, end, horizon),
    )
    first = END + horizon - 1
    model = history.filled[:, first : history.length] + 0.1
    made = online.run(history, first, history.length, {"model": model})
    return online, np.concatenate([made.mixed.combined, made.bands.lower[0], made.bands.upper[1]])


@pytest.mark.parametrize("horizon", [1, 3])
def test_groups_and_threads_change_nothing(monkeypatch: pytest.MonkeyPatch, horizon: int) -> None:
    history = untidy()
    whole, expected = backtest(history, horizon)
    monkeypatch.setattr(groups, "MOST", 3)
    before = threads()
    try:
        set_threads(2)
        parts, found = backtest(history, horizon)
    finally:
        set_threads(before)
    np.testing.assert_array_equal(found, expected)
    for name, array in whole.arrays().items():
        np.testing.assert_array_equal(parts.arrays()[name], array, name)
    for name, array in whole.pool.arrays().items():
        np.testing.assert_array_equal(parts.pool.arrays()[name], array, name)
    assert whole.warm_up is not None and parts.warm_up is not None
    np.testing.assert_array_equal(parts.warm_up.mixed.weights, whole.warm_up.mixed.weights)
    for name, made in whole.warm_up.experts.items():
        np.testing.assert_array_equal(parts.warm_up.experts[name], made, name)
    one, other = (online.next(history, {}) for online in (whole, parts))
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_array_equal(one[2].lower, other[2].lower)


def test_advancing_learns_what_running_does() -> None:
    history = untidy()
    run, _ = backtest(history, 2)
    advanced = run.copy()
    more = history.length - 30, history.length
    run.run(history, *more)
    advanced.advance(history, *more)
    for name, array in run.arrays().items():
        np.testing.assert_array_equal(advanced.arrays()[name], array, name)


def test_a_whole_horizon_equals_the_reference() -> None:
    """All experts; and the mixture's error, though rounding decides how it ranks equal experts."""
    history = untidy()
    online, found = backtest(history, 5)
    try:
        use_kernels("plain")
        reference, expected = backtest(history, 5)
    finally:
        use_kernels("auto")
    assert online.warm_up is not None and reference.warm_up is not None
    for name, made in reference.warm_up.experts.items():
        close(online.warm_up.experts[name], made, name)
    truth = history.observed[:, END + 4 :]
    one, other = (
        np.nanmean((values[:CLIENTS] - truth)[[0, 1, 10, 11, 12, 13]] ** 2, axis=1)
        for values in (found, expected)
    )
    np.testing.assert_allclose(one, other, rtol=0.02)
