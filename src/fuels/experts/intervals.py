"""Prediction intervals that keep their promise while the series changes.

Adaptive conformal inference, per client and horizon. The radius around a point forecast is

    usual error at this time of the period  x  quantile of the last scores  x  exp(correction)

A score is an error over the usual error of its time. The correction of a level moves after every
truth: up by rate x level when the value fell outside, down by rate x (1 - level) when inside, so
over n steps the share outside differs from what was promised by at most its own change / (rate n),
whatever the series does (Gibbs and Candes 2021; on the logarithm of the radius, as the quantile
tracking of Angelopoulos, Candes and Tibshirani 2023 does on the radius itself).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.experts.state import State, copied, restored
from fuels.kernels.jit import compiled

Floats = NDArray[np.float64]

MOST_SLOTS = 48
TINY = 1e-9


class Constants(NamedTuple):
    """The constants that were chosen by evidence; compiled code takes them as a plain tuple."""

    rate: float = 0.1  # of the correction
    slot_fade: float = 0.9  # memory of the usual error: of one slot, by period
    all_fade: float = 0.99  # of all slots, by step
    pull: float = 1.0  # a slot's usual error counts all slots' as this many errors of its own
    memory: float = 240.0  # scores kept


CHOSEN = Constants()


@dataclass(frozen=True)
class Bands:
    """Intervals of some steps, on the scale of the forecasts; NaN before the first truth."""

    levels: tuple[float, ...]
    lower: Floats  # [level, client, step]
    upper: Floats

    def coverage(self, truth: NDArray[Any]) -> Floats:
        """Share of the known truth [client, step] inside, mean over clients, [level]."""
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
    """Levels as numbers; refuses what is no percentage."""
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
    """Intervals of every client for some levels in percent, such as 80 and 95."""

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
            "scores": np.zeros((clients, int(constants.memory))),  # used in a circle
            "seen": np.zeros((clients, 1)),  # scores so far
            "slots": np.zeros((clients, slots, 2)),  # discounted squares and count
            "all": np.zeros((clients, 2)),
            # Steps not learned yet: point, usual error, slot, truth, radius of each level.
            "queue": np.full((clients, delay, 4 + count), np.nan),
            "steps": np.zeros(1),
        }

    def run(self, truth: NDArray[Any], points: NDArray[Any], first: int) -> Bands:
        """Intervals around points [client, step] of steps first, first + 1, ..., and learn.

        `first` counts from the start of a period, as a dataset's steps do. As in a mixture, the
        interval of a step knows truth up to `delay` steps before it; NaN truth is skipped.
        """
        y = np.ascontiguousarray(truth, dtype=np.float64)
        f = self._checked(points)
        if y.shape != f.shape:
            raise FuelsError(f"truth of shape {y.shape} does not fit points of shape {f.shape}")
        radius = np.empty((*f.shape, len(self.levels)))
        slot = self._slots(first, f.shape[1])
        parts = tuple(self.state.values())
        _run(y, f, slot, self._misses(), self.delay, self.constants, parts, radius)
        self.state["steps"] += f.shape[1]
        return self._bands(f, radius)

    def next(self, points: NDArray[Any], step: int) -> Bands:
        """Intervals around points [client] of one step, made now; changes nothing."""
        f = self._checked(np.asarray(points)[:, None])
        radius = np.empty((*f.shape, len(self.levels)))
        slot = self._slots(step, 1)
        parts = tuple(copied(self.state).values())
        _next(f, slot, self._misses(), self.delay, self.constants, parts, radius)
        return self._bands(f, radius)

    def arrays(self) -> State:
        """The state, to be saved."""
        return copied(self.state)

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a saved state of the same clients, levels, period and delay."""
        state = restored(self.state, arrays, "intervals")
        slot, counts = state["queue"][..., 2], (state["seen"], state["steps"])
        waiting = ~np.isnan(state["queue"][..., 0] + state["queue"][..., 3])
        outside = ~((slot >= 0) & (slot < state["slots"].shape[1]))  # compiled code goes by it
        if (waiting & outside).any() or not all((each >= 0).all() for each in counts):
            raise FuelsError("the saved intervals are damaged, so start anew")
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
        """The share that may fall outside, by level."""
        return 1.0 - np.array(self.levels) / 100.0

    def _bands(self, points: Floats, radius: Floats) -> Bands:
        away = radius.transpose(2, 0, 1)
        return Bands(self.levels, points - away, points + away)


