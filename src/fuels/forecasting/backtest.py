"""Backtesting: forecasts from several origins, each made with what was known at the time.

    plan = Plan(horizon=24, windows=7, step=24)
    for window in rolling(forecaster, panel, plan):
        window.table("FUELS", [80])    # unique_id, ds, cutoff, y, FUELS, FUELS-lo-80, ...

The last window ends with the data, the others `step` steps before each other. Without `refit`, one
training on the data before the first origin serves all windows, and the experts learn from each
value as it arrives, as `predict(frame=...)` would; `refit=2` trains again for every second window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from fuels.arrays import Floats
from fuels.data.panel import Panel
from fuels.errors import FuelsError
from fuels.experts.ensemble import forecast_ensemble
from fuels.experts.personal_model import Forecast, check_horizon, forecast
from fuels.storage.tables import in_zone, long_table

if TYPE_CHECKING:
    from fuels.forecasting.forecaster import Forecaster, Watch

REFERENCES = ("last value", "one period ago", "one week ago")


@dataclass(frozen=True)
class Plan:
    """Origins and horizon of a backtest, in steps."""

    horizon: int = 1
    windows: int = 1
    step: int = 1  # from one origin to the next
    refit: int = 0  # train again for every so many windows; 0: only for the first

    def __post_init__(self) -> None:
        check_horizon(self.horizon)
        for name, least in {"windows": 1, "step": 1, "refit": 0}.items():
            value = getattr(self, name)
            if isinstance(value, float) or value != int(value) or value < least:
                raise FuelsError(f"{name} must be a whole number, at least {least}; it is {value}")

    def origins(self, length: int) -> list[int]:
        """The number of known steps at each origin, for data of this length."""
        last = length - self.horizon
        return [last - self.step * k for k in reversed(range(self.windows))]

    def training(self, number: int) -> int:
        """The window before which the models of a window are trained."""
        return 1 if not self.refit else number - (number - 1) % self.refit

    def check(self, panel: Panel) -> None:
        """Refuse data that begin too late for the first origin."""
        if (first := self.origins(panel.length)[0]) < 1:
            raise FuelsError(
                f"{panel.name}: {self.windows} windows of {self.horizon} steps, {self.step} steps"
                f" apart, need more than the {panel.length} steps there are: the first would have"
                f" {max(first, 0)} steps to learn from"
            )


@dataclass(frozen=True)
class Window:
    """The forecasts of one origin, and what happened."""

    number: int
    cutoff: np.datetime64  # the last known step
    made: Forecast
    actual: Floats  # [client, step]; NaN where missing
    references: dict[str, Floats]  # by name, like `actual`

    def table(self, name: str, levels: Sequence[float], references: bool = False) -> pl.DataFrame:
        """One row per client and step, in Nixtla's columns, with the intervals of some levels."""
        made = self.made
        columns = {"y": self.actual, name: made.values}
        for level, lower, upper in zip(made.levels, made.lower, made.upper, strict=True):
            if level in levels:
                columns |= {f"{name}-lo-{level:g}": lower, f"{name}-hi-{level:g}": upper}
        if references:
            columns |= self.references
        cutoff = np.full(made.values.shape, self.cutoff.astype("datetime64[ms]"))
        frame = long_table(made.ids, made.times, {"cutoff": cutoff, **columns}, made.timezone)
        named = frame.rename({"client": "unique_id", "time": "ds"})
        values = pl.col(*columns).fill_nan(None)
        return in_zone(named, made.timezone, "cutoff").with_columns(values)


def rolling(
    forecaster: Forecaster,
    panel: Panel,
    plan: Plan,
    levels: Sequence[float] | None = None,
    watch: Watch | None = None,
    begun: Callable[[int], None] = lambda number: None,
    first: int = 1,
) -> Iterator[Window]:
    """The windows in order of time, from number `first` on; `forecaster` itself is not changed.

    `begun` is called with the number of each window, from 1; `watch` shows the trainings.
    """
    plan.check(panel)
    period = forecaster.settings.windows.period
    origins = plan.origins(panel.length)
    ensemble, fitted, trained = None, forecaster, 0
    for number in range(first, plan.windows + 1):
        begun(number)
        origin = origins[number - 1]
        known = replace(panel, values=panel.values[:origin])
        if trained != (needed := plan.training(number)):
            training = replace(panel, values=panel.values[: origins[needed - 1]])
            fitted, trained = forecaster.unfitted().fit_panel(training, watch), needed
            ensemble = fitted.learned(plan.horizon, levels)
        assert fitted.models is not None
        made = (
            forecast_ensemble(ensemble, known, plan.horizon)
            if ensemble is not None
            else forecast(fitted.models, known, plan.horizon)
        )
        rows = [panel.ids.index(client) for client in made.ids]
        after = panel.values[origin : origin + plan.horizon, rows].T
        past = known.values[:, rows]
        yield Window(number, known.times[-1], made, after, _references(past, panel, period, plan))


def _references(past: Floats, panel: Panel, period: int, plan: Plan) -> dict[str, Floats]:
    week = 7 * 86400 // panel.step_seconds
    lags = dict(zip(REFERENCES, (1, period, week), strict=True))
    if week == period or week > len(past):
        del lags["one week ago"]
    return {name: repeated(past, lag, plan.horizon) for name, lag in lags.items()}


def repeated(past: Floats, lag: int, horizon: int) -> Floats:
    """The newest known values a multiple of `lag` steps before each step ahead, [client, step]."""
    result = np.full((past.shape[1], horizon), np.nan)
    for h in range(horizon):
        for at in range(len(past) + h - lag * (h // lag + 1), -1, -lag):
            unknown = np.isnan(result[:, h])
            if not unknown.any():
                break
            result[unknown, h] = past[at, unknown]
    return result
