"""Exponential smoothing: a level and a time-of-period profile that follow the series.

A forecast is level + profile at the target's slot + a share of the last deviation that fades as
phi^h. Free days have a profile of their own. The three pace constants of a client are those of a
small grid with the least squared error h steps ahead in the training part.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from fuels.data.calendar import Calendar
from fuels.experts.history import Floats, History
from fuels.experts.linear import Arrays
from fuels.kernels.jit import compiled

# Level, profile and deviation: (alpha, gamma, phi).
GRID = np.array(list(product((0.01, 0.05, 0.2, 0.6), (0.05, 0.15, 0.4), (0.0, 0.5, 0.8, 0.95))))


@compiled()
def _smooth(
    y: Floats, slot: NDArray[np.int64], slots: int, horizon: int, pace: Floats, out: Floats
) -> None:
    """Forecasts out [step] of one series y [step], NaN where missing; slot is [step + horizon].

    out[k] is made when y[k - horizon] is known. Nothing is forecast before the first value.
    """
    alpha, gamma, phi = pace
    level, deviation, started = 0.0, 0.0, False
    profile = np.zeros(slots)
    seen = np.zeros(slots, dtype=np.bool_)
    for k in range(len(out)):
        if k < horizon:
            out[k] = np.nan
    for k in range(len(y)):
        value, here = y[k], slot[k]
        if np.isnan(value):
            deviation *= phi
        else:
            if not started:
                level, started = value, True
            if not seen[here]:  # a slot's first value is its profile
                profile[here], seen[here] = value - level, True
            innovation = value - level - profile[here] - phi * deviation
            level += alpha * innovation
            profile[here] += gamma * innovation
            deviation = value - level - profile[here]
        if k + horizon < len(out):
            out[k + horizon] = (
                level + profile[slot[k + horizon]] + phi**horizon * deviation if started else np.nan
            )


@compiled(ahead="(f8[:, ::1], i8[::1], i8, i8, i8, f8[:, ::1])")
def _choose(
    y: Floats, slot: NDArray[np.int64], slots: int, horizon: int, warm: int, grid: Floats
) -> NDArray[np.int64]:
    """The row of the grid with the least squared error after `warm` steps, for each series."""
    best = np.zeros(len(y), dtype=np.int64)
    out = np.empty(y.shape[1])
    for client in range(len(y)):
        least = np.inf
        for row in range(len(grid)):
            _smooth(y[client], slot, slots, horizon, grid[row], out)
            total = 0.0
            for k in range(warm, y.shape[1]):
                error = y[client, k] - out[k]
                if not np.isnan(error):
                    total += error * error
            if total < least:
                least, best[client] = total, row
    return best


@compiled(ahead="(f8[:, ::1], i8[::1], i8, i8, f8[:, ::1], f8[:, ::1])")
def _all(
    y: Floats, slot: NDArray[np.int64], slots: int, horizon: int, pace: Floats, out: Floats
) -> None:
    for client in range(len(y)):
        _smooth(y[client], slot, slots, horizon, pace[client], out[client])


@dataclass(frozen=True)
class Smoothing:
    """The expert; its forecasts follow from the history from its first step on."""

    name: str = "smoothing"
    next_only: bool = False

    def fit(self, history: History, end: int, horizon: int, calendar: Calendar) -> Arrays:
        slot, slots = _slots(history, end, calendar)
        warm = min(history.week, end // 2)
        y = np.ascontiguousarray(history.observed[:, :end])
        return {"pace": GRID[_choose(y, slot, slots, horizon, warm, GRID)]}

    def forecasts(
        self,
        fitted: Arrays,
        history: History,
        first: int,
        last: int,
        horizon: int,
        calendar: Calendar,
    ) -> Floats:
        slot, slots = _slots(history, last, calendar)
        known = min(history.length, last - 1)  # the newest value a forecast up to `last` may need
        y = np.ascontiguousarray(history.observed[:, :known])
        out = np.full((history.clients, last), np.nan)
        _all(y, slot, slots, horizon, np.ascontiguousarray(fitted["pace"]), out)
        return out[:, first:]


def _slots(history: History, last: int, calendar: Calendar) -> tuple[NDArray[np.int64], int]:
    """Slot of every step before `last`: the phase, and once more for free days."""
    phase = np.arange(last) % history.period
    free = calendar.free(history.times(0, last))
    return phase + history.period * free, 2 * history.period