# The state in the order of Intervals.state: compiled code takes it as a tuple.
Parts = tuple[Floats, ...]

# The same for the compiler.
_PARTS = (
    "Tuple((f8[:, ::1], f8[:, ::1], f8[:, ::1], f8[:, :, ::1], f8[:, ::1], f8[:, :, ::1], f8[::1]))"
)
_CONSTANTS = f"UniTuple(f8, {len(Constants())})"


@compiled()
def _learn(
    entry: Floats, c: int, misses: Floats, constants: tuple[float, ...], parts: Parts
) -> None:
    """Renew the state of client c by one past step, if its truth and its forecast are known."""
    correction, scores, seen, slots, everything, _, _ = parts
    rate, slot_fade, all_fade, _, _ = constants
    error = abs(entry[3] - entry[0])
    if np.isnan(error):
        return
    for level in range(len(misses)):
        radius = entry[4 + level]
        if not np.isnan(radius):
            missed = 1.0 if error > radius else 0.0
            correction[c, level] += rate * (missed - misses[level])
    scores[c, int(seen[c, 0]) % scores.shape[1]] = error / entry[1]
    seen[c, 0] += 1
    slot = slots[c, int(entry[2])]
    slot[0] = slot_fade * slot[0] + error * error
    slot[1] = slot_fade * slot[1] + 1.0
    everything[c, 0] = all_fade * everything[c, 0] + error * error
    everything[c, 1] = all_fade * everything[c, 1] + 1.0


@compiled()
def _issue(
    point: float, slot: int, c: int, misses: Floats, pull: float, parts: Parts, entry: Floats
) -> None:
    """Radii of client c's next step, in `entry`; its truth is not known yet."""
    correction, scores, seen, slots, everything, _, _ = parts
    usual = everything[c, 0] / everything[c, 1] if everything[c, 1] > 0 else 1.0
    squares = (slots[c, slot, 0] + pull * usual) / (slots[c, slot, 1] + pull)
    entry[0], entry[1], entry[2], entry[3] = point, max(np.sqrt(squares), TINY), slot, np.nan
    entry[4:] = np.nan
    count = min(int(seen[c, 0]), scores.shape[1])
    if count == 0:
        return
    ordered = np.sort(scores[c, :count])
    for level in range(len(misses)):
        rank = min(int(np.ceil((1.0 - misses[level]) * (count + 1))), count)
        entry[4 + level] = ordered[rank - 1] * np.exp(correction[c, level]) * entry[1]
    # Levels are corrected one by one, but what lies in a narrow interval lies in a wide one.
    for wide in range(len(misses)):
        for narrow in range(len(misses)):
            if misses[narrow] > misses[wide]:
                entry[4 + wide] = max(entry[4 + wide], entry[4 + narrow])


@compiled(
    ahead=f"(f8[:, ::1], f8[:, ::1], i8[::1], f8[::1], i8, {_CONSTANTS}, {_PARTS}, f8[:, :, ::1])"
)
def _run(
    truth: Floats,
    points: Floats,
    slot: NDArray[np.int64],
    misses: Floats,
    delay: int,
    constants: tuple[float, ...],
    parts: Parts,
    radius: Floats,
) -> None:
    """All clients over all steps; a step is learned just before the interval `delay` later."""
    queue, steps = parts[5], parts[6]
    for c in range(len(truth)):
        for k in range(truth.shape[1]):
            entry = queue[c, (int(steps[0]) + k) % delay]  # holds step k - delay
            _learn(entry, c, misses, constants, parts)
            _issue(points[c, k], slot[k], c, misses, constants[3], parts, entry)
            entry[3] = truth[c, k]
            radius[c, k] = entry[4:]


@compiled(ahead=f"(f8[:, ::1], i8[::1], f8[::1], i8, {_CONSTANTS}, {_PARTS}, f8[:, :, ::1])")
def _next(
    points: Floats,
    slot: NDArray[np.int64],
    misses: Floats,
    delay: int,
    constants: tuple[float, ...],
    parts: Parts,
    radius: Floats,
) -> None:
    """Learn all that waits, oldest first, then issue one more step; the state is a copy."""
    queue, steps = parts[5], parts[6]
    for c in range(len(points)):
        for k in range(delay):
            _learn(queue[c, (int(steps[0]) + k) % delay], c, misses, constants, parts)
        entry = queue[c, int(steps[0]) % delay]
        _issue(points[c, 0], slot[0], c, misses, constants[3], parts, entry)
        radius[c, 0] = entry[4:]
