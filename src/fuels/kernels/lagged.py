"""Loops over lagged values, compiled: forecasts of fitted regressions, and shared products.

The references are in experts/linear.py, experts/shared.py and sharing/statistics.py.
"""

from __future__ import annotations

import numpy as np

from fuels.arrays import Flags, Floats, Integers
from fuels.kernels.jit import compiled

_FORECAST = (
    "(f8[:, ::1], f8[:, ::1], i8, UniTuple(i8[::1], 2), i8[::1], b1[:, ::1], f8[:, :, ::1],"
    " f8[:, :, ::1], f8[:, :, ::1])"
)


@compiled(ahead=_FORECAST)
def forecast(
    values: Floats,
    live: Floats,
    first: int,
    lags: tuple[Integers, Integers],
    slot: Integers,
    uses: Flags,
    weights: Floats,
    clock: Floats,
    out: Floats,
) -> None:
    """Forecasts `out` [regression, client, step] of the steps from `first` on.

    `uses` says which lags [regression, lag] a regression has, `weights` are [client, regression,
    lag] and `clock` [client, regression, slot]; the lags of the live mean come last. Each step is
    summed separately, so a forecast does not depend on how many steps are asked for.
    """
    own, means = lags
    known, steps = values.shape[1], out.shape[2]
    for c in range(len(values)):
        for r in range(len(uses)):
            made = out[r, c]
            for k in range(steps):
                made[k] = clock[c, r, slot[k]]
            for i in range(len(own) + len(means)):
                if not uses[r, i]:
                    continue
                series = values[c] if i < len(own) else live[c]
                lag = own[i] if i < len(own) else means[i - len(own)]
                weight = weights[c, r, i]
                low, high = min(max(lag - first, 0), steps), max(min(known + lag - first, steps), 0)
                made[:low] = np.nan
                made[high:] = np.nan
                for k in range(low, high):
                    made[k] += weight * series[first + k - lag]


@compiled(ahead="(f8[:, ::1], f8[:, ::1], i8, i8[::1], b1[::1], f8[:, ::1], f8[::1], f8[:, ::1])")
def forecast_alike(
    values: Floats,
    live: Floats,
    first: int,
    lags: Integers,
    means: Flags,
    weights: Floats,
    start: Floats,
    out: Floats,
) -> None:
    """As `forecast`, [client, step], with weights [lag, step] and a start [step] for all clients.

    `means` says which lags are of the live mean.
    """
    known, steps = values.shape[1], out.shape[1]
    for c in range(len(values)):
        made = out[c]
        made[:] = start
        for i in range(len(lags)):
            series, lag = live[c] if means[i] else values[c], lags[i]
            low, high = min(max(lag - first, 0), steps), max(min(known + lag - first, steps), 0)
            made[:low] = np.nan
            made[high:] = np.nan
            for k in range(low, high):
                made[k] += weights[i, k] * series[first + k - lag]


_SHARE = (
    "(f8[:, ::1], f8[:, ::1], f8[:, ::1], i8, i8, UniTuple(i8[::1], 2), i8[::1], b1[::1], f8,"
    " f8[:, :, ::1])"
)


@compiled(ahead=_SHARE)
def contributions(
    values: Floats,
    observed: Floats,
    live: Floats,
    first: int,
    last: int,
    lags: tuple[Integers, Integers],
    slot: Integers,
    free: Flags,
    clip: float,
    out: Floats,
) -> None:
    """Products of clipped rows, [client, slot, pair], of steps first to last - 1.

    A row has the lags, those of the live mean, the free day, a constant and the target; one with a
    missing value is left out. Pairs are in the order of an upper triangle.
    """
    own, means = lags
    width = len(own) + len(means) + 3
    row = np.empty(width)
    for c in range(len(values)):
        for k in range(first, last):
            row[-1] = observed[c, k]
            for i in range(len(own)):
                row[i] = values[c, k - own[i]] if k >= own[i] else np.nan
            for i in range(len(means)):
                row[len(own) + i] = live[c, k - means[i]] if k >= means[i] else np.nan
            row[-3], row[-2] = 1.0 if free[k - first] else 0.0, 1.0
            if np.isnan(row).any():
                continue
            for i in range(width):
                row[i] = min(max(row[i], -clip), clip)
            add_triangle(row, out[c, slot[k - first]])


@compiled(fastmath={"contract"})
def add_triangle(row: Floats, out: Floats) -> None:
    """Add the products of all pairs, packed."""
    at, width = 0, len(row)
    for i in range(width):
        one = row[i]
        for j in range(width - i):
            out[at + j] += one * row[i + j]
        at += width - i
