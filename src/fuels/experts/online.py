"""Pool, mixture and intervals at work together, for one horizon.

    online = start(Pool(), history, end)             # learn from the steps before `end`
    past = online.run(history, first, last)          # steps whose truth is known
    value, weights, bands = online.next(history)     # the step ahead

Before its first forecast the mixture has already learned on the last part of training, from
experts that were fitted on what came before that part: their errors there are honest, and they
start the weights, the usual errors and the intervals. Then the experts are fitted anew on all of
training. Guests are forecasts from elsewhere, such as a trained personal model's; where a guest
says nothing (as on the training part, which it has seen) it sleeps.

A forecast of step `end` made h steps ahead is made after step end - h, by experts that know the
steps up to end - 1: it knows its future. So the first step that counts is end + h - 1, in the
warm-up as after training: `first_honest(end, h)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

WARM_SHARE = 11 / 40  # of training, in whole periods: the mixture's own part

Guests = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Past:
    """What was forecast for some steps, each with what was known then."""

    experts: dict[str, Floats]  # [client, step] each, guests included
    mixed: Mixed
    bands: Bands


@dataclass(frozen=True)
class Online:
    """Experts that have learned, and a mixture and intervals that go on learning."""

    pool: FittedPool
    mixture: Mixture
    intervals: Intervals
    horizon: int
    warm_up: Past | None = None  # the mixture's part of training, which ends where training does

    def run(self, history: History, first: int, last: int, guests: Guests | None = None) -> Past:
        """Forecast steps first..last-1 and learn from them; every step must come once, in order.

        A guest's forecasts are [client, step] of the same steps.
        """
        if last > history.length:
            raise FuelsError(f"the truth of step {last - 1} is not known yet: use next")
        experts = self._experts(history, first, last, guests or {})
        truth = history.observed[:, first:last]
        mixed = self.mixture.run(truth, np.stack(list(experts.values())))
        return Past(experts, mixed, self.intervals.run(truth, mixed.combined, first))

    def skip(self, steps: int) -> None:
        """Pass over steps of which nothing is known; what waits for its time is learned."""
        unknown = np.full((self.pool.clients, min(steps, self.horizon)), np.nan)
        self.mixture.run(unknown, np.stack([unknown] * len(self.mixture.names)))
        self.intervals.run(unknown, unknown, 0)

    def next(self, history: History, guests: Guests | None = None) -> tuple[Floats, Floats, Bands]:
        """The value `horizon` steps after the end of the history.

        Returns values [client], the weights [client, expert] and the intervals. A guest's forecast
        is [client, 1]. Nothing is learned: `run` does that once the truth is there.
        """
        target = history.length + self.horizon - 1
        experts = self._experts(history, target, target + 1, guests or {})
        values, weights = self.mixture.next(np.stack(list(experts.values()))[:, :, 0])
        return values, weights, self.intervals.next(values, target)

    def arrays(self) -> State:
        """All that changes from step to step, to be saved; the pool has its own arrays."""
        parts = {"mixture": self.mixture.arrays(), "intervals": self.intervals.arrays()}
        return {f"{part}/{k}": v for part, arrays in parts.items() for k, v in arrays.items()}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        for part, owner in (("mixture", self.mixture), ("intervals", self.intervals)):
            start = f"{part}/"
            owner.load({k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)})

    def _experts(
        self, history: History, first: int, last: int, guests: Guests
    ) -> dict[str, Floats]:
        experts = self.pool.forecasts(history, first, last, self.horizon)
        names = self.mixture.names[len(experts) :]
        unknown = [name for name in guests if name not in names]
        if unknown:
            raise FuelsError(f"guest '{unknown[0]}' is not one of the mixture's ({list(names)})")
        shape = (history.clients, last - first)
        for name in names:
            forecasts = np.asarray(guests.get(name, np.full(shape, np.nan)), dtype=np.float64)
            if forecasts.shape != shape:
                raise FuelsError(
                    f"forecasts of guest '{name}' have shape {forecasts.shape}, needed is {shape}"
                )
            experts[name] = forecasts
        return experts


def start(
    pool: Pool,
    history: History,
    end: int,
    *,
    horizon: int = 1,
    levels: Sequence[float] = (80, 95),
    guests: Sequence[str] = (),
) -> Online:
    """Fit the experts on the steps before `end`, with weights and intervals warmed up.

    The first step to `run` is `first_honest(end, horizon)`.
    """
    period = history.period
    part = max(1, round(WARM_SHARE * end / period)) * period
    if end - part < 2 * period:
        raise FuelsError(
            f"{end} steps are too few to fit experts and to weigh them: 3 periods of {period} are"
            " the least"
        )
    # The part is that long for every horizon, as far as two periods are left to fit on.
    fitted = max(end - part - (horizon - 1), 2 * period)
    first = first_honest(fitted, horizon)
    early = fresh(pool.fit(history, fitted, (horizon,)), period, horizon, levels, guests)
    warm_up = early.run(history, first, end) if first < end else None
    online = replace(early, pool=pool.fit(history, end, (horizon,)), warm_up=warm_up)
    online.skip(first_honest(end, horizon) - end)
    return online


def first_honest(end: int, horizon: int) -> int:
    """The first step whose forecast `horizon` steps ahead is made after all steps before `end`."""
    return end + horizon - 1


def fresh(
    pool: FittedPool, period: int, horizon: int, levels: Sequence[float], guests: Sequence[str]
) -> Online:
    """Fitted experts with a mixture and intervals that have learned nothing yet."""
    names = [*pool.names(horizon), *guests]
    mixture = Mixture(pool.clients, names, delay=horizon)
    return Online(pool, mixture, Intervals(pool.clients, period, levels, delay=horizon), horizon)
