"""What a stage is to Numba: its signature, how it reads its table, and the loop that calls stages.

stages.py says what stages are for. A table holds 64-bit numbers, whole or real. A stage owns no
memory: an exception inside it would be lost, and an array made in compiled code is freed after its
last use by name, whoever still has its address. It is given room, and looks at it as arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, int64, void  # type: ignore[attr-defined]
from numpy.typing import NDArray

from fuels.kernels.jit import compiled
from fuels.kernels.simd import INT, cgutils, extending, intrinsic, number, types

STAGE = void(int64, int64)  # (address of its table, client)


literally: Any = extending.intrinsic(prefer_literal=True)  # it sees the constants in a call


def _make_reader(kind: Any, element: Any) -> Callable[[int, int, int], tuple[Any, ...]]:
    def read(typingctx: Any, table: Any, first: Any, count: Any) -> Any:
        if not isinstance(first, types.IntegerLiteral) or not isinstance(
            count, types.IntegerLiteral
        ):
            return None
        places = range(first.literal_value, first.literal_value + count.literal_value)

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            base = builder.inttoptr(args[0], element.as_pointer())
            values = [builder.load(builder.gep(base, [number(i)])) for i in places]
            return cgutils.pack_array(builder, values)

        return types.Tuple([kind] * len(places))(types.int64, first, count), generate

    made: Callable[[int, int, int], tuple[Any, ...]] = literally(read)
    return made


# Entries first to first + count - 1 of a table.
wholes = _make_reader(types.int64, INT)
reals = _make_reader(types.float64, ir.DoubleType())


def _make_pointer(kind: Any, element: Any) -> Callable[[int], Any]:
    def point(typingctx: Any, address: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], element.as_pointer())

        return types.CPointer(kind)(types.int64), generate

    return intrinsic(point)


_reals_at = _make_pointer(types.float64, ir.DoubleType())
_wholes_at = _make_pointer(types.int64, INT)


@compiled()
def vector(room: int, first: int, count: int) -> np.ndarray:
    """Real numbers first to first + count - 1 of some room, [count]."""
    return carray(_reals_at(room + 8 * first), (count,))


@compiled()
def matrix(room: int, first: int, rows: int, columns: int) -> np.ndarray:
    """Real numbers of some room from the first on, [rows, columns]."""
    return carray(_reals_at(room + 8 * first), (rows, columns))


@compiled()
def whole_matrix(room: int, first: int, rows: int, columns: int) -> np.ndarray:
    """Whole numbers of some room from the first on, [rows, columns]."""
    return carray(_wholes_at(room + 8 * first), (rows, columns))


@intrinsic
def flag(typingctx: Any, base: Any, offset: Any) -> Any:
    """Whether a byte is not 0, as torch keeps a bool."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        place = builder.gep(builder.inttoptr(args[0], ir.IntType(8).as_pointer()), [args[1]])
        return builder.icmp_unsigned("!=", builder.load(place), ir.Constant(ir.IntType(8), 0))

    return types.boolean(types.int64, types.int64), generate


@intrinsic
def _call(typingctx: Any, function: Any, table: Any, client: Any) -> Any:
    """The function at an address on (table, client)."""
    kind = ir.FunctionType(ir.VoidType(), [INT, INT])

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


@compiled(void(int64[:, ::1], int64))
def call_all(stages: NDArray[np.int64], clients: int) -> None:
    """All stages [(function, table)] of each client, client after client."""
    for client in range(clients):
        for stage in range(len(stages)):
            _call(stages[stage, 0], stages[stage, 1], client)
