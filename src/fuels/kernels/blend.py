"""The compiled arithmetic of experts/blend.py: how far each client follows the shared experts.

What is learned of a client, discounted: steps; the product of the confined difference between the
shared and the local forecast with the local error; the square of that difference; the squared
local error. A pending step holds its difference, its local forecast and its actual value.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fuels.arrays import Floats
from fuels.kernels.jit import compiled


class Constants(NamedTuple):
    """Compiled code takes them as a plain tuple; experts/blend.py says why these."""

    reach: float  # of the confined difference, in usual local errors
    clip: float  # a larger error counts as this many usual errors
    pull: float  # average steps that the first share weighs
    known: float  # steps before the usual error is used
    memory: float  # of what is learned
    tiny: float  # avoids 0 / 0


_CONSTANTS = "UniTuple(f8, 6)"


@compiled()
def _usual(learned: Floats, known: float) -> float:
    """The usual local error; infinite before it is known."""
    if learned[0] < known or not learned[3] > 0:
        return np.inf
    return float(np.sqrt(learned[3] / learned[0]))


@compiled()
def _learn(learned: Floats, entry: Floats, constants: tuple[float, ...]) -> None:
    """Update what is learned from a past step, if its value is known."""
    _, clip, _, known, memory, _ = constants
    difference, error = entry[0], entry[2] - entry[1]
    if np.isnan(error) or np.isnan(difference):
        return
    most = clip * _usual(learned, known)
    error = min(max(error, -most), most)
    learned[0] = memory * learned[0] + 1.0
    learned[1] = memory * learned[1] + difference * error
    learned[2] = memory * learned[2] + difference * difference
    learned[3] = memory * learned[3] + error * error


@compiled()
def _share(
    learned: Floats, whole: float, first: float, most: float, constants: tuple[float, ...]
) -> tuple[float, float]:
    """The share of a difference between the shared and the local forecast, and it confined.

    The share is that of the difference before it is confined.
    """
    reach, _, pull, known, _, tiny = constants
    if np.isnan(whole):
        return 1.0, whole
    farthest = reach * _usual(learned, known)
    difference = min(max(whole, -farthest), farthest)
    best = learned[1] / (learned[2] + tiny)
    share = (pull * first + learned[0] * best) / (pull + learned[0])
    share = min(max(share, 0.0), most)
    if difference != whole:
        share *= abs(difference) / (abs(whole) + tiny)
    return share, difference


@compiled(
    ahead=f"(f8[:, ::1], f8[:, ::1], f8[:, ::1], f8[::1], f8[::1], i8, {_CONSTANTS}, f8[:, ::1],"
    " f8[:, :, ::1], f8[:, ::1], b1)"
)
def run(
    truth: Floats,
    shared: Floats,
    local: Floats,
    first: Floats,
    most: Floats,
    step: int,
    constants: tuple[float, ...],
    learned: Floats,
    pending: Floats,
    out: Floats,
    ahead: bool,
) -> None:
    """The shares of all clients over all steps, of which `step` is the number of the first.

    A step is learned just before the forecast `delay` steps later. `ahead`: before each share all
    pending steps are learned, oldest first, as for one more step whose value is not known; works on
    a copy of the state.
    """
    delay = pending.shape[1]
    for c in range(len(truth)):
        for k in range(truth.shape[1]):
            for i in range(delay if ahead else 1):
                _learn(learned[c], pending[c, (step + k + i) % delay], constants)
            entry = pending[c, (step + k) % delay]  # held step k - delay
            found = _share(learned[c], shared[c, k] - local[c, k], first[c], most[c], constants)
            out[c, k], entry[0] = found
            entry[1], entry[2] = local[c, k], truth[c, k]
