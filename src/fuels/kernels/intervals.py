"""The compiled loops of the prediction intervals; experts/intervals.py explains the method.

Per client the state holds a correction for each level, overall and for each slot of the period; the
last scores with the point forecasts they belong to; and the discounted absolute errors of each slot
and of all. Steps whose value has not arrived yet wait in a queue: point forecast, usual error,
slot, value, then lower and upper bound of each level.
"""

from __future__ import annotations

import numpy as np

from fuels.arrays import Floats, Integers
from fuels.kernels.jit import compiled

TINY = 1e-9  # the smallest usual error: keeps scores finite if all errors are 0
FIRST = 4  # the first bound in an entry of the queue

# The arrays of Intervals.state in their order: compiled code takes a tuple.
Parts = tuple[Floats, ...]

# The types of the state and of the constants, as the compiler spells them.
_PARTS = (
    "Tuple((f8[:, ::1], f8[:, :, ::1], f8[:, ::1], f8[:, ::1], f8[:, ::1], f8[:, :, ::1],"
    " f8[:, ::1], f8[:, :, ::1], f8[::1]))"
)
_CONSTANTS = "UniTuple(f8, 11)"
_ORDER = "i8[:, ::1]"  # of each client: places of its scores, from the least to the largest
_BOUNDS = "f8[:, :, :, ::1]"


@compiled()
def _limited(value: float, largest: float) -> float:
    return max(min(value, largest), -largest)


@compiled()
def _correct(
    entry: Floats, c: int, misses: Floats, constants: tuple[float, ...], parts: Parts
) -> None:
    """Move the corrections of client c: up if the value was outside, down if inside."""
    correction, by_slot = parts[0], parts[1]
    rate, slot_rate, reach, most, slot_most = constants[:5]
    value, here, slots = entry[3], int(entry[2]), by_slot.shape[1]
    for level in range(len(misses)):
        lower, upper = entry[FIRST + 2 * level], entry[FIRST + 2 * level + 1]
        if np.isnan(lower):
            continue
        excess = (1.0 if value < lower or value > upper else 0.0) - misses[level]
        correction[c, level] = _limited(correction[c, level] + rate * excess, most)
        for slot in range(slots):
            apart = abs(slot - here)
            away = min(apart, slots - apart) / (reach * slots)
            if away < 3.0:
                step = slot_rate * np.exp(-0.5 * away * away) * excess
                by_slot[c, slot, level] = _limited(by_slot[c, slot, level] + step, slot_most)


@compiled()
def _remember(score: float, point: float, c: int, parts: Parts, order: Integers) -> None:
    """Replace client c's oldest score; `order` keeps listing the scores from least to largest."""
    scores, points, seen = parts[2], parts[3], parts[4]
    memory = scores.shape[1]
    count, place = min(int(seen[c, 0]), memory), int(seen[c, 0]) % memory
    if count == memory:  # take the oldest out of the order
        at = 0
        while order[at] != place:
            at += 1
        for i in range(at, memory - 1):
            order[i] = order[i + 1]
        count -= 1
    scores[c, place], points[c, place] = score, point
    while count > 0 and scores[c, order[count - 1]] > score:
        order[count] = order[count - 1]
        count -= 1
    order[count] = place
    seen[c, 0] += 1


@compiled()
def _learn(
    entry: Floats,
    c: int,
    misses: Floats,
    constants: tuple[float, ...],
    parts: Parts,
    order: Integers,
) -> None:
    """Update the state of client c with one past step, if its value and forecast are known."""
    error = entry[3] - entry[0]
    if np.isnan(error):
        return
    _correct(entry, c, misses, constants, parts)
    _remember(error / entry[1], entry[0], c, parts, order)
    slot_fade, all_fade, size = constants[5], constants[6], abs(error)
    slot, everything = parts[5][c, int(entry[2])], parts[6][c]
    slot[0] = slot_fade * slot[0] + size
    slot[1] = slot_fade * slot[1] + 1.0
    everything[0] = all_fade * everything[0] + size
    everything[1] = all_fade * everything[1] + 1.0


