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

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats, Integers
from fuels.errors import FuelsError
from fuels.experts.blend import Blend, shares
from fuels.experts.groups import by_groups
from fuels.experts.history import History
from fuels.experts.input_mixture import InputMixture, base_of, mixture_of
from fuels.experts.intervals import Bands, Intervals
from fuels.experts.linear import Arrays
from fuels.experts.mixture import Mixed, Mixture
from fuels.experts.pool import FittedPool, Pool
from fuels.experts.state import State
from fuels.storage.checkpoint import prefixed, unprefixed

WARM_SHARE = 11 / 40  # of training, in whole periods: the warm-up

External = Mapping[str, NDArray[Any]]  # forecasts by expert, [client, step]
PooledArrays = Callable[[int], Mapping[str, Arrays]]  # by expert, from the steps before an end


@dataclass(frozen=True)
class Backtest:
    """Forecasts of past steps, each made from what was known at the time."""

    experts: dict[str, Floats]  # [client, step] each, external experts included
    mixed: Mixed
    bands: Bands

    @classmethod
    def joined(cls, parts: Sequence[Backtest]) -> Backtest:
        """The forecasts of several groups of clients."""
        mixed, bands = [part.mixed for part in parts], [part.bands for part in parts]
        whole = Mixed(
            np.concatenate([one.combined for one in mixed]),
            np.concatenate([one.weights for one in mixed], axis=1),
            np.concatenate([one.learners for one in mixed], axis=1),
            np.concatenate([one.trust for one in mixed], axis=1),
        )
        lower = np.concatenate([one.lower for one in bands], axis=1)
        upper = np.concatenate([one.upper for one in bands], axis=1)
        names = parts[0].experts
        experts = {name: np.concatenate([part.experts[name] for part in parts]) for name in names}
        return cls(experts, whole, Bands(bands[0].levels, lower, upper))


