"""The pool of local experts: cheap forecasters that each client fits on its own past.

`Pool().fit(history, end)` learns from the steps before `end`; `FittedPool.forecasts` gives the
forecast each expert would have made, h steps before each target, from the values known then.
Forecasts are on the normalised scale, [client, step]; NaN means that the expert abstains because it
lacks an input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from fuels.arrays import Floats
from fuels.errors import FuelsError
from fuels.experts.history import History
from fuels.experts.linear import (
    Arrays,
    FixedLinear,
    RidgeExpert,
    change_of_period,
    change_of_week,
    drift,
    fit_ridges,
    forecast_ridges,
    last_value,
    no_lags,
    one_period_ago,
    one_week_ago,
    period_lags,
    recent_lags,
    week_lags,
)
from fuels.experts.smoothing import Smoothing

NOTHING: Mapping[str, Arrays] = {}


class Expert(Protocol):
    """A forecaster that takes all its inputs from the history.

    `fit` returns what it learned from the steps before `end`, as arrays with the client first.
    """

    @property
    def name(self) -> str: ...

    @property
    def one_step_only(self) -> bool: ...  # whether it is left out beyond one step ahead

    @property
    def shared(self) -> bool: ...  # whether it needs what other clients share

    @property
    def pooled(self) -> bool: ...  # whether its arrays are common to all clients and given to `fit`

    def fit(self, history: History, end: int, horizon: int) -> Arrays: ...

    def forecasts(
        self, fitted: Arrays, history: History, first: int, last: int, horizon: int
    ) -> Floats: ...


EXPERTS: tuple[Expert, ...] = (
    FixedLinear("last value", last_value),
    FixedLinear("one period ago", one_period_ago),
    FixedLinear("one week ago", one_week_ago),
    FixedLinear("drift", drift),
    FixedLinear("last value + change of a period ago", change_of_period),
    FixedLinear("last value + change of a week ago", change_of_week),
    Smoothing(),
    RidgeExpert("ridge, calendar", no_lags, calendar=True, one_step_only=True),
    RidgeExpert("ridge, recent lags, change", recent_lags, change=True),
    RidgeExpert("ridge, recent lags, calendar", recent_lags, calendar=True),
    RidgeExpert("ridge, period lags", period_lags),
    RidgeExpert("ridge, period lags, change", period_lags, change=True),
    RidgeExpert("ridge, weekly lags, change", week_lags, change=True),
    RidgeExpert("ridge, weekly lags, calendar", week_lags, calendar=True),
    RidgeExpert("ridge, weekly lags, calendar, change", week_lags, change=True, calendar=True),
)


@dataclass(frozen=True)
class Pool:
    """Experts before fitting."""

    experts: Sequence[Expert] = EXPERTS

    def __post_init__(self) -> None:
        names = [expert.name for expert in self.experts]
        if not names or len(set(names)) != len(names):
            raise FuelsError(f"a pool needs experts with different names, it has {names}")

    def for_horizon(self, horizon: int) -> tuple[Expert, ...]:
        """The experts that forecast `horizon` steps ahead."""
        return tuple(e for e in self.experts if horizon == 1 or not e.one_step_only)

    def fit(
        self, history: History, end: int, horizon: int = 1, pooled: Mapping[str, Arrays] = NOTHING
    ) -> FittedPool:
        """Fit every expert on the steps before `end`, for forecasts `horizon` steps ahead.

        `pooled` has the arrays of the pooled experts, by name; one without them abstains, and so do
        those that correct it.
        """
        if horizon < 1:
            raise FuelsError(f"a horizon is at least 1 step, not {horizon}")
        if not 0 < end <= history.length:
            raise FuelsError(
                f"experts cannot be fitted on {end} steps: the history has {history.length}"
            )
        experts = {e.name: e for e in self.for_horizon(horizon)}
        ridges = [e for e in experts.values() if isinstance(e, RidgeExpert)]
        bases = {
            name: experts[name].forecasts(pooled.get(name, {}), history, 0, end, horizon)
            for name in {e.towards: None for e in ridges if e.towards}
        }
        learned: dict[str, Arrays] = dict(fit_ridges(ridges, history, end, horizon, bases))
        for name, e in experts.items():
            if name not in learned:
                learned[name] = pooled.get(name, {}) if e.pooled else e.fit(history, end, horizon)
        learned = {name: learned[name] for name in experts}
        return FittedPool(self, horizon, history.clients, learned)

    def load(self, arrays: Mapping[str, Floats], clients: int, horizon: int = 1) -> FittedPool:
        """A fitted pool from the arrays of `FittedPool.arrays`."""
        experts = {e.name: e for e in self.for_horizon(horizon)}
        learned: dict[str, Arrays] = {name: {} for name in experts}
        for key, value in arrays.items():
            name, part = key.partition("/")[2].rsplit("/", 1)
            if name not in learned:
                raise FuelsError(f"expert '{name}' is in the file but not in this pool")
            if len(value) != clients and not experts[name].pooled:
                raise FuelsError(
                    f"expert '{name}' was fitted for {len(value)} clients, not {clients}"
                )
            learned[name][part] = np.array(value)  # which may be a view of a file
        return FittedPool(self, horizon, clients, learned)


@dataclass(frozen=True)
class FittedPool:
    """Experts fitted for one horizon."""

    pool: Pool
    horizon: int
    clients: int
    learned: Mapping[str, Arrays]  # by expert

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.learned)

    def forecasts(self, history: History, first: int, last: int) -> dict[str, Floats]:
        """Forecasts [client, step] of steps first..last-1, each made `horizon` steps before."""
        if history.clients != self.clients:
            raise FuelsError(
                f"the experts were fitted for {self.clients} clients, the history has"
                f" {history.clients}"
            )
        if not 0 <= first < last <= history.length + self.horizon:
            raise FuelsError(
                f"no forecasts {self.horizon} steps ahead for steps {first} to {last}: the history"
                f" ends at step {history.length}"
            )
        experts = self.pool.for_horizon(self.horizon)
        ridges = [e for e in experts if isinstance(e, RidgeExpert)]
        found = forecast_ridges(ridges, self.learned, history, first, last, self.horizon)
        made = {
            e.name: found[e.name]
            if e.name in found
            else e.forecasts(self.learned[e.name], history, first, last, self.horizon)
            for e in experts
        }
        for e in experts:
            if isinstance(e, RidgeExpert) and e.towards:
                made[e.name] += made[e.towards]
        return made

    def part(self, rows: slice) -> FittedPool:
        """The experts of some clients."""
        clients = len(range(*rows.indices(self.clients)))
        learned = {
            name: fitted if self._pooled(name) else {k: a[rows] for k, a in fitted.items()}
            for name, fitted in self.learned.items()
        }
        return replace(self, clients=clients, learned=learned)

    @classmethod
    def joined(cls, parts: Sequence[FittedPool]) -> FittedPool:
        """The experts of several groups of clients."""
        learned = {
            name: fitted
            if parts[0]._pooled(name)
            else {k: np.concatenate([part.learned[name][k] for part in parts]) for k in fitted}
            for name, fitted in parts[0].learned.items()
        }
        return replace(parts[0], clients=sum(part.clients for part in parts), learned=learned)

    @property
    def shared(self) -> tuple[str, ...]:
        """The names of the experts that need what other clients share."""
        return tuple(e.name for e in self.pool.for_horizon(self.horizon) if e.shared)

    @property
    def using_inputs(self) -> tuple[str, ...]:
        """The names of the experts that need external inputs."""
        experts = self.pool.for_horizon(self.horizon)
        return tuple(e.name for e in experts if isinstance(e, RidgeExpert) and e.inputs)

    def pooled(self) -> dict[str, Arrays]:
        """The arrays of the pooled experts, by name: they serve clients without a fit too."""
        return {name: self.learned[name] for name in self.learned if self._pooled(name)}

    def _pooled(self, name: str) -> bool:
        return any(e.pooled for e in self.pool.experts if e.name == name)

    def arrays(self) -> dict[str, Floats]:
        """What was learned, by horizon/expert/array, to be saved."""
        return {
            f"{self.horizon}/{name}/{part}": value
            for name, fitted in self.learned.items()
            for part, value in fitted.items()
        }
