"""Twin of `choose_pace` in kernels/smoothing.py: all paces of the grid at once, in registers.

Each pace has its own lane, and a lane's numbers are added and multiplied as there, so the choice is
the same. The recursion of one pace waits for its own last step; those of many overlap.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fuels.arrays import Floats, Integers
from fuels.kernels.jit import compiled
from fuels.kernels.numba_internals import ir, types
from fuels.kernels.registers import VECTOR, everywhere, load, padded, registers, store
from fuels.kernels.simd import address, instructions, number
from fuels.kernels.simd_f64 import WIDE

ALPHA, GAMMA, PHI, LASTING, LEVEL, DEVIATION, ERROR, ROWS = 0, 1, 2, 3, 4, 5, 6, 7


@compiled(ahead="(f8[:, ::1], i8[::1], i8, i8, i8, f8[:, ::1])")
def choose_pace(
    y: Floats, slot: Integers, slots: int, horizon: int, warm: int, grid: Floats
) -> Integers:
    """As in smoothing.py."""
    count, width = len(grid), padded(len(grid))
    lanes, profile = np.zeros((ROWS, width)), np.empty((slots, width))
    best = np.zeros(len(y), dtype=np.int64)
    for row in range(count):
        lanes[ALPHA:LASTING, row] = grid[row]
        lanes[LASTING, row] = grid[row, 2] ** horizon
    at, first = address(lanes), address(profile)
    for client in range(len(y)):
        lanes[LEVEL:], profile[:] = 0.0, np.nan
        started, steps = False, y.shape[1]
        for k in range(steps):
            value, here = y[client, k], first + 8 * width * slot[k]
            if not np.isnan(value):
                if not started:
                    lanes[LEVEL], started = value, True
                _learn(at, here, width, value)
            elif started:
                lanes[DEVIATION] *= lanes[PHI]
            target = k + horizon
            if started and warm <= target < steps and not np.isnan(y[client, target]):
                _score(at, first + 8 * width * slot[target], width, y[client, target])
        least = np.inf
        for row in range(count):
            if lanes[ERROR, row] < least:
                least, best[client] = lanes[ERROR, row], row
    return best


@instructions(types.void, types.int64, types.int64, types.int64, types.float64)
def _learn(builder: ir.IRBuilder, lanes: Any, profile: Any, width: Any, value: Any) -> None:
    """One step: the profile is that of the value's slot."""
    known = everywhere(builder, value)
    with registers(builder, width) as (k, _):

        def place(row: int) -> Any:
            return builder.add(builder.mul(width, number(row)), k)

        level, deviation = (load(builder, lanes, place(row)) for row in (LEVEL, DEVIATION))
        alpha, gamma, phi = (load(builder, lanes, place(row)) for row in (ALPHA, GAMMA, PHI))
        usual, above = load(builder, profile, k), builder.fsub(known, level)
        usual = builder.select(builder.fcmp_unordered("uno", usual, usual), above, usual)
        innovation = builder.fsub(builder.fsub(above, usual), builder.fmul(phi, deviation))
        level = builder.fadd(level, builder.fmul(alpha, innovation))
        usual = builder.fadd(usual, builder.fmul(gamma, innovation))
        deviation = builder.fsub(builder.fsub(known, level), usual)
        store(builder, level, lanes, place(LEVEL))
        store(builder, deviation, lanes, place(DEVIATION))
        store(builder, usual, profile, k)


@instructions(types.void, types.int64, types.int64, types.int64, types.float64)
def _score(builder: ir.IRBuilder, lanes: Any, profile: Any, width: Any, truth: Any) -> None:
    """Add the squared error of a forecast; the profile is that of the target's slot."""
    known, zero = everywhere(builder, truth), ir.Constant(VECTOR, [0.0] * WIDE)
    with registers(builder, width) as (k, _):

        def of(row: int) -> Any:
            return load(builder, lanes, builder.add(builder.mul(width, number(row)), k))

        usual = load(builder, profile, k)
        usual = builder.select(builder.fcmp_unordered("uno", usual, usual), zero, usual)
        forecast = builder.fadd(of(LEVEL), usual)
        forecast = builder.fadd(forecast, builder.fmul(of(LASTING), of(DEVIATION)))
        error = builder.fsub(known, forecast)
        square = builder.fmul(error, error)
        # A pace whose forecast is not finite has an error that is not finite either.
        square = builder.select(builder.fcmp_unordered("uno", square, square), zero, square)
        total = builder.fadd(of(ERROR), square)
        store(builder, total, lanes, builder.add(builder.mul(width, number(ERROR)), k))
