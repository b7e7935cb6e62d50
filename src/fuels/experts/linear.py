"""Experts that are sums of lagged values: with fixed coefficients, or with coefficients learned.

For a target h steps ahead only lags of at least h are known. Seasonal lags shorter than h are
pushed back by whole seasons, so that they exist at every horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fuels.data.calendar import Calendar
from fuels.experts.history import Floats, History
from fuels.experts.ridge import Ridge, fit_ridge

CHUNK = 64  # clients fitted at once: their features stay small in memory

Arrays = dict[str, NDArray[np.float64]]
Terms = Callable[[History, int], Mapping[int, float]]


def season_lag(season: int, horizon: int) -> int:
    """The least whole number of seasons that is known `horizon` steps ahead."""
    return -(-horizon // season) * season


@dataclass(frozen=True)
class Fixed:
    """A forecast without anything to learn: coefficients by lag, given history and horizon."""

    name: str
    terms: Terms
    next_only: bool = False

    def fit(self, history: History, end: int, horizon: int, calendar: Calendar) -> Arrays:
        return {}

    def forecasts(
        self,
        fitted: Arrays,
        history: History,
        first: int,
        last: int,
        horizon: int,
        calendar: Calendar,
    ) -> Floats:
        parts = self.terms(history, horizon).items()
        total = np.zeros((history.clients, last - first))
        for lag, coefficient in parts:
            total += coefficient * history.lagged(first, last, lag)
        return total


def last_value(history: History, horizon: int) -> dict[int, float]:
    return {horizon: 1.0}


def one_period_ago(history: History, horizon: int) -> dict[int, float]:
    return {season_lag(history.period, horizon): 1.0}


def one_week_ago(history: History, horizon: int) -> dict[int, float]:
    return {season_lag(history.week, horizon): 1.0}


def drift(history: History, horizon: int) -> dict[int, float]:
    """The last value, moved on at the pace of the last period."""
    pace = horizon / history.period
    return {horizon: 1.0 + pace, horizon + history.period: -pace}


def change_of_period(history: History, horizon: int) -> dict[int, float]:
    """The last value and the change that followed at the same time one period ago."""
    season = season_lag(history.period, horizon)
    return _sum((horizon, 1.0), (season, 1.0), (season + horizon, -1.0))


def change_of_week(history: History, horizon: int) -> dict[int, float]:
    season = season_lag(history.week, horizon)
    return _sum((horizon, 1.0), (season, 1.0), (season + horizon, -1.0))


def _sum(*terms: tuple[int, float]) -> dict[int, float]:
    """Coefficients by lag; a lag named twice counts twice (it is, where horizon = season)."""
    total: dict[int, float] = {}
    for lag, coefficient in terms:
        total[lag] = total.get(lag, 0.0) + coefficient
    return total


Lags = Callable[[History, int], tuple[int, ...]]


def no_lags(history: History, horizon: int) -> tuple[int, ...]:
    """With the calendar alone: what is usual at this time, whatever came before."""
    return ()


def recent_lags(history: History, horizon: int) -> tuple[int, ...]:
    return tuple(range(horizon, horizon + 6))


def period_lags(history: History, horizon: int) -> tuple[int, ...]:
    """The newest three values and the same time of the last three periods."""
    p, near = history.period, season_lag(history.period, horizon)
    return _ordered(horizon, horizon + 1, horizon + 2, near, near + p, near + 2 * p)


def week_lags(history: History, horizon: int) -> tuple[int, ...]:
    """As period_lags, with the neighbours of one period and of one week ago."""
    near, week = season_lag(history.period, horizon), season_lag(history.week, horizon)
    around = [lag for lag in (near - 1, near + 1, week - 1, week, week + 1) if lag >= horizon]
    return _ordered(*period_lags(history, horizon), *around)


def _ordered(*lags: int) -> tuple[int, ...]:
    return tuple(sorted(set(lags)))


@dataclass(frozen=True)
class Linear:
    """Each client's own ridge regression on lags and, if asked, the calendar.

    With `change` it forecasts the difference to the last value from the lags' differences to it:
    then a shift of the level shifts the forecast by as much, which is what holidays need.
    """

    name: str
    lags: Lags
    change: bool = False
    calendar: bool = False
    next_only: bool = False

    def fit(self, history: History, end: int, horizon: int, calendar: Calendar) -> Arrays:
        """Coefficients from the steps before `end`."""
        fits: list[Ridge] = []
        for low in range(0, history.clients, CHUNK):
            clients = slice(low, low + CHUNK)
            x, base = self._features(history, 0, end, horizon, calendar, clients)
            y = history.observed[clients, :end] - base
            fits.append(fit_ridge(x, y, ~np.isnan(y) & ~np.isnan(x).any(axis=2)))
        return {
            "weights": np.concatenate([fit.weights for fit in fits]),
            "constant": np.concatenate([fit.constant for fit in fits]),
        }

    def forecasts(
        self,
        fitted: Arrays,
        history: History,
        first: int,
        last: int,
        horizon: int,
        calendar: Calendar,
    ) -> Floats:
        parts = []
        for low in range(0, history.clients, CHUNK):
            clients = slice(low, low + CHUNK)
            x, base = self._features(history, first, last, horizon, calendar, clients)
            ridge = Ridge(fitted["weights"][clients], fitted["constant"][clients])
            parts.append(ridge.predict(x) + base)
        return np.concatenate(parts)

    def _features(
        self,
        history: History,
        first: int,
        last: int,
        horizon: int,
        calendar: Calendar,
        clients: slice,
    ) -> tuple[Floats, Floats]:
        """Features [client, step, feature] and what the forecast is counted from [client, step]."""
        base = np.zeros((len(history.observed[clients]), last - first))
        lags = self.lags(history, horizon)
        x = np.empty((*base.shape, len(lags)))
        for i, lag in enumerate(lags):
            x[:, :, i] = history.lagged(first, last, lag, clients)
        if self.change:
            base = x[:, :, 0]  # the last value: lags are in order
            x = x[:, :, 1:] - base[:, :, None]
        if self.calendar:
            steps = np.arange(first, last)
            shared = calendar.columns(
                ("time", "free"), history.times(first, last), steps % history.period, history.period
            )
            x = np.concatenate([x, np.broadcast_to(shared, (len(x), *shared.shape))], axis=2)
        return x, base