@compiled()
def _tail(
    scores: Floats, weights: Floats, order: Integers, count: int, room: float, upper: bool
) -> float:
    """The score with a weight of at most `room` beyond it, and at least as much with itself."""
    beyond, score = 0.0, 0.0
    for i in range(count):
        place = order[count - 1 - i if upper else i]
        score = scores[place]
        beyond += weights[place]
        if beyond > room:
            break
    return score


@compiled(fastmath={"reassoc", "contract", "nsz"})  # a sum in any order, several at once
def weigh(points: Floats, point: float, spread: float, far: float, weights: Floats) -> float:
    """Write the weights of scores by how far their point forecasts are; returns their sum."""
    total = 0.0
    for i in range(len(points)):
        away = (points[i] - point) / spread
        weight = 1.0 / (1.0 + away * away)
        weights[i] = weight if weight > far else far
        total += weights[i]
    return total


@compiled()
def _issue(
    point: float,
    slot: int,
    c: int,
    misses: Floats,
    constants: tuple[float, ...],
    limits: Floats,
    parts: Parts,
    order: Integers,
    weights: Floats,
    entry: Floats,
) -> None:
    """Write the bounds of client c's next step, whose value is not known yet, to `entry`."""
    correction, by_slot, scores, points, seen, slots, everything, _, _ = parts
    pull, spread, far = constants[7], constants[8], constants[9]
    usual = everything[c, 0] / everything[c, 1] if everything[c, 1] > 0 else 1.0
    usual = (slots[c, slot, 0] + pull * usual) / (slots[c, slot, 1] + pull)
    entry[0], entry[1], entry[2], entry[3] = point, max(usual, TINY), slot, np.nan
    entry[FIRST:] = np.nan
    count = min(int(seen[c, 0]), scores.shape[1])
    if count == 0 or np.isnan(point):
        return
    total = weigh(points[c, :count], point, spread, far, weights)
    for level in range(len(misses)):
        # The value to come counts as one more score, beyond all others.
        room = 0.5 * misses[level] * (total + 1.0) - 1.0
        factor = entry[1] * np.exp(correction[c, level] + by_slot[c, slot, level])
        lower = point + factor * min(_tail(scores[c], weights, order, count, room, False), 0.0)
        upper = point + factor * max(_tail(scores[c], weights, order, count, room, True), 0.0)
        at = FIRST + 2 * level
        entry[at] = min(max(lower, limits[c, 0]), limits[c, 1])
        entry[at + 1] = min(max(upper, limits[c, 0]), limits[c, 1])
    # Levels are corrected independently, but a wider level must contain the narrower one.
    for wide in range(len(misses)):
        for narrow in range(len(misses)):
            if misses[narrow] > misses[wide]:
                at, inner = FIRST + 2 * wide, FIRST + 2 * narrow
                entry[at] = min(entry[at], entry[inner])
                entry[at + 1] = max(entry[at + 1], entry[inner + 1])


@compiled(
    ahead=f"(f8[:, ::1], f8[:, ::1], i8[::1], f8[::1], i8, {_CONSTANTS}, f8[:, ::1], {_PARTS},"
    f" {_ORDER}, {_BOUNDS}, b1)"
)
def run(
    truth: Floats,
    points: Floats,
    slot: Integers,
    misses: Floats,
    delay: int,
    constants: tuple[float, ...],
    limits: Floats,
    parts: Parts,
    order: Integers,
    bounds: Floats,
    ahead: bool,
) -> None:
    """All clients over all steps; a step is learned just before the interval `delay` later.

    `ahead`: before each interval all queued steps are learned, oldest first, as for one more step
    whose value is not known; works on a copy of the state.
    """
    queue, steps = parts[7], parts[8]
    weights = np.empty(parts[2].shape[1])
    for c in range(len(points)):
        for k in range(points.shape[1]):
            first = int(steps[0]) + k
            for i in range(delay if ahead else 1):
                _learn(queue[c, (first + i) % delay], c, misses, constants, parts, order[c])
            entry = queue[c, first % delay]  # held step k - delay
            _issue(
                points[c, k], slot[k], c, misses, constants, limits, parts, order[c], weights, entry
            )
            entry[3] = truth[c, k]
            for level in range(len(misses)):
                bounds[0, level, c, k] = entry[FIRST + 2 * level]
                bounds[1, level, c, k] = entry[FIRST + 2 * level + 1]