@dataclass(frozen=True)
class HorizonEnsemble:
    """Fitted experts, with a mixture and intervals that keep learning."""

    pool: FittedPool
    mixture: Mixture | Blend | InputMixture
    intervals: Intervals
    warm_up: Backtest | None = None  # its last step is the last one of training
    warm_points: Floats | None = None  # and its forecasts [client, step], which take less memory

    @property
    def horizon(self) -> int:
        return self.mixture.delay

    def run(
        self, history: History, first: int, last: int, external: External | None = None
    ) -> Backtest:
        """Forecast steps first..last-1 and learn from them; pass each step once, in order."""
        made = self._run(history, first, last, external or {}, keep=True)
        return Backtest.joined([part for part in made if part is not None])

    def advance(
        self, history: History, first: int, last: int, external: External | None = None
    ) -> None:
        """As `run`, without keeping the forecasts."""
        self._run(history, first, last, external or {}, keep=False)

    def _run(
        self,
        history: History,
        first: int,
        last: int,
        external: External,
        keep: bool,
    ) -> list[Backtest | None]:
        if last > history.length:
            raise FuelsError(f"the value of step {last - 1} is not known yet: use next")
        self.check_external(external, (history.clients, last - first))

        def run(rows: slice) -> Backtest | None:
            part, own = self.part(rows), history.take(rows)
            experts = part.experts(own, first, last, {k: f[rows] for k, f in external.items()})
            made = part.learn(experts, own.observed[:, first:last], first, keep)
            return made if keep else None

        parts = by_groups(history.clients, run)
        self.mixture.count(last - first)
        self.intervals.count(last - first)
        return parts

    def part(self, rows: slice) -> HorizonEnsemble:
        """The ensemble of some clients; what it learns, the whole has learned."""
        return HorizonEnsemble(
            self.pool.part(rows), self.mixture.part(rows), self.intervals.part(rows)
        )

    @classmethod
    def joined(cls, parts: Sequence[HorizonEnsemble]) -> HorizonEnsemble:
        """The ensemble of several groups of clients."""
        mixtures: list[Any] = [part.mixture for part in parts]
        warm_ups = [part.warm_up for part in parts if part.warm_up is not None]
        points = [part.warm_points for part in parts if part.warm_points is not None]
        return cls(
            FittedPool.joined([part.pool for part in parts]),
            type(mixtures[0]).joined(mixtures),
            Intervals.joined([part.intervals for part in parts]),
            Backtest.joined(warm_ups) if warm_ups else None,
            np.concatenate(points) if points else None,
        )

    def learn(
        self, experts: dict[str, Floats], truth: Floats, first: int, details: bool = True
    ) -> Backtest:
        """Combine and learn from forecasts [client, step] of steps from `first` on."""
        mixed = self.mixture.run(truth, np.stack(list(experts.values())), details)
        mixed = replace(mixed, combined=self.intervals.confined(mixed.combined))
        return Backtest(experts, mixed, self.intervals.run(truth, mixed.combined, first))

    def skip(self, steps: int) -> None:
        """Advance over steps without data; pending steps are learned on the way."""
        unknown = np.full((self.pool.clients, min(steps, self.horizon)), np.nan)
        self.mixture.run(unknown, np.stack([unknown] * len(self.mixture.names)), details=False)
        self.intervals.run(unknown, unknown, 0)

    def next(
        self, history: History, external: External | None = None
    ) -> tuple[Floats, Floats, Bands]:
        """The value `horizon` steps after the end of the history; changes nothing.

        Returns values [client], weights [client, expert] and intervals.
        """
        target = history.length + self.horizon - 1
        experts = self.experts(history, target, target + 1, external or {})
        values, weights = self.mixture.next(np.stack(list(experts.values()))[:, :, 0])
        values = self.intervals.confined(values)
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
        if (points := self.warm_points) is None:
            return None
        first = end - points.shape[1]
        limits = self.intervals.limits
        intervals = Intervals(
            self.pool.clients, history.period, levels, self.horizon, limits=limits
        )
        intervals.run(history.observed[:, first:end], points, first)
        unknown = np.full((self.pool.clients, self.horizon - 1), np.nan)
        intervals.run(unknown, unknown, 0)
        return replace(self, mixture=deepcopy(self.mixture), intervals=intervals)

    def arrays(self, copy: bool = True) -> State:
        """The state that changes from step to step; the pool has its own arrays."""
        mixture = prefixed("mixture", self.mixture.arrays(copy))
        return mixture | prefixed("intervals", self.intervals.arrays(copy))

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.mixture.load(unprefixed("mixture", arrays))
        self.intervals.load(unprefixed("intervals", arrays))

    def experts(
        self, history: History, first: int, last: int, external: External
    ) -> dict[str, Floats]:
        """Forecasts of all experts; an external one that is not given abstains."""
        experts = self.pool.forecasts(history, first, last)
        shape = (history.clients, last - first)
        self.check_external(external, shape)
        for name in self.mixture.names[len(experts) :]:
            experts[name] = np.asarray(external.get(name, np.full(shape, np.nan)), np.float64)
        return experts

    def check_external(self, external: External, shape: tuple[int, int]) -> None:
        """Refuse forecasts of an unknown expert, or of other clients and steps."""
        names = self.mixture.names[len(self.pool.names) :]
        for name, forecasts in external.items():
            if name not in names:
                raise FuelsError(
                    f"external expert '{name}' is not in the mixture (it has {list(names)})"
                )
            if np.shape(forecasts) != shape:
                raise FuelsError(
                    f"forecasts of external expert '{name}' have shape {np.shape(forecasts)}, not"
                    f" {shape}"
                )


