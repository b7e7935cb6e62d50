"""Matrix product and transposition, built from register tiles.

`multiply` computes up to TILE rows of C = A B, or C += A B. TILE x 3 registers hold the result
while numbers of A are broadcast and rows of B are loaded, so only the multiply-add units limit the
speed. It covers the three products of a GRU: gates = W h, its gradient W' dg, and dW = dg h'. A
library's sgemm first copies its operands into another layout, a fifth of its time at
128 x 384 x 48.

    multiply(a, a_row, a_step, rows, b, b_row, depth, c, c_row, columns, keep)

a, b and c are addresses; a_row, b_row and c_row are the strides between rows in numbers, a_step
that between the numbers of a row of A: a_row = 1 multiplies with the transpose of what is stored. A
is [rows, depth], B [depth, columns], C [rows, columns]. rows is at most TILE, columns a multiple of
LANES; keep adds to what is in C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuels.kernels.jit import compiled
from fuels.kernels.numba_internals import cgutils, ir, types
from fuels.kernels.simd import (
    INT,
    LANES,
    TILE,
    VECTOR,
    add_product,
    broadcast_scalar,
    get,
    instructions,
    load_vector,
    number,
    pointer,
    put,
    store_vector,
)

UNROLL = 4


def _make_tile(rows: int, width: int) -> Callable[..., None]:
    """A product of `rows` rows of A by `width` registers of columns, entirely in registers."""

    @instructions(types.void, *[types.int64] * 8, types.boolean)
    def tile(
        builder: ir.IRBuilder, a: Any, a_row: Any, a_step: Any, b: Any, b_row: Any, depth: Any,
        c: Any, c_row: Any, keep: Any,
    ) -> None:  # fmt: skip
        targets = [
            pointer(builder, c, builder.add(builder.mul(c_row, number(m)), number(LANES * column)))
            for m in range(rows)
            for column in range(width)
        ]
        sums = [cgutils.alloca_once(builder, VECTOR) for _ in targets]
        with builder.if_else(keep) as (again, fresh):
            with again:
                for held, target in zip(sums, targets, strict=True):
                    builder.store(load_vector(builder, target), held)
            with fresh:
                for held in sums:
                    builder.store(ir.Constant(VECTOR, [0.0] * LANES), held)

        def step(k: Any) -> None:
            b_k = pointer(builder, b, builder.mul(k, b_row))
            columns = [
                load_vector(builder, builder.gep(b_k, [number(LANES * column)]))
                for column in range(width)
            ]
            for m in range(rows):
                place = builder.add(builder.mul(k, a_step), builder.mul(number(m), a_row))
                scalar = broadcast_scalar(
                    builder, builder.load(pointer(builder, a, place), align=4)
                )
                for column, values in enumerate(columns):
                    add_product(builder, scalar, values, sums[m * width + column])

        full = builder.sdiv(depth, number(UNROLL))
        with cgutils.for_range(builder, full) as loop:
            for u in range(UNROLL):
                step(builder.add(builder.mul(loop.index, number(UNROLL)), number(u)))
        with cgutils.for_range_slice(
            builder, builder.mul(full, number(UNROLL)), depth, number(1), INT
        ) as (k, _):
            step(k)
        for held, target in zip(sums, targets, strict=True):
            store_vector(builder, builder.load(held), target)

    return tile


_single = _make_tile(1, 1)
_tile1, _tile2, _tile3 = (_make_tile(TILE, width) for width in (1, 2, 3))


@compiled(types.void(*[types.int64] * 10, types.boolean))
def multiply(
    a: int, a_row: int, a_step: int, rows: int, b: int, b_row: int, depth: int,
    c: int, c_row: int, columns: int, keep: bool,
) -> None:  # fmt: skip
    """C = A B."""
    column = 0
    while column < columns:
        left = (columns - column) // LANES
        b_here, c_here = b + 4 * column, c + 4 * column
        if rows < TILE:
            for i in range(rows):
                c_i = c_here + 4 * i * c_row
                _single(a + 4 * i * a_row, a_row, a_step, b_here, b_row, depth, c_i, c_row, keep)
            column += LANES
        elif left == 3 or left > 4:
            _tile3(a, a_row, a_step, b_here, b_row, depth, c_here, c_row, keep)
            column += 3 * LANES
        elif left >= 2:
            _tile2(a, a_row, a_step, b_here, b_row, depth, c_here, c_row, keep)
            column += 2 * LANES
        else:
            _tile1(a, a_row, a_step, b_here, b_row, depth, c_here, c_row, keep)
            column += LANES


def _interleave(builder: ir.IRBuilder, a: Any, b: Any, start: int) -> Any:
    """a[start], b[start], a[start + 1], b[start + 1], ... to a full register."""
    picks = [start + i // 2 + (LANES if i % 2 else 0) for i in range(LANES)]
    mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), picks)
    return builder.shuffle_vector(a, b, mask)


@instructions(types.void, *[types.int64] * 4)
def _transpose_block(builder: ir.IRBuilder, src: Any, src_row: Any, dst: Any, dst_row: Any) -> None:
    """LANES x LANES numbers, by repeated interleaving of register i with register i + LANES / 2."""
    rows = [
        load_vector(builder, pointer(builder, src, builder.mul(src_row, number(i))))
        for i in range(LANES)
    ]
    half = LANES // 2
    for _ in range(LANES.bit_length() - 1):
        rows = [
            _interleave(builder, rows[i], rows[i + half], start)
            for i in range(half)
            for start in (0, half)
        ]
    for i, row in enumerate(rows):
        store_vector(builder, row, pointer(builder, dst, builder.mul(dst_row, number(i))))


@compiled(types.void(*[types.int64] * 6))
def transpose(src: int, src_row: int, rows: int, columns: int, dst: int, dst_row: int) -> None:
    """dst[j, i] = src[i, j] for i < rows, j < columns."""
    whole_rows, whole_columns = rows - rows % LANES, columns - columns % LANES
    for i in range(0, whole_rows, LANES):
        for j in range(0, whole_columns, LANES):
            _transpose_block(
                src + 4 * (i * src_row + j), src_row, dst + 4 * (j * dst_row + i), dst_row
            )
    for i in range(rows):
        for j in range(whole_columns if i < whole_rows else 0, columns):
            put(dst, j * dst_row + i, get(src, i * src_row + j))
