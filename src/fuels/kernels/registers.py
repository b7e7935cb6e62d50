"""Arrays of float64 numbers, a machine register at a time: for kernels with short loops.

Addresses are integers, offsets count numbers. A padded array has whole registers; of others, the
last register is loaded and stored in part.
"""

from __future__ import annotations

from typing import Any

from fuels.kernels.jit import compiled
from fuels.kernels.numba_internals import cgutils, ir
from fuels.kernels.simd import DOUBLE, INT, broadcast_scalar, number, pointer
from fuels.kernels.simd_f64 import WIDE

VECTOR, PLACES = ir.VectorType(DOUBLE, WIDE), ir.VectorType(INT, WIDE)
FLAGS = ir.VectorType(ir.IntType(1), WIDE)
_ALIGN = ir.Constant(ir.IntType(32), 8)


@compiled()
def padded(count: int) -> int:
    """count, rounded up to whole registers."""
    return -(-count // WIDE) * WIDE


def registers(builder: ir.IRBuilder, count: Any) -> Any:
    """A loop over the registers of an array."""
    return cgutils.for_range_slice(builder, number(0), count, number(WIDE), INT)


def _at(builder: ir.IRBuilder, address: Any, offset: Any, kind: Any) -> Any:
    return builder.bitcast(pointer(builder, address, offset, DOUBLE), kind.as_pointer())


def load_number(builder: ir.IRBuilder, address: Any, offset: Any) -> Any:
    return builder.load(_at(builder, address, offset, DOUBLE), align=8)


def load(builder: ir.IRBuilder, address: Any, offset: Any) -> Any:
    return builder.load(_at(builder, address, offset, VECTOR), align=8)


def store(builder: ir.IRBuilder, value: Any, address: Any, offset: Any) -> None:
    builder.store(value, _at(builder, address, offset, VECTOR), align=8)


def load_part(
    builder: ir.IRBuilder, address: Any, offset: Any, inside: Any, outside: Any = None
) -> Any:
    """A register of which only the lanes `inside` are read; the others are `outside`, or 0."""
    place = _at(builder, address, offset, VECTOR)
    kind = ir.FunctionType(VECTOR, [place.type, ir.IntType(32), FLAGS, VECTOR])
    rest = ir.Constant(VECTOR, [0.0] * WIDE) if outside is None else outside
    return _masked(builder, f"load.v{WIDE}f64.p0", kind, [place, _ALIGN, inside, rest])


def store_part(builder: ir.IRBuilder, value: Any, address: Any, offset: Any, inside: Any) -> None:
    place = _at(builder, address, offset, VECTOR)
    kind = ir.FunctionType(ir.VoidType(), [VECTOR, place.type, ir.IntType(32), FLAGS])
    _masked(builder, f"store.v{WIDE}f64.p0", kind, [value, place, _ALIGN, inside])


def _masked(builder: ir.IRBuilder, name: str, kind: Any, given: Any) -> Any:
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.{name}")
    return builder.call(function, given)


def everywhere(builder: ir.IRBuilder, scalar: Any) -> Any:
    """The same number or place in every lane."""
    return broadcast_scalar(builder, scalar, WIDE)


def lanes_where(builder: ir.IRBuilder, sign: str, k: Any, place: Any) -> Any:
    """Which numbers of the register at k are at places that compare with `place` as `sign` says."""
    limit = everywhere(builder, builder.sub(place, k))
    return builder.icmp_signed(sign, ir.Constant(PLACES, list(range(WIDE))), limit)


def reduced(builder: ir.IRBuilder, name: str, lanes: Any) -> Any:
    """The least or largest lane (fmin, fmax), none of which is missing."""
    kind, full = ir.FunctionType(DOUBLE, [VECTOR]), f"llvm.vector.reduce.{name}.v{WIDE}f64"
    function = cgutils.get_or_insert_function(builder.module, kind, full)
    return builder.call(function, [lanes], fastmath=("nnan",))