def fit_horizon(
    pool: Pool,
    history: History,
    end: int,
    *,
    horizon: int = 1,
    levels: Sequence[float] = (80, 95),
    external: Sequence[str] = (),
    pooled: PooledArrays | None = None,
    limits: Floats | None = None,
    keep: bool = True,
) -> HorizonEnsemble:
    """Fit the experts on the steps before `end`, and warm up the mixture and the intervals.

    `keep` keeps all forecasts of the warm-up. `limits` [client, 2] are the least and largest
    possible values, on the scale of the history.

    The first step to `run` is `first_out_of_sample(end, horizon)`. `pooled(end)` gives the arrays
    of the pooled experts from the steps before `end`; with it, each client's warm-up is as long as
    its history allows.
    """
    period = history.period
    fitted = warm_up_begins(end, period, horizon)
    first = first_out_of_sample(fitted, horizon)
    before, whole = ({}, {}) if pooled is None else (pooled(fitted), pooled(end))

    def fit(rows: slice) -> HorizonEnsemble:
        own = history.take(rows)
        bounds = None if limits is None else limits[rows]
        early = pool.fit(own, fitted, horizon, before)
        ensemble = untrained(early, period, levels, external, bounds)
        if isinstance(base := base_of(ensemble.mixture), Blend):
            base.state["share"] = shares(own, end, horizon)
        warm_up, points = None, None
        if first < end:
            experts = ensemble.experts(own, first, end, {})
            truth = own.observed[:, first:end]
            if pooled is not None:
                truth = truth.copy()
                _later_warm_ups(pool, own, (fitted, end), horizon, before, experts, truth)
            warm_up = ensemble.learn(experts, truth, first, keep)
            points = warm_up.mixed.combined
        ensemble.skip(horizon - 1)
        return replace(
            ensemble,
            pool=pool.fit(own, end, horizon, whole),
            warm_up=warm_up if keep else None,
            warm_points=points,
        )

    return HorizonEnsemble.joined(by_groups(history.clients, fit))


def warm_up_begins(end: int, period: int, horizon: int) -> int:
    """The step at which the warm-up of a training part of `end` steps begins."""
    part = max(1, round(WARM_SHARE * end / period)) * period
    if end - part < 2 * period:
        raise FuelsError(
            f"{end} steps are too few to fit and weight the experts: at least 3 periods of"
            f" {period} steps are needed"
        )
    # The warm-up is equally long for every horizon, as long as two periods remain to fit on.
    return max(end - part - (horizon - 1), 2 * period)


def _later_warm_ups(
    pool: Pool,
    history: History,
    span: tuple[int, int],
    horizon: int,
    pooled: Mapping[str, Arrays],
    experts: dict[str, Floats],
    truth: Floats,
) -> None:
    """Let clients with a short history warm up on the last part of it.

    Replaces their forecasts [client, step] in `experts` by those of experts fitted on the steps
    before that part, and removes the truth of earlier steps.
    """
    fitted, end = span
    starts = own_warm_ups(history, end, fitted, horizon)
    for start in np.unique(starts[starts > fitted]):
        rows = np.flatnonzero(starts == start)
        few, skipped = history.take(rows), int(start) - fitted
        truth[rows, :skipped] = np.nan
        made: dict[str, Floats] = {}
        if first_out_of_sample(int(start), horizon) < end:
            again = pool.fit(few, int(start), horizon, pooled)
            made = again.forecasts(few, first_out_of_sample(int(start), horizon), end)
        for name, forecasts in experts.items():
            forecasts[rows] = np.nan
            if name in made:
                forecasts[rows, skipped:] = made[name]


def own_warm_ups(history: History, end: int, fitted: int, horizon: int) -> Integers:
    """The step at which the warm-up of each client begins, at least `fitted`, [client].

    As for the whole group, two periods of the client's own values remain to fit on.
    """
    known = ~np.isnan(history.observed[:, :end])
    begin = known.argmax(axis=1) // history.period * history.period
    part = np.maximum(1, np.round(WARM_SHARE * (end - begin) / history.period)) * history.period
    start = np.maximum(end - part - (horizon - 1), begin + 2 * history.period)
    start = np.where(known.any(axis=1), start, fitted)
    return np.clip(start, fitted, end).astype(np.int64)


def first_out_of_sample(end: int, horizon: int) -> int:
    """The first step whose forecast `horizon` steps ahead is made after all steps before `end`."""
    return end + horizon - 1


def untrained(
    pool: FittedPool,
    period: int,
    levels: Sequence[float],
    external: Sequence[str],
    limits: Floats | None = None,
    saved: Mapping[str, NDArray[Any]] | None = None,
) -> HorizonEnsemble:
    """Fitted experts with a mixture and intervals in their initial state.

    `saved` are the arrays that will be loaded: those of earlier versions need another mixture.
    """
    names, start = [*pool.names, *external], "mixture/"
    state = None if saved is None else [k.removeprefix(start) for k in saved if k.startswith(start)]
    mixture = mixture_of(pool, names, pool.shared, state)
    intervals = Intervals(pool.clients, period, levels, delay=pool.horizon, limits=limits)
    return HorizonEnsemble(pool, mixture, intervals)
