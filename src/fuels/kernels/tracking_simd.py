"""Twins of kernels/tracking.py, which work on a machine register of float64 numbers at a time.

Numbers are multiplied and added as there, one by one and in the same order, so the results are the
same to the bit. LLVM does not vectorise such short loops: it cannot prove that arrays do not
overlap, nor that the order of comparisons is free.

Slopes and weights are padded to whole registers. An array's last register is loaded and stored in
part where the array ends within it. Arguments of the instructions are addresses of numbers, counts
and scalars.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fuels.arrays import Floats
from fuels.kernels.jit import compiled
from fuels.kernels.numba_internals import cgutils, ir, types
from fuels.kernels.registers import (
    VECTOR,
    everywhere,
    lanes_where,
    load,
    load_number,
    load_part,
    padded,
    reduced,
    registers,
    store,
    store_part,
)
from fuels.kernels.simd import DOUBLE, INT, address, instructions, number
from fuels.kernels.simd_f64 import WIDE
from fuels.kernels.tracking import CLOSE, SWEEPS, TINY

BITS = ir.IntType(WIDE)
INFINITY = float("inf")


@compiled()
def best_lately(
    forecasts: Floats,
    said: float,
    truth: float,
    moments: Floats,
    count: Floats,
    weights: Floats,
    memory: float,
    pulls: tuple[float, float],
) -> None:
    """As in tracking.py."""
    experts = len(weights)
    room = np.empty((3, padded(experts)))
    slope, own, errors = room
    count[0] = memory * count[0] + 1.0
    for i in range(experts):
        errors[i] = (said if np.isnan(forecasts[i]) else forecasts[i]) - truth
        own[i] = weights[i]
    errors[experts:], own[experts:] = 0.0, 0.0
    rows, steep, held = address(moments), address(slope), address(own)
    _add_products(rows, address(errors), experts, memory)
    least_square = np.inf
    for i in range(experts):
        least_square = min(least_square, moments[i, i])
    pull = least_square * (pulls[0] + pulls[1] / count[0]) + TINY
    _add_rows(steep, rows, held, experts, pull)
    slope[experts:] = np.inf  # never the least, and without weight
    least, most, low, high = _sweep(steep, held, rows, rows, experts, -1, -1, 0.0, 0.0)
    for _ in range(SWEEPS):
        if most - least <= CLOSE * pull:
            break
        bend = moments[low, low] + moments[high, high] - 2 * moments[low, high] + 2 * pull
        move = min((most - least) / max(bend, TINY), own[high])
        to, away = rows + 8 * experts * low, rows + 8 * experts * high
        least, most, low, high = _sweep(steep, held, to, away, experts, low, high, move, pull)
    for i in range(experts):
        weights[i] = own[i]


@compiled()
def median(values: Floats) -> float:
    """As in tracking.py: each value is compared with all others, quicker than sorting so few."""
    known = 0
    for value in values:
        known += not np.isnan(value)
    half = known >> 1
    low, high = _order_statistics(address(values), len(values), half - 1, half)
    return float(high if known & 1 else (low + high) / 2)


# -- instructions ----------------------------------------------------------------------------------


@instructions(types.void, types.int64, types.int64, types.int64, types.float64)
def _add_products(builder: ir.IRBuilder, rows: Any, errors: Any, count: Any, memory: Any) -> None:
    """Each row of moments: m = memory m + error errors."""
    fading = everywhere(builder, memory)
    with cgutils.for_range(builder, count) as row:
        error = everywhere(builder, load_number(builder, errors, row.index))
        start = builder.mul(row.index, count)
        with registers(builder, count) as (k, _):
            at, inside = builder.add(start, k), lanes_where(builder, "<", k, count)
            old = builder.fmul(fading, load_part(builder, rows, at, inside))
            total = builder.fadd(old, builder.fmul(error, load(builder, errors, k)))
            store_part(builder, total, rows, at, inside)


@instructions(types.void, types.int64, types.int64, types.int64, types.int64, types.float64)
def _add_rows(
    builder: ir.IRBuilder, slope: Any, rows: Any, weights: Any, count: Any, pull: Any
) -> None:
    """slope = pull weights + the rows of moments times their weights."""
    factor = everywhere(builder, pull)
    with registers(builder, count) as (k, _):
        store(builder, builder.fmul(factor, load(builder, weights, k)), slope, k)
    with cgutils.for_range(builder, count) as row:
        one = load_number(builder, weights, row.index)
        with builder.if_then(builder.fcmp_unordered("!=", one, ir.Constant(DOUBLE, 0.0))):
            weight, start = everywhere(builder, one), builder.mul(row.index, count)
            with registers(builder, count) as (k, _):
                inside = lanes_where(builder, "<", k, count)
                own = load_part(builder, rows, builder.add(start, k), inside)
                total = builder.fadd(load(builder, slope, k), builder.fmul(own, weight))
                store(builder, total, slope, k)


@instructions(
    types.Tuple((types.float64, types.float64, types.int64, types.int64)),
    *[types.int64] * 7, types.float64, types.float64,
)  # fmt: skip
def _sweep(
    builder: ir.IRBuilder, slope: Any, weights: Any, to: Any, away: Any, count: Any, low: Any,
    high: Any, move: Any, pull: Any,
) -> Any:  # fmt: skip
    """Move weight between two experts, whose rows of moments are `to` and `away`.

    Returns the least slope, the largest among experts with weight, and where they are first.
    Whole registers are stored, because the next sweep loads whole registers: a single number
    would have to reach the cache first.
    """
    lowest, zero = (ir.Constant(VECTOR, [end] * WIDE) for end in (-INFINITY, 0.0))
    ends = [ir.Constant(VECTOR, [end] * WIDE) for end in (INFINITY, -INFINITY)]
    best = [cgutils.alloca_once_value(builder, end) for end in ends]
    moved, further = everywhere(builder, move), everywhere(builder, builder.fmul(move, pull))
    with registers(builder, count) as (k, _):
        inside = lanes_where(builder, "<", k, count)
        takes, gives = (lanes_where(builder, "==", k, place) for place in (low, high))
        parts = (load_part(builder, row, k, inside) for row in (to, away))
        own = load(builder, slope, k)
        own = builder.fadd(own, builder.fmul(moved, builder.fsub(*parts)))
        own = builder.select(takes, builder.fadd(own, further), own)
        own = builder.select(gives, builder.fsub(own, further), own)
        store(builder, own, slope, k)
        weight = load(builder, weights, k)
        weight = builder.select(takes, builder.fadd(weight, moved), weight)
        weight = builder.select(gives, builder.fsub(weight, moved), weight)
        store(builder, weight, weights, k)
        heavy = builder.select(builder.fcmp_ordered(">", weight, zero), own, lowest)
        for sign, value, held in zip("<>", (own, heavy), best, strict=True):
            better = builder.fcmp_ordered(sign, value, builder.load(held))
            builder.store(builder.select(better, value, builder.load(held)), held)
    names = zip(("fmin", "fmax"), best, strict=True)
    least, most = (reduced(builder, name, builder.load(held)) for name, held in names)
    found = [cgutils.alloca_once_value(builder, number(0)) for _ in ends]
    last = builder.mul(builder.sdiv(builder.sub(count, number(1)), number(WIDE)), number(WIDE))
    with registers(builder, count) as (k, _):
        at = builder.sub(last, k)  # the last register first
        own = load(builder, slope, at)
        heavy = builder.fcmp_ordered(">", load(builder, weights, at), zero)
        for held, end, others in zip(found, (least, most), (None, heavy), strict=True):
            same = builder.fcmp_ordered("==", own, everywhere(builder, end))
            bits = builder.bitcast(same if others is None else builder.and_(same, others), BITS)
            first = builder.cttz(bits, ir.Constant(ir.IntType(1), 0))
            first = builder.add(at, builder.zext(first, INT))
            some = builder.icmp_unsigned("!=", bits, ir.Constant(BITS, 0))
            builder.store(builder.select(some, first, builder.load(held)), held)
    return cgutils.pack_struct(builder, [least, most, *map(builder.load, found)])


@instructions(types.UniTuple(types.float64, 2), *[types.int64] * 4)
def _order_statistics(builder: ir.IRBuilder, values: Any, count: Any, one: Any, other: Any) -> Any:
    """The values at two places in ascending order, from 0 on; NaN if there are not as many."""
    nothing = ir.Constant(VECTOR, [float("nan")] * WIDE)
    found = [cgutils.alloca_once_value(builder, ir.Constant(DOUBLE, float("nan"))) for _ in "12"]
    tallies = [cgutils.alloca_once(builder, INT) for _ in "12"]
    with cgutils.for_range(builder, count) as loop:
        value = load_number(builder, values, loop.index)
        own = everywhere(builder, value)
        for tally in tallies:
            builder.store(number(0), tally)
        with registers(builder, count) as (k, _):
            others = load_part(builder, values, k, lanes_where(builder, "<", k, count), nothing)
            for sign, tally in zip(("<", "<="), tallies, strict=True):
                bits = builder.bitcast(builder.fcmp_ordered(sign, others, own), BITS)
                more = builder.zext(builder.ctpop(bits), INT)
                builder.store(builder.add(builder.load(tally), more), tally)
        less, not_more = map(builder.load, tallies)
        for place, held in zip((one, other), found, strict=True):
            after = builder.icmp_signed("<=", less, place)
            here = builder.and_(after, builder.icmp_signed("<", place, not_more))
            builder.store(builder.select(here, value, builder.load(held)), held)
    return cgutils.pack_array(builder, list(map(builder.load, found)))
