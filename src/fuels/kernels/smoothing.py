"""The loops of exponential smoothing, compiled; experts/smoothing.py explains the method."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fuels.kernels.jit import compiled

Floats = NDArray[np.float64]


@compiled()
def smooth(
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
def choose_pace(
    y: Floats, slot: NDArray[np.int64], slots: int, horizon: int, warm: int, grid: Floats
) -> NDArray[np.int64]:
    """The row of the grid with the least squared error after `warm` steps, for each series."""
    best = np.zeros(len(y), dtype=np.int64)
    out = np.empty(y.shape[1])
    for client in range(len(y)):
        least = np.inf
        for row in range(len(grid)):
            smooth(y[client], slot, slots, horizon, grid[row], out)
            total = 0.0
            for k in range(warm, y.shape[1]):
                error = y[client, k] - out[k]
                if not np.isnan(error):
                    total += error * error
            if total < least:
                least, best[client] = total, row
    return best


@compiled(ahead="(f8[:, ::1], i8[::1], i8, i8, f8[:, ::1], f8[:, ::1])")
def smooth_all(
    y: Floats, slot: NDArray[np.int64], slots: int, horizon: int, pace: Floats, out: Floats
) -> None:
    """The forecasts of all series y [client, step], each at its pace [client, 3]."""
    for client in range(len(y)):
        smooth(y[client], slot, slots, horizon, pace[client], out[client])
