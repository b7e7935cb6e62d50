"""The loops of exponential smoothing, compiled; experts/smoothing.py explains the method."""

from __future__ import annotations

import numpy as np

from fuels.arrays import Floats, Integers
from fuels.kernels.dispatch import has_twin
from fuels.kernels.jit import compiled


@compiled()
def smooth(
    y: Floats, slot: Integers, horizon: int, pace: Floats, state: Floats, out: Floats
) -> None:
    """Forecasts out [step] of one series y [step], NaN where missing; slot is [step + horizon].

    out[k] is made when y[k - horizon] is known. Nothing is forecast before the first value. The
    state holds the level, NaN before the first value, the last deviation, and the profile, NaN for
    a slot without a value so far.
    """
    alpha, gamma, phi = pace
    level, deviation, started = state[0], state[1], not np.isnan(state[0])
    profile, lasting = state[2:], phi**horizon
    for k in range(min(horizon, len(out))):
        out[k] = np.nan
    for k in range(len(y)):
        value, here = y[k], slot[k]
        if np.isnan(value):
            deviation *= phi
        else:
            if not started:
                level, started = value, True
            if np.isnan(profile[here]):  # a slot's first value is its profile
                profile[here] = value - level
            innovation = value - level - profile[here] - phi * deviation
            level += alpha * innovation
            profile[here] += gamma * innovation
            deviation = value - level - profile[here]
        if k + horizon < len(out):
            usual = profile[slot[k + horizon]]
            if np.isnan(usual):
                usual = 0.0
            out[k + horizon] = level + usual + lasting * deviation if started else np.nan
    state[0], state[1] = level, deviation


@has_twin("fuels.kernels.smoothing_simd")
@compiled()
def choose_pace(
    y: Floats, slot: Integers, slots: int, horizon: int, warm: int, grid: Floats
) -> Integers:
    """The row of the grid with the least squared error after `warm` steps, for each series."""
    best = np.zeros(len(y), dtype=np.int64)
    out, state = np.empty(y.shape[1]), np.empty(2 + slots)
    for client in range(len(y)):
        least = np.inf
        for row in range(len(grid)):
            state[:] = np.nan
            state[1] = 0.0
            smooth(y[client], slot, horizon, grid[row], state, out)
            total = 0.0
            for k in range(warm, y.shape[1]):
                error = y[client, k] - out[k]
                if not np.isnan(error):
                    total += error * error
            if total < least:
                least, best[client] = total, row
    return best


@compiled(ahead="(f8[:, ::1], i8[::1], i8, f8[:, ::1], f8[:, ::1], f8[:, ::1])")
def smooth_all(
    y: Floats, slot: Integers, horizon: int, pace: Floats, state: Floats, out: Floats
) -> None:
    """The forecasts of all series y [client, step], each at its pace [client, 3].

    The state [client, 2 + slots] is that before the first step, and then that after the last one.
    """
    for client in range(len(y)):
        smooth(y[client], slot, horizon, pace[client], state[client], out[client])
