"""Sums over float32 numbers in double precision, one machine register at a time.

Cosines of nearly parallel rows differ in digits that float32 does not have, and a small temperature
amplifies the difference. So the contrastive losses sum their products in double registers, while
everything in memory stays float32. As in matmul.py, registers hold a tile of results.

    dots(a, a_row, rows, b, b_row, columns, depth, out, out_row)      out[m, n] = a[m] . b[n]
    pairs(a, a_row, rows, b, b_row, depth, out)                       out[m] = a[m] . b[m]
    combine(by, by_row, by_step, x, x_row, depth, terms, count, rows, out, out_row, width)
                            out[m] = sum_i by[m, i] x[i] + sum_t scale_t[m] row_t[m]
    exponentials(x, count)                                            x[i] = e^x[i] for x[i] <= 0

a, b, the x and out of combine and row_t are addresses of float32 numbers, all others of float64;
*_row and by_step are strides in numbers. terms is the address of int64 [count, 3]: the addresses of
scale_t [rows] and of row_t [rows, width], and the stride between the latter's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial, log
from typing import Any

from fuels.kernels.jit import compiled
from fuels.kernels.numba_internals import cgutils, ir, types
from fuels.kernels.simd import (
    DOUBLE,
    FLOAT,
    INT,
    LANES,
    add_lanes,
    add_product,
    broadcast_scalar,
    instructions,
    number,
    pointer,
)

WIDE = LANES // 2  # double numbers in a register
ROWS, COLUMNS = 4, 4 if LANES == 16 else 2  # a tile that fits the registers
CHAINS = 4  # parallel partial sums of one product: an addition takes four cycles


def _load(builder: ir.IRBuilder, place: Any, lanes: int) -> Any:
    """`lanes` float32 numbers as double ones."""
    held = builder.bitcast(place, ir.VectorType(FLOAT, lanes).as_pointer())
    return builder.fpext(builder.load(held, align=4), ir.VectorType(DOUBLE, lanes))


def _zeros(builder: ir.IRBuilder, count: int, lanes: int) -> list[Any]:
    kind = ir.VectorType(DOUBLE, lanes)
    held = [cgutils.alloca_once(builder, kind) for _ in range(count)]
    for place in held:
        builder.store(ir.Constant(kind, [0.0] * lanes), place)
    return held


def _make_dots(rows: int, columns: int, chains: int) -> Callable[..., None]:
    """Products of `rows` rows with `columns` rows; the rest of the depth is summed one by one."""

    @instructions(types.void, *[types.int64] * 7)
    def tile(
        builder: ir.IRBuilder, a: Any, a_row: Any, b: Any, b_row: Any, depth: Any, out: Any,
        out_row: Any,
    ) -> None:  # fmt: skip
        sums = _zeros(builder, chains * rows * columns, WIDE)
        of_a = [pointer(builder, a, builder.mul(a_row, number(m))) for m in range(rows)]
        of_b = [pointer(builder, b, builder.mul(b_row, number(n))) for n in range(columns)]
        pairs = [(m, n) for m in range(rows) for n in range(columns)]
        step = number(chains * WIDE)
        whole = builder.mul(builder.sdiv(depth, step), step)
        with cgutils.for_range_slice(builder, number(0), whole, step, INT) as (k, _):
            for chain in range(chains):
                at = builder.add(k, number(chain * WIDE))
                left = [_load(builder, builder.gep(place, [at]), WIDE) for place in of_a]
                right = [_load(builder, builder.gep(place, [at]), WIDE) for place in of_b]
                for i, (m, n) in enumerate(pairs):
                    add_product(builder, left[m], right[n], sums[chain * len(pairs) + i])
        totals = []
        for i in range(len(pairs)):
            lanes = builder.load(sums[i])
            for chain in range(1, chains):
                lanes = builder.fadd(lanes, builder.load(sums[chain * len(pairs) + i]))
            totals.append(cgutils.alloca_once_value(builder, add_lanes(builder, lanes)))
        with cgutils.for_range_slice(builder, whole, depth, number(1), INT) as (k, _):
            for (m, n), held in zip(pairs, totals, strict=True):
                x, y = (
                    builder.fpext(builder.load(builder.gep(place, [k]), align=4), DOUBLE)
                    for place in (of_a[m], of_b[n])
                )
                builder.store(builder.fadd(builder.load(held), builder.fmul(x, y)), held)
        for (m, n), held in zip(pairs, totals, strict=True):
            place = builder.add(builder.mul(out_row, number(m)), number(n))
            builder.store(builder.load(held), pointer(builder, out, place, DOUBLE))

    return tile


_dots, _dot = _make_dots(ROWS, COLUMNS, 1), _make_dots(1, 1, CHAINS)


@compiled(types.void(*[types.int64] * 9))
def dots(
    a: int, a_row: int, rows: int, b: int, b_row: int, columns: int, depth: int,
    out: int, out_row: int,
) -> None:  # fmt: skip
    """out [rows, columns] = the products of every row of a with every row of b."""
    whole_rows, whole_columns = rows - rows % ROWS, columns - columns % COLUMNS
    for m in range(0, whole_rows, ROWS):
        for n in range(0, whole_columns, COLUMNS):
            at = out + 8 * (m * out_row + n)
            _dots(a + 4 * m * a_row, a_row, b + 4 * n * b_row, b_row, depth, at, out_row)
    for m in range(rows):
        for n in range(whole_columns if m < whole_rows else 0, columns):
            at = out + 8 * (m * out_row + n)
            _dot(a + 4 * m * a_row, a_row, b + 4 * n * b_row, b_row, depth, at, out_row)


@compiled(types.void(*[types.int64] * 7))
def pairs(a: int, a_row: int, rows: int, b: int, b_row: int, depth: int, out: int) -> None:
    """out [rows] = the products of the rows of a with those of b; b_row = 0: with one row."""
    for m in range(rows):
        _dot(a + 4 * m * a_row, a_row, b + 4 * m * b_row, b_row, depth, out + 8 * m, 1)


def _make_combination(rows: int, columns: int, lanes: int) -> Callable[..., None]:
    """`rows` rows by `columns` registers of a combination, rounded to float32 once at its end."""

    @instructions(types.void, *[types.int64] * 12)
    def tile(
        builder: ir.IRBuilder, by: Any, by_row: Any, by_step: Any, x: Any, x_row: Any, depth: Any,
        terms: Any, count: Any, row: Any, out: Any, out_row: Any, column: Any,
    ) -> None:  # fmt: skip
        sums = _zeros(builder, rows * columns, lanes)
        registers = [builder.add(column, number(lanes * n)) for n in range(columns)]

        def values(address: Any, distance: Any, index: Any) -> list[Any]:
            start = builder.mul(index, distance)
            places = [pointer(builder, address, builder.add(start, at)) for at in registers]
            return [_load(builder, place, lanes) for place in places]

        with cgutils.for_range(builder, depth) as loop:
            found = values(x, x_row, loop.index)
            for m in range(rows):
                at = builder.add(
                    builder.mul(builder.add(row, number(m)), by_row),
                    builder.mul(loop.index, by_step),
                )
                scalar = builder.load(pointer(builder, by, at, DOUBLE))
                factor = broadcast_scalar(builder, scalar, lanes)
                for n in range(columns):
                    add_product(builder, factor, found[n], sums[m * columns + n])
        with cgutils.for_range(builder, count) as loop:
            table = builder.inttoptr(terms, INT.as_pointer())
            first = builder.mul(loop.index, number(3))
            scale, term, term_row = (
                builder.load(builder.gep(table, [builder.add(first, number(i))])) for i in range(3)
            )
            for m in range(rows):
                index = builder.add(row, number(m))
                scalar = builder.load(pointer(builder, scale, index, DOUBLE))
                factor = broadcast_scalar(builder, scalar, lanes)
                for n, value in enumerate(values(term, term_row, index)):
                    add_product(builder, factor, value, sums[m * columns + n])
        single = ir.VectorType(FLOAT, lanes)
        for m in range(rows):
            start = builder.mul(builder.add(row, number(m)), out_row)
            for n, at in enumerate(registers):
                place = pointer(builder, out, builder.add(start, at))
                rounded = builder.fptrunc(builder.load(sums[m * columns + n]), single)
                builder.store(rounded, builder.bitcast(place, single.as_pointer()), align=4)

    return tile


_combine = _make_combination(ROWS, COLUMNS, WIDE)
_combine_register = _make_combination(1, 1, WIDE)
_combine_number = _make_combination(1, 1, 1)


@compiled(types.void(*[types.int64] * 12))
def combine(
    by: int, by_row: int, by_step: int, x: int, x_row: int, depth: int, terms: int, count: int,
    rows: int, out: int, out_row: int, width: int,
) -> None:  # fmt: skip
    """out [rows, width]: combinations of the rows of x, plus a scaled row of every term."""
    tile = COLUMNS * WIDE
    tall, wide, whole = rows - rows % ROWS, width - width % tile, width - width % WIDE
    for column in range(0, wide, tile):
        for row in range(0, tall, ROWS):
            _combine(
                by, by_row, by_step, x, x_row, depth, terms, count, row, out, out_row, column
            )  # fmt: skip
    for row in range(rows):
        start = wide if row < tall else 0
        for column in range(start, whole, WIDE):
            _combine_register(
                by, by_row, by_step, x, x_row, depth, terms, count, row, out, out_row, column
            )  # fmt: skip
        for column in range(whole, width):
            _combine_number(
                by, by_row, by_step, x, x_row, depth, terms, count, row, out, out_row, column
            )  # fmt: skip


LOWEST = -708.0  # e^x is a normal number down to here, and 0 below
SHIFT = 1.5 * 2.0**52  # x + SHIFT holds x, rounded to an integer, in its last bits


def _make_exponentials(lanes: int) -> Callable[..., None]:
    """e^x = 2^n e^r with n the integer nearest to x / ln 2 and |r| < 0.35, to 1e-14."""
    kind, bits = ir.VectorType(DOUBLE, lanes), ir.VectorType(INT, lanes)

    def all_lanes(value: float) -> Any:
        return ir.Constant(kind, [value] * lanes)

    @instructions(types.void, types.int64, types.int64)
    def of_register(builder: ir.IRBuilder, address: Any, offset: Any) -> None:
        place = builder.bitcast(pointer(builder, address, offset, DOUBLE), kind.as_pointer())
        x = builder.load(place, align=8)
        low = builder.fcmp_ordered("<", x, all_lanes(LOWEST))
        held = builder.select(low, all_lanes(LOWEST), x)
        shifted = builder.fadd(builder.fmul(held, all_lanes(1.0 / log(2.0))), all_lanes(SHIFT))
        n = builder.fsub(shifted, all_lanes(SHIFT))
        # ln 2 in two pieces: n times the first is exact.
        r = builder.fsub(held, builder.fmul(n, all_lanes(0.693147180369123816490)))
        r = builder.fsub(r, builder.fmul(n, all_lanes(1.90821492927058770002e-10)))
        p = all_lanes(1.0 / factorial(11))
        for k in range(10, -1, -1):
            p = builder.fadd(builder.fmul(p, r), all_lanes(1.0 / factorial(k)), flags=("contract",))
        power = builder.shl(builder.bitcast(shifted, bits), ir.Constant(bits, [52] * lanes))
        scaled = builder.bitcast(builder.add(builder.bitcast(p, bits), power), kind)
        scaled = builder.select(low, all_lanes(0.0), scaled)
        is_nan = builder.fcmp_unordered("uno", x, x)
        builder.store(builder.select(is_nan, x, scaled), place, align=8)

    return of_register


_exponentials, _exponential = _make_exponentials(WIDE), _make_exponentials(1)


@compiled(types.void(types.int64, types.int64))
def exponentials(x: int, count: int) -> None:
    """e^x in place of x <= 0."""
    whole = count - count % WIDE
    for i in range(0, whole, WIDE):
        _exponentials(x, i)
    for i in range(whole, count):
        _exponential(x, i)
