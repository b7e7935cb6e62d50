"""Linear experts: weighted sums of lagged values, with fixed or fitted coefficients.

For a target h steps ahead only lags of at least h are known. A shorter seasonal lag is moved back
by whole seasons, so that it is known at every horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fuels.arrays import Floats
from fuels.experts.history import Columns, History
from fuels.experts.ridge import PENALTIES, SHRINKAGES, Ridge, fit_ridge
from fuels.kernels.dispatch import has_twin

CHUNK = 64  # clients fitted at once, to limit the memory for their features

Arrays = dict[str, Floats]
Terms = Callable[[History, int], Mapping[int, float]]


def season_lag(season: int, horizon: int) -> int:
    """The smallest multiple of the season that is known `horizon` steps ahead."""
    return -(-horizon // season) * season


@dataclass(frozen=True)
class FixedLinear:
    """An expert with nothing to fit: coefficients by lag, given history and horizon."""

    name: str
    terms: Terms
    one_step_only: bool = False
    shared: bool = False
    pooled: bool = False

    def fit(self, history: History, end: int, horizon: int) -> Arrays:
        return {}

    def forecasts(
        self, fitted: Arrays, history: History, first: int, last: int, horizon: int
    ) -> Floats:
        total = np.zeros((history.clients, last - first))
        for lag, coefficient in self.terms(history, horizon).items():
            total += coefficient * history.lagged(first, last, lag)
        return total


def last_value(history: History, horizon: int) -> dict[int, float]:
    return {horizon: 1.0}


def one_period_ago(history: History, horizon: int) -> dict[int, float]:
    return {season_lag(history.period, horizon): 1.0}


def one_week_ago(history: History, horizon: int) -> dict[int, float]:
    return {season_lag(history.week, horizon): 1.0}


def drift(history: History, horizon: int) -> dict[int, float]:
    """The last value plus the trend of the last period."""
    pace = horizon / history.period
    return {horizon: 1.0 + pace, horizon + history.period: -pace}


def change_of_period(history: History, horizon: int) -> dict[int, float]:
    """The last value plus the change that followed at the same time one period ago."""
    season = season_lag(history.period, horizon)
    return _sum((horizon, 1.0), (season, 1.0), (season + horizon, -1.0))


def change_of_week(history: History, horizon: int) -> dict[int, float]:
    season = season_lag(history.week, horizon)
    return _sum((horizon, 1.0), (season, 1.0), (season + horizon, -1.0))


def _sum(*terms: tuple[int, float]) -> dict[int, float]:
    """Coefficients by lag, added up where a lag occurs twice (horizon = season)."""
    total: dict[int, float] = {}
    for lag, coefficient in terms:
        total[lag] = total.get(lag, 0.0) + coefficient
    return total


Lags = Callable[[History, int], tuple[int, ...]]


def no_lags(history: History, horizon: int) -> tuple[int, ...]:
    """For the calendar only: the usual value at this time, whatever came before."""
    return ()


def recent_lags(history: History, horizon: int) -> tuple[int, ...]:
    return tuple(range(horizon, horizon + 6))


def day_lags(history: History, horizon: int) -> tuple[int, ...]:
    """The newest six values and those around the same time one period ago."""
    near = season_lag(history.period, horizon)
    around = [lag for lag in (near - 1, near, near + 1) if lag >= horizon]
    return _ordered(*recent_lags(history, horizon), *around)


def period_lags(history: History, horizon: int) -> tuple[int, ...]:
    """The newest three values and the same time of the last three periods."""
    p, near = history.period, season_lag(history.period, horizon)
    return _ordered(horizon, horizon + 1, horizon + 2, near, near + p, near + 2 * p)


def week_lags(history: History, horizon: int) -> tuple[int, ...]:
    """As period_lags, with the neighbours of one period and of one week ago."""
    near, week = season_lag(history.period, horizon), season_lag(history.week, horizon)
    around = [lag for lag in (near - 1, near + 1, week - 1, week, week + 1) if lag >= horizon]
    return _ordered(*period_lags(history, horizon), *around)


def live_lags(history: History, horizon: int) -> tuple[int, ...]:
    """The newest three live means, and those of one period and one week ago with the one before."""
    near, week = season_lag(history.period, horizon), season_lag(history.week, horizon)
    return _ordered(horizon, horizon + 1, horizon + 2, near, near + 1, week, week + 1)


def _ordered(*lags: int) -> tuple[int, ...]:
    return tuple(sorted(set(lags)))


@dataclass(frozen=True)
class RidgeExpert:
    """A ridge regression per client on the columns it declares.

    With `change` it forecasts the difference from the last value, and the lags enter as differences
    from it: a shift in level then shifts the forecast equally, which helps on holidays.

    With `towards` it forecasts a correction of a pooled ridge on the same lags, so that its penalty
    draws the coefficients towards those of all clients; the pool adds the two.
    """

    name: str
    lags: Lags
    change: bool = False
    calendar: bool = False
    one_step_only: bool = False
    live: bool = False  # whether it also sees the live mean, with `change` as changes of that mean
    pooled: bool = False
    towards: str = ""  # the pooled ridge that it corrects
    inputs: tuple[str, ...] = ()  # external inputs that it also sees

    @property
    def shared(self) -> bool:
        return self.live or bool(self.towards)

    def columns(self, history: History, horizon: int) -> Columns:
        """The inputs of a forecast `horizon` steps ahead."""
        live = live_lags(history, horizon) if self.live else ()
        since = sorted({0, horizon, season_lag(history.period, horizon)})
        inputs = tuple((name, lag) for name in self.inputs for lag in since)
        return Columns(self.lags(history, horizon), self.calendar, live, inputs)

    @property
    def may_lack_rows(self) -> bool:
        """Whether an input may not go back far enough to fit it: then it abstains."""
        return bool(self.live and not self.towards) or bool(self.inputs)

    def fit(self, history: History, end: int, horizon: int, pooled: Floats | None = None) -> Arrays:
        """Fit on the steps before `end`; `pooled` [client, step] are forecasts to be corrected."""
        fits: list[Ridge] = []
        scales = history.input_scales(self.inputs, end) if self.inputs else None
        for clients in _chunks(history):
            x, base = self._features(history, 0, end, horizon, clients, scales)
            y = history.observed[clients, :end] - (base if pooled is None else pooled[clients])
            used = ~np.isnan(y) & ~np.isnan(x).any(axis=2)
            fits.append(fit_ridge(x, y, used, SHRINKAGES if self.towards else PENALTIES))
            if self.may_lack_rows:
                fits[-1].weights[used.sum(axis=1) < x.shape[2]] = np.nan
        return {
            "weights": np.concatenate([fit.weights for fit in fits]),
            "constant": np.concatenate([fit.constant for fit in fits]),
            **({} if scales is None else {"scales": scales}),
        }

    def forecasts(
        self, fitted: Arrays, history: History, first: int, last: int, horizon: int
    ) -> Floats:
        parts = []
        for clients in _chunks(history):
            x, base = self._features(history, first, last, horizon, clients, fitted.get("scales"))
            ridge = Ridge(fitted["weights"][clients], fitted["constant"][clients])
            parts.append(ridge.predict(x) + (0.0 if self.towards else base))
        return np.concatenate(parts)

    def _features(
        self,
        history: History,
        first: int,
        last: int,
        horizon: int,
        clients: slice,
        scales: Floats | None,
    ) -> tuple[Floats, Floats]:
        """Features [client, step, column] and the value that the forecast is added to.

        External inputs, which need `scales`, come after the lags and before the calendar.
        """
        columns = self.columns(history, horizon)
        x, base = self._own_features(history, columns, first, last, clients)
        if scales is None:
            return x, base
        inputs = history.input_columns(columns.inputs, scales[clients], first, last, clients)
        dense = len(columns.lags) + len(columns.live)
        dense -= self.change * (1 + bool(columns.live))
        return np.insert(x, [dense], np.stack(inputs, axis=2), axis=2), base

    def _own_features(
        self, history: History, columns: Columns, first: int, last: int, clients: slice
    ) -> tuple[Floats, Floats]:
        x = history.columns(columns, first, last, clients)
        if not self.change:
            return x, np.zeros(x.shape[:2])
        base = x[:, :, 0]  # the last value: lags are in ascending order
        own = len(columns.lags)
        newest = x[:, :, own].copy() if columns.live else None
        x = np.delete(x, [0, own] if columns.live else [0], axis=2)
        x[:, :, : own - 1] -= base[:, :, None]
        if newest is not None:
            x[:, :, own - 1 : own - 2 + len(columns.live)] -= newest[:, :, None]
        return x, base


def _chunks(history: History) -> Iterator[slice]:
    return (slice(low, low + CHUNK) for low in range(0, history.clients, CHUNK))


@has_twin("fuels.experts.regressions")
def fit_ridges(
    experts: Sequence[RidgeExpert],
    history: History,
    end: int,
    horizon: int,
    bases: Mapping[str, Floats],
) -> dict[str, Arrays]:
    """What ridge experts learn from the steps before `end`, by name.

    `bases` are forecasts [client, step] by pooled ridges, for the experts that correct them.
    """
    return {e.name: e.fit(history, end, horizon, bases.get(e.towards)) for e in experts}


@has_twin("fuels.experts.regressions")
def forecast_ridges(
    experts: Sequence[RidgeExpert],
    learned: Mapping[str, Arrays],
    history: History,
    first: int,
    last: int,
    horizon: int,
) -> dict[str, Floats]:
    """Forecasts [client, step] of steps first..last-1 by ridge experts, by name."""
    return {e.name: e.forecasts(learned[e.name], history, first, last, horizon) for e in experts}
