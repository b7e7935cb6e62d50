"""The compiled loops of the prediction intervals; experts/intervals.py explains the method.

Per client the state holds a correction for each level, the last scores, and the discounted squared
errors of each slot of the period and of all slots. Steps whose value has not arrived yet wait in a
queue: point forecast, usual error, slot, value, radius of each level.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fuels.kernels.jit import compiled

Floats = NDArray[np.float64]

TINY = 1e-9  # the smallest usual error: keeps scores finite if all errors are 0

# The arrays of Intervals.state in their order: compiled code takes a tuple.
Parts = tuple[Floats, ...]

# The types of the state and of the constants, as the compiler spells them.
_PARTS = (
    "Tuple((f8[:, ::1], f8[:, ::1], f8[:, ::1], f8[:, :, ::1], f8[:, ::1], f8[:, :, ::1], f8[::1]))"
)
_CONSTANTS = "UniTuple(f8, 5)"


@compiled()
def _learn(
    entry: Floats, c: int, misses: Floats, constants: tuple[float, ...], parts: Parts
) -> None:
    """Update the state of client c with one past step, if its truth and forecast are known."""
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
    """Write the radii of client c's next step, whose truth is not known yet, to `entry`."""
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
    # Levels are corrected independently, but a wider level must contain the narrower one.
    for wide in range(len(misses)):
        for narrow in range(len(misses)):
            if misses[narrow] > misses[wide]:
                entry[4 + wide] = max(entry[4 + wide], entry[4 + narrow])


@compiled(
    ahead=f"(f8[:, ::1], f8[:, ::1], i8[::1], f8[::1], i8, {_CONSTANTS}, {_PARTS}, f8[:, :, ::1])"
)
def run(
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
def step_ahead(
    points: Floats,
    slot: NDArray[np.int64],
    misses: Floats,
    delay: int,
    constants: tuple[float, ...],
    parts: Parts,
    radius: Floats,
) -> None:
    """Learn all queued steps, oldest first, then issue one more; works on a copy of the state."""
    queue, steps = parts[5], parts[6]
    for c in range(len(points)):
        for k in range(delay):
            _learn(queue[c, (int(steps[0]) + k) % delay], c, misses, constants, parts)
        entry = queue[c, int(steps[0]) % delay]
        _issue(points[c, 0], slot[0], c, misses, constants[3], parts, entry)
        radius[c, 0] = entry[4:]
