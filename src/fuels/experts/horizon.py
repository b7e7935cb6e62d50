"""The expert pool, its mixture and its intervals for one horizon.

    ensemble = fit_horizon(Pool(), history, end)      # fit on the steps before `end`
    backtest = ensemble.run(history, first, last)     # forecast and learn steps with known values
    value, weights, bands = ensemble.next(history)    # forecast beyond the end of the history

The mixture warms up on the last part of training, with experts fitted on what precedes that part:
their errors there are out of sample, and they initialise the weights, the typical errors and the
intervals. The experts are then refitted on all of training. External experts are forecasts computed
elsewhere, such as those of the personal model. An expert whose forecast is NaN abstains ("sleeps",
in the literature on sleeping experts); the personal model abstains on its own training part.

A forecast of step `end` made h steps ahead is made after step end - h, yet experts fitted on the
steps up to end - 1 have already seen what follows. The first step whose forecast leaks nothing is
therefore end + h - 1, in the warm-up as well as after training: `first_out_of_sample(end, h)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.experts.history import Floats, History
from fuels.experts.intervals import Bands, Intervals
from fuels.experts.mixture import Mixed, Mixture
from fuels.experts.pool import FittedPool, Pool
from fuels.experts.state import State

WARM_SHARE = 11 / 40  # of training, in whole periods: the warm-up

External = Mapping[str, NDArray[Any]]  # forecasts by expert, [client, step]


@dataclass(frozen=True)
class Backtest:
    """Forecasts of past steps, each made from what was known at the time."""

    experts: dict[str, Floats]  # [client, step] each, external experts included
    mixed: Mixed
    bands: Bands


@dataclass(frozen=True)
class HorizonEnsemble:
    """Fitted experts, with a mixture and intervals that keep learning."""

    pool: FittedPool
    mixture: Mixture
    intervals: Intervals
    warm_up: Backtest | None = None  # its last step is the last one of training

    @property
    def horizon(self) -> int:
        return self.mixture.delay

    def run(
        self, history: History, first: int, last: int, external: External | None = None
    ) -> Backtest:
        """Forecast steps first..last-1 and learn from them; pass each step once, in order."""
        if last > history.length:
            raise FuelsError(f"the value of step {last - 1} is not known yet: use next")
        experts = self._experts(history, first, last, external or {})
        truth = history.observed[:, first:last]
        mixed = self.mixture.run(truth, np.stack(list(experts.values())))
        return Backtest(experts, mixed, self.intervals.run(truth, mixed.combined, first))

    def skip(self, steps: int) -> None:
        """Advance over steps without data; pending steps are learned on the way."""
        unknown = np.full((self.pool.clients, min(steps, self.horizon)), np.nan)
        self.mixture.run(unknown, np.stack([unknown] * len(self.mixture.names)))
        self.intervals.run(unknown, unknown, 0)

    def next(
        self, history: History, external: External | None = None
    ) -> tuple[Floats, Floats, Bands]:
        """The value `horizon` steps after the end of the history; changes nothing.

        Returns values [client], weights [client, expert] and intervals.
        """
        target = history.length + self.horizon - 1
        experts = self._experts(history, target, target + 1, external or {})
        values, weights = self.mixture.next(np.stack(list(experts.values()))[:, :, 0])
        return values, weights, self.intervals.next(values, target)

    def copy(self) -> HorizonEnsemble:
        """A copy that learns independently."""
        return replace(self, mixture=deepcopy(self.mixture), intervals=deepcopy(self.intervals))

    def with_levels(
        self, history: History, end: int, levels: Sequence[float]
    ) -> HorizonEnsemble | None:
        """A copy as fitted on the steps before `end`, with intervals for other levels.

        The intervals repeat the warm-up, whose forecasts do not depend on the levels. Returns None
        if these forecasts are not at hand.
        """
        if self.warm_up is None:
            return None
        points = self.warm_up.mixed.combined
        first = end - points.shape[1]
        intervals = Intervals(self.pool.clients, history.period, levels, self.horizon)
        intervals.run(history.observed[:, first:end], points, first)
        unknown = np.full((self.pool.clients, self.horizon - 1), np.nan)
        intervals.run(unknown, unknown, 0)
        return replace(self, mixture=deepcopy(self.mixture), intervals=intervals)

    def arrays(self) -> State:
        """The state that changes from step to step; the pool has its own arrays."""
        parts = {"mixture": self.mixture.arrays(), "intervals": self.intervals.arrays()}
        return {f"{part}/{k}": v for part, arrays in parts.items() for k, v in arrays.items()}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        for part, owner in (("mixture", self.mixture), ("intervals", self.intervals)):
            start = f"{part}/"
            owner.load({k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)})

    def _experts(
        self, history: History, first: int, last: int, external: External
    ) -> dict[str, Floats]:
        experts = self.pool.forecasts(history, first, last)
        names = self.mixture.names[len(experts) :]
        if unknown := [name for name in external if name not in names]:
            raise FuelsError(
                f"external expert '{unknown[0]}' is not in the mixture (it has {list(names)})"
            )
        shape = (history.clients, last - first)
        for name in names:
            forecasts = np.asarray(external.get(name, np.full(shape, np.nan)), dtype=np.float64)
            if forecasts.shape != shape:
                raise FuelsError(
                    f"forecasts of external expert '{name}' have shape {forecasts.shape}, not"
                    f" {shape}"
                )
            experts[name] = forecasts
        return experts


def fit_horizon(
    pool: Pool,
    history: History,
    end: int,
    *,
    horizon: int = 1,
    levels: Sequence[float] = (80, 95),
    external: Sequence[str] = (),
) -> HorizonEnsemble:
    """Fit the experts on the steps before `end`, and warm up the mixture and the intervals.

    The first step to `run` is `first_out_of_sample(end, horizon)`.
    """
    period = history.period
    part = max(1, round(WARM_SHARE * end / period)) * period
    if end - part < 2 * period:
        raise FuelsError(
            f"{end} steps are too few to fit and weight the experts: at least 3 periods of"
            f" {period} steps are needed"
        )
    # The warm-up is equally long for every horizon, as long as two periods remain to fit on.
    fitted = max(end - part - (horizon - 1), 2 * period)
    first = first_out_of_sample(fitted, horizon)
    early = untrained(pool.fit(history, fitted, horizon), period, levels, external)
    warm_up = early.run(history, first, end) if first < end else None
    ensemble = replace(early, pool=pool.fit(history, end, horizon), warm_up=warm_up)
    ensemble.skip(horizon - 1)
    return ensemble


def first_out_of_sample(end: int, horizon: int) -> int:
    """The first step whose forecast `horizon` steps ahead is made after all steps before `end`."""
    return end + horizon - 1


def untrained(
    pool: FittedPool, period: int, levels: Sequence[float], external: Sequence[str]
) -> HorizonEnsemble:
    """Fitted experts with a mixture and intervals in their initial state."""
    mixture = Mixture(pool.clients, [*pool.names, *external], delay=pool.horizon)
    return HorizonEnsemble(
        pool, mixture, Intervals(pool.clients, period, levels, delay=pool.horizon)
    )
