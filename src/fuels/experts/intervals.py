"""Prediction intervals that keep their coverage at every time of the period, while series change.

Adaptive conformal inference, per client and horizon. A bound is

    point forecast + usual error at this time of the period x quantile of the last scores
                   x exp(correction + correction at this time), confined to the range of the data

A score is a signed error divided by the usual error at that time. Its quantiles are taken in both
tails, so an interval may be asymmetric, and scores of similar point forecasts count more, so its
width may depend on the level. After each observed value the correction of a level moves up by
rate x level if the value fell outside, and down by rate x (1 - level) if inside; so do, at the
slot rate, those of the times nearby. Summing these steps shows that over n values the share outside
differs from the nominal one by the change of the correction / (rate n), whatever the series does
(Gibbs and Candes 2021; here on the logarithm of the radius, whereas the quantile tracking of
Angelopoulos, Candes and Tibshirani 2023 works on the radius itself). At one time of the period
the same holds for the share among the values nearby, weighted as they move its correction. So
coverage is right in the long run as long as the corrections do not keep hitting their limits. A
lower limit is hit where values equal to a bound of the range are more frequent than the level: no
interval that contains them can have less coverage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats, Integers
from fuels.data.calendar import MOST_SLOTS, slot_of
from fuels.errors import FuelsError
from fuels.experts.state import COUNT, Learner, State, copied
from fuels.kernels.intervals import run


class Constants(NamedTuple):
    """Constants, chosen on validation days; compiled code takes them as a plain tuple."""

    rate: float = 0.1  # of the correction
    slot_rate: float = 0.15  # of the correction at one time of the period
    reach: float = 1 / 12  # of a step of the latter, in periods: 2 of 24 hours
    most: float = 4.0  # largest correction, up or down; a limit keeps it able to return
    slot_most: float = 1.0
    slot_fade: float = 0.95  # discount of the usual error: of one slot, per period
    all_fade: float = 0.99  # of all slots, per step
    pull: float = 1.0  # weight of all slots' usual error in that of one slot, in errors
    spread: float = 1.0  # a point forecast this far away counts half
    far: float = 0.2  # least weight: forecasts like no other need scores, too
    memory: float = 480.0  # scores kept


CHOSEN = Constants()
AHEAD = CHOSEN._replace(rate=0.05)  # several steps ahead, where values arrive late


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


class Intervals(Learner):
    """Intervals of every client for levels in percent, such as 80 and 95.

    `limits` [client, 2] are the least and largest possible values of each client.
    """

    what = "intervals"

    def __init__(
        self,
        clients: int,
        period: int,
        levels: Sequence[float] = (80, 95),
        delay: int = 1,
        constants: Constants | None = None,
        limits: Floats | None = None,
    ) -> None:
        if clients < 1 or period < 1 or delay < 1:
            raise FuelsError("intervals need clients, a period and a delay of at least 1 step")
        self.levels, self.period, self.delay = checked_levels(levels), period, delay
        if constants is None:
            constants = CHOSEN if delay == 1 else AHEAD
        self.constants = tuple(float(value) for value in constants)  # compiled code: of one type
        open_ended = np.tile([-np.inf, np.inf], (clients, 1))
        self.limits = open_ended if limits is None else np.ascontiguousarray(limits, np.float64)
        count, slots = len(self.levels), min(period, MOST_SLOTS)
        memory = int(constants.memory)
        state: State = {
            "correction": np.zeros((clients, count)),
            "slot correction": np.zeros((clients, slots, count)),
            "scores": np.zeros((clients, memory)),  # a ring buffer
            "points": np.zeros((clients, memory)),  # the point forecasts they belong to
            "seen": np.zeros((clients, 1)),  # scores so far
            "slots": np.zeros((clients, slots, 2)),  # discounted absolute errors and count
            "all": np.zeros((clients, 2)),
            # Steps not learned yet: point, usual error, slot, value, two bounds of each level.
            "queue": np.full((clients, delay, 4 + 2 * count), np.nan),
            COUNT: np.zeros(1),
        }
        super().__init__(state)
        self._order = np.zeros((clients, memory), dtype=np.int64)  # of the scores, by size

    def part(self, rows: slice) -> Self:
        part = super().part(rows)
        part.limits, part._order = self.limits[rows], self._order[rows]
        return part

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        whole = super().joined(parts)
        whole.limits = np.concatenate([part.limits for part in parts])
        whole._order = np.concatenate([part._order for part in parts])
        return whole

    def confined(self, points: NDArray[Any]) -> Floats:
        """Point forecasts [client, ...] within the limits."""
        shape = (len(self.limits), *(1,) * (np.ndim(points) - 1))
        low, high = (bound.reshape(shape) for bound in self.limits.T)
        return np.clip(np.asarray(points, dtype=np.float64), low, high)

    def run(self, truth: NDArray[Any], points: NDArray[Any], first: int) -> Bands:
        """Intervals around points [client, step] of steps first, first + 1, ..., and learn.

        `first` counts from the start of a period, like a dataset's steps. As in a mixture, the
        interval of a step depends on values up to `delay` steps before it; NaN is skipped.
        """
        y = np.ascontiguousarray(truth, dtype=np.float64)
        f = self._checked(points)
        if y.shape != f.shape:
            raise FuelsError(f"truth of shape {y.shape} does not fit points of shape {f.shape}")
        bands = self._run(y, f, first, self.state, self._order, ahead=False)
        self.count(f.shape[1])
        return bands

    def next(self, points: NDArray[Any], step: int) -> Bands:
        """Intervals around points [client] of one future step; changes nothing."""
        f = self._checked(np.asarray(points)[:, None])
        unknown = np.full(f.shape, np.nan)
        return self._run(unknown, f, step, copied(self.state), self._order.copy(), ahead=True)

    def _run(
        self, y: Floats, f: Floats, first: int, state: State, order: Integers, *, ahead: bool
    ) -> Bands:
        bounds = np.empty((2, len(self.levels), *f.shape))
        slot = slot_of(np.arange(first, first + f.shape[1]) % self.period, self.period)
        misses = 1.0 - np.array(self.levels) / 100.0  # the nominal share outside, by level
        fixed = (misses, self.delay, self.constants, self.limits)
        run(y, f, slot, *fixed, tuple(state.values()), order, bounds, ahead)
        return Bands(self.levels, *bounds)

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        super().load(arrays)
        state = self.state
        slot, counts = state["queue"][..., 2], (state["seen"], state["steps"])
        waiting = ~np.isnan(state["queue"][..., 0] + state["queue"][..., 3])
        # Compiled code uses the slot as an index.
        outside = ~((slot >= 0) & (slot < state["slots"].shape[1]))
        known = all((each >= 0).all() for each in counts) and not np.isnan(state["scores"]).any()
        if (waiting & outside).any() or not known:
            raise FuelsError("the saved intervals are damaged, so train again")
        place, memory = np.arange(state["scores"].shape[1]), state["scores"].shape[1]
        scores = np.where(place >= state["seen"], np.inf, state["scores"])  # not used yet
        # Of equal scores the older one comes first, as when they were added.
        age = np.where(state["seen"] > memory, (place - state["seen"]) % memory, place)
        self._order = np.lexsort((age, scores), axis=1)

    def _checked(self, points: NDArray[Any]) -> Floats:
        f = np.ascontiguousarray(points, dtype=np.float64)
        clients = len(self.state["seen"])
        if f.ndim != 2 or len(f) != clients:
            raise FuelsError(f"points of shape {f.shape} do not fit {clients} clients")
        return f


def from_format_4(arrays: Mapping[str, NDArray[Any]]) -> State:
    """The state of intervals as older versions saved it, with radii and no point forecasts.

    An absolute score becomes one score in each tail. Coverage by the time of the period, and the
    dependence on the level, start afresh.
    """
    old = {name: np.asarray(array, dtype=np.float64) for name, array in arrays.items()}
    seen, queue, memory = old["seen"], old["queue"], int(CHOSEN.memory)
    (clients, slots, _), kept = old["slots"].shape, old["scores"].shape[1]
    scores = np.zeros((clients, memory))
    count = np.minimum(seen, min(kept, memory // 2)).astype(np.int64)
    for tail, row, one in zip(scores, old["scores"], count[:, 0], strict=True):
        tail[:one], tail[one : 2 * one] = row[:one], -row[:one]
    sums, radius = {}, queue[..., 4:]
    for name in ("slots", "all"):
        squares, number = old[name][..., 0], old[name][..., 1]
        sums[name] = np.stack([np.sqrt(squares * number), number], axis=-1)
    bounds = np.stack([queue[..., :1] - radius, queue[..., :1] + radius], axis=-1)
    return {
        "correction": old["correction"],
        "slot correction": np.zeros((clients, slots, old["correction"].shape[1])),
        "scores": scores,
        "points": np.zeros((clients, memory)),
        "seen": 2.0 * count,
        "slots": sums["slots"],
        "all": sums["all"],
        "queue": np.concatenate([queue[..., :4], bounds.reshape(*queue.shape[:2], -1)], axis=-1),
        "steps": old["steps"],
    }
