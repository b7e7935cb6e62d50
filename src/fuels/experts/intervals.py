"""Prediction intervals that keep their coverage while the series changes.

Adaptive conformal inference, per client and horizon. The radius around a point forecast is

    typical error at this time of the period  x  quantile of the last scores  x  exp(correction)

A score is an error divided by the typical error at that time. After each observed value the
correction of a level moves up by rate x level if the value fell outside, and down by
rate x (1 - level) if inside. Over n steps the share outside therefore differs from the nominal one
by at most the change of the correction / (rate n), whatever the series does (Gibbs and
Candes 2021; here on the logarithm of the radius, whereas the quantile tracking of Angelopoulos,
Candes and Tibshirani 2023 works on the radius itself).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.experts.state import State, copied, restored
from fuels.kernels.intervals import run, step_ahead

Floats = NDArray[np.float64]

MOST_SLOTS = 48


class Constants(NamedTuple):
    """Constants, chosen on validation days; compiled code takes them as a plain tuple."""

    rate: float = 0.1  # of the correction
    slot_fade: float = 0.9  # discount of the typical error: of one slot, per period
    all_fade: float = 0.99  # of all slots, per step
    pull: float = 1.0  # weight of all slots' typical error in that of one slot, in errors
    memory: float = 240.0  # scores kept


CHOSEN = Constants()


@dataclass(frozen=True)
class Bands:
    """Intervals of some steps, on the scale of the forecasts; NaN before the first value."""

    levels: tuple[float, ...]
    lower: Floats  # [level, client, step]
    upper: Floats

    def coverage(self, truth: NDArray[Any]) -> Floats:
        """Share of the observed values [client, step] inside, mean over clients, [level]."""
        known = ~np.isnan(truth) & ~np.isnan(self.lower[0])
        inside = (truth >= self.lower) & (truth <= self.upper) & known
        with np.errstate(invalid="ignore"):
            result: Floats = np.nanmean(inside.sum(axis=2) / known.sum(axis=1), axis=1)
        return result

    def width(self) -> Floats:
        """Mean width, [level]."""
        result: Floats = np.nanmean(self.upper - self.lower, axis=(1, 2))
        return result


def checked_levels(levels: Any) -> tuple[float, ...]:
    """Levels as numbers; rejects values that are not percentages."""
    try:
        found = tuple(float(level) for level in levels)
    except (TypeError, ValueError):
        found = ()
    if not found or any(not 0 < level < 100 for level in found):
        raise FuelsError(
            f"levels are percentages between 0 and 100, such as [80, 95], not {levels!r}"
        )
    return found


class Intervals:
    """Intervals of every client for levels in percent, such as 80 and 95."""

    def __init__(
        self,
        clients: int,
        period: int,
        levels: Sequence[float] = (80, 95),
        delay: int = 1,
        constants: Constants = CHOSEN,
    ) -> None:
        if clients < 1 or period < 1 or delay < 1:
            raise FuelsError("intervals need clients, a period and a delay of at least 1 step")
        self.levels, self.period, self.delay = checked_levels(levels), period, delay
        self.constants = tuple(
            float(value) for value in constants
        )  # of one type, for compiled code
        count, slots = len(self.levels), min(period, MOST_SLOTS)
        self.state: State = {
            "correction": np.zeros((clients, count)),
            "scores": np.zeros((clients, int(constants.memory))),  # a ring buffer
            "seen": np.zeros((clients, 1)),  # scores so far
            "slots": np.zeros((clients, slots, 2)),  # discounted squares and count
            "all": np.zeros((clients, 2)),
            # Steps not learned yet: point, typical error, slot, value, radius of each level.
            "queue": np.full((clients, delay, 4 + count), np.nan),
            "steps": np.zeros(1),
        }

    def run(self, truth: NDArray[Any], points: NDArray[Any], first: int) -> Bands:
        """Intervals around points [client, step] of steps first, first + 1, ..., and learn.

        `first` counts from the start of a period, like a dataset's steps. As in a mixture, the
        interval of a step depends on values up to `delay` steps before it; NaN is skipped.
        """
        y = np.ascontiguousarray(truth, dtype=np.float64)
        f = self._checked(points)
        if y.shape != f.shape:
            raise FuelsError(f"truth of shape {y.shape} does not fit points of shape {f.shape}")
        radius = np.empty((*f.shape, len(self.levels)))
        slot = self._slots(first, f.shape[1])
        parts = tuple(self.state.values())
        run(y, f, slot, self._misses(), self.delay, self.constants, parts, radius)
        self.state["steps"] += f.shape[1]
        return self._bands(f, radius)

    def next(self, points: NDArray[Any], step: int) -> Bands:
        """Intervals around points [client] of one future step; changes nothing."""
        f = self._checked(np.asarray(points)[:, None])
        radius = np.empty((*f.shape, len(self.levels)))
        slot = self._slots(step, 1)
        parts = tuple(copied(self.state).values())
        step_ahead(f, slot, self._misses(), self.delay, self.constants, parts, radius)
        return self._bands(f, radius)

    def arrays(self) -> State:
        """The state, to be saved."""
        return copied(self.state)

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue from a saved state of the same clients, levels, period and delay."""
        state = restored(self.state, arrays, "intervals")
        slot, counts = state["queue"][..., 2], (state["seen"], state["steps"])
        waiting = ~np.isnan(state["queue"][..., 0] + state["queue"][..., 3])
        outside = ~(
            (slot >= 0) & (slot < state["slots"].shape[1])
        )  # compiled code uses it as an index
        if (waiting & outside).any() or not all((each >= 0).all() for each in counts):
            raise FuelsError("the saved intervals are damaged, so train again")
        self.state = state

    def _checked(self, points: NDArray[Any]) -> Floats:
        f = np.ascontiguousarray(points, dtype=np.float64)
        clients = len(self.state["seen"])
        if f.ndim != 2 or len(f) != clients:
            raise FuelsError(f"points of shape {f.shape} do not fit {clients} clients")
        return f

    def _slots(self, first: int, steps: int) -> NDArray[np.int64]:
        slots = min(self.period, MOST_SLOTS)
        return np.arange(first, first + steps) % self.period * slots // self.period

    def _misses(self) -> Floats:
        """The nominal share outside, by level."""
        return 1.0 - np.array(self.levels) / 100.0

    def _bands(self, points: Floats, radius: Floats) -> Bands:
        away = radius.transpose(2, 0, 1)
        return Bands(self.levels, points - away, points + away)
