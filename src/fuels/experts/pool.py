"""The pool of local experts: cheap references that every client fits on its own past.

`Pool().fit(history, end)` learns from the steps before `end`; `FittedPool.forecasts` gives what
each expert would have said, h steps before each target, from the values known then. Forecasts are
on the normalised scale, [client, step]; NaN says that the expert has nothing to go by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fuels.data.calendar import Calendar
from fuels.errors import FuelsError
from fuels.experts.history import Floats, History
from fuels.experts.linear import (
    Arrays,
    Fixed,
    Linear,
    change_of_period,
    change_of_week,
    drift,
    last_value,
    no_lags,
    one_period_ago,
    one_week_ago,
    period_lags,
    recent_lags,
    week_lags,
)
from fuels.experts.smoothing import Smoothing


class Expert(Protocol):
    """A way to forecast; what it learns is a dict of arrays with the client first."""

    @property
    def name(self) -> str: ...

    @property
    def next_only(self) -> bool: ...  # whether it speaks of the next step alone

    def fit(self, history: History, end: int, horizon: int, calendar: Calendar) -> Arrays: ...

    def forecasts(
        self,
        fitted: Arrays,
        history: History,
        first: int,
        last: int,
        horizon: int,
        calendar: Calendar,
    ) -> Floats: ...


EXPERTS: tuple[Expert, ...] = (
    Fixed("last value", last_value),
    Fixed("one period ago", one_period_ago),
    Fixed("one week ago", one_week_ago),
    Fixed("drift", drift),
    Fixed("last value + change of a period ago", change_of_period),
    Fixed("last value + change of a week ago", change_of_week),
    Smoothing(),
    Linear("ridge, calendar", no_lags, calendar=True, next_only=True),
    Linear("ridge, recent lags, change", recent_lags, change=True),
    Linear("ridge, recent lags, calendar", recent_lags, calendar=True),
    Linear("ridge, period lags", period_lags),
    Linear("ridge, period lags, change", period_lags, change=True),
    Linear("ridge, weekly lags, change", week_lags, change=True),
    Linear("ridge, weekly lags, calendar", week_lags, calendar=True),
    Linear("ridge, weekly lags, calendar, change", week_lags, change=True, calendar=True),
)


@dataclass(frozen=True)
class Pool:
    """Experts before they have seen data."""

    experts: Sequence[Expert] = EXPERTS
    calendar: Calendar = field(default_factory=Calendar)

    def __post_init__(self) -> None:
        names = [expert.name for expert in self.experts]
        if not names or len(set(names)) != len(names):
            raise FuelsError(f"a pool needs experts of different names, it has {names}")

    def at(self, horizon: int) -> tuple[Expert, ...]:
        """The experts that speak `horizon` steps ahead."""
        return tuple(e for e in self.experts if horizon == 1 or not e.next_only)

    def fit(self, history: History, end: int, horizons: Sequence[int] = (1,)) -> FittedPool:
        """Fit every expert for every horizon on the steps before `end`."""
        if not 0 < end <= history.length:
            raise FuelsError(
                f"experts cannot be fitted on {end} steps: the history has {history.length}"
            )
        learned = {
            h: {e.name: e.fit(history, end, _checked(h), self.calendar) for e in self.at(h)}
            for h in horizons
        }
        return FittedPool(self, history.clients, learned)

    def load(self, arrays: Mapping[str, NDArray[np.float64]], clients: int) -> FittedPool:
        """A fitted pool from the arrays that `FittedPool.arrays` gave."""
        learned: dict[int, dict[str, Arrays]] = {}
        for key, value in arrays.items():
            horizon, name, part = key.split("/")
            if len(value) != clients:
                raise FuelsError(
                    f"expert '{name}' was fitted for {len(value)} clients, not {clients}"
                )
            fitted = learned.setdefault(int(horizon), {e.name: {} for e in self.at(int(horizon))})
            if name not in fitted:
                raise FuelsError(f"expert '{name}' is saved but not one of this pool")
            fitted[name][part] = value
        return FittedPool(self, clients, learned)


@dataclass(frozen=True)
class FittedPool:
    """Experts that have learned; `learned` is by horizon and expert."""

    pool: Pool
    clients: int
    learned: Mapping[int, Mapping[str, Arrays]]

    def names(self, horizon: int = 1) -> tuple[str, ...]:
        return tuple(expert.name for expert in self.pool.at(horizon))

    def forecasts(
        self, history: History, first: int, last: int, horizon: int = 1
    ) -> dict[str, Floats]:
        """Forecasts [client, step] of steps first..last-1, each made `horizon` steps before."""
        if _checked(horizon) not in self.learned:
            raise FuelsError(
                f"the experts were fitted for horizons {sorted(self.learned)}, not {horizon}"
            )
        if history.clients != self.clients:
            raise FuelsError(
                f"the experts were fitted for {self.clients} clients, the history has"
                f" {history.clients}"
            )
        if not 0 <= first < last <= history.length + horizon:
            raise FuelsError(
                f"no forecasts {horizon} ahead for steps {first} to {last}: the history ends at"
                f" step {history.length}"
            )
        learned = self.learned[horizon]
        return {
            e.name: e.forecasts(learned[e.name], history, first, last, horizon, self.pool.calendar)
            for e in self.pool.at(horizon)
        }

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """All that was learned, by horizon/expert/array, to be saved."""
        return {
            f"{horizon}/{name}/{part}": value
            for horizon, experts in self.learned.items()
            for name, fitted in experts.items()
            for part, value in fitted.items()
        }


def _checked(horizon: int) -> int:
    if horizon < 1:
        raise FuelsError(f"a horizon is at least 1 step, not {horizon}")
    return horizon
