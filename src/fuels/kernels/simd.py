"""Vectors of float32 for Numba: the arithmetic of the kernels, one machine register at a time.

LLVM's automatic vectoriser gives up on loops over many arrays (it cannot prove that they do not
overlap), and no BLAS is fast on products as small as a GRU's. So the kernels are explicit: a value
of type `lanes` is LANES float32 numbers in a register, loaded from and stored to addresses, with
+ - * / between registers and with scalars.

Addresses are plain integers (`address(array)`), offsets count float32 numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numba.types

from fuels.kernels.numba_internals import cgutils, cpu_features, extending, ir, types


def _registers() -> tuple[int, int]:
    """(float32 numbers in a register, rows of a tile that fits the registers)."""
    features = cpu_features()
    if "+avx512f" in features:
        return 16, 8
    if "+avx" in features:
        return 8, 4
    return 4, 8 if "+neon" in features else 4  # NEON has 32 registers, SSE 16


LANES, TILE = _registers()


FLOAT = ir.FloatType()
INT = ir.IntType(64)
VECTOR = ir.VectorType(FLOAT, LANES)
FLAGS = ("contract", "arcp", "nsz")  # NaN and infinity keep their meaning


def intrinsic(generator: Callable[..., Any]) -> Callable[..., Any]:
    """A function for kernels, written as LLVM instructions."""
    made: Callable[..., Any] = extending.intrinsic(generator)
    return made


class LanesType(numba.types.Type):
    """The Numba type of a register of float32."""

    def __init__(self) -> None:
        super().__init__(name=f"lanes{LANES}")


lanes = LanesType()


def _model(manager: Any, kind: Any) -> Any:
    return extending.models.PrimitiveModel(manager, kind, VECTOR)


extending.register_model(LanesType)(_model)


def number(value: int) -> ir.Constant:
    return ir.Constant(INT, value)


def broadcast_scalar(builder: ir.IRBuilder, scalar: Any) -> Any:
    """The same scalar in every lane."""
    empty = ir.Constant(VECTOR, ir.Undefined)
    first = builder.insert_element(empty, scalar, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(first, empty, zeros)


def _as_vector(builder: ir.IRBuilder, kind: Any, value: Any) -> Any:
    if isinstance(kind, LanesType):
        return value
    if kind == types.float64:
        value = builder.fptrunc(value, FLOAT)
    return broadcast_scalar(builder, value)


def _register_operator(function: Callable[..., Any], name: str) -> None:
    scalars = (types.float32, types.float64)

    def typing(context: Any) -> Callable[[Any, Any], Any]:
        def typer(a: Any, b: Any) -> Any:
            kinds = (a, b)
            if any(isinstance(k, LanesType) for k in kinds) and all(
                isinstance(k, LanesType) or k in scalars for k in kinds
            ):
                return lanes
            return None

        return typer

    def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        a, b = (_as_vector(builder, k, v) for k, v in zip(signature.args, values, strict=True))
        return getattr(builder, name)(a, b, flags=FLAGS)

    extending.type_callable(function)(typing)
    extending.lower_builtin(function, LanesType, LanesType)(lower)
    for scalar in scalars:
        extending.lower_builtin(function, LanesType, scalar)(lower)
        extending.lower_builtin(function, scalar, LanesType)(lower)


for _function, _name in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _register_operator(_function, _name)


def pointer(builder: ir.IRBuilder, address: Any, offset: Any) -> Any:
    return builder.gep(builder.inttoptr(address, FLOAT.as_pointer()), [offset])


def load_vector(builder: ir.IRBuilder, pointer: Any) -> Any:
    return builder.load(builder.bitcast(pointer, VECTOR.as_pointer()), align=4)


def store_vector(builder: ir.IRBuilder, value: Any, pointer: Any) -> None:
    builder.store(value, builder.bitcast(pointer, VECTOR.as_pointer()), align=4)


@intrinsic
def address(typingctx: Any, array: Any) -> Any:
    """Address of an array's first number; does not keep the array alive."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, INT)

    return types.int64(array), generate


@intrinsic
def load(typingctx: Any, base: Any, offset: Any) -> Any:
    """LANES numbers from base + offset."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return load_vector(builder, pointer(builder, *args))

    return lanes(types.int64, types.int64), generate


@intrinsic
def store(typingctx: Any, base: Any, offset: Any, value: Any) -> Any:
    """LANES numbers to base + offset."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        store_vector(builder, args[2], pointer(builder, args[0], args[1]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, lanes), generate


@intrinsic
def get(typingctx: Any, base: Any, offset: Any) -> Any:
    """One number from base + offset."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.load(pointer(builder, *args), align=4)

    return types.float32(types.int64, types.int64), generate


@intrinsic
def put(typingctx: Any, base: Any, offset: Any, value: Any) -> Any:
    """One number to base + offset."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        builder.store(args[2], pointer(builder, args[0], args[1]), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), generate


@intrinsic
def broadcast(typingctx: Any, value: Any) -> Any:
    """A scalar in every lane."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return broadcast_scalar(builder, args[0])

    return lanes(types.float32), generate


@intrinsic
def total(typingctx: Any, value: Any) -> Any:
    """Sum over the lanes."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(FLOAT, [FLOAT, VECTOR])
        name = f"llvm.vector.reduce.fadd.v{LANES}f32"
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.call(function, [ir.Constant(FLOAT, 0.0), args[0]], fastmath=("reassoc",))

    return types.float32(lanes), generate


@intrinsic
def root(typingctx: Any, value: Any) -> Any:
    """Square root of lanes or of a float32."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        kind = args[0].type
        name = f"llvm.sqrt.v{LANES}f32" if kind == VECTOR else "llvm.sqrt.f32"
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(kind, [kind]), name
        )
        return builder.call(function, [args[0]])

    return value(value), generate


@intrinsic
def clamp(typingctx: Any, value: Any, limit: Any) -> Any:
    """Each lane clamped to [-limit, limit]; NaN stays NaN."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        high = broadcast_scalar(builder, args[1])
        low = broadcast_scalar(builder, builder.fneg(args[1]))
        capped = builder.select(builder.fcmp_ordered(">", args[0], high), high, args[0])
        return builder.select(builder.fcmp_ordered("<", capped, low), low, capped)

    return lanes(lanes, types.float32), generate


@intrinsic
def ratio(typingctx: Any, over: Any, under: Any) -> Any:
    """over / under for finite numbers, by the processor's estimate and a Newton step (1e-7)."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.fdiv(args[0], args[1], flags=(*FLAGS, "ninf"))

    return lanes(lanes, lanes), generate


@intrinsic
def any_above(typingctx: Any, value: Any, limit: Any) -> Any:
    """Whether any lane exceeds the limit."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        above = builder.fcmp_ordered(">", args[0], broadcast_scalar(builder, args[1]))
        bits = builder.bitcast(above, ir.IntType(LANES))
        return builder.icmp_unsigned("!=", bits, ir.Constant(ir.IntType(LANES), 0))

    return types.boolean(lanes, types.float32), generate


@intrinsic
def greater(typingctx: Any, a: Any, b: Any) -> Any:
    """The larger of each lane of a and b; NaN if the lane of b is NaN."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", args[0], args[1]), args[0], args[1])

    return lanes(lanes, lanes), generate


@intrinsic
def split_power(typingctx: Any, value: Any) -> Any:
    """(e, m) with value = 2^e m and m in [0.75, 1.5), for positive numbers; 0 gives e = -127."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        whole = ir.VectorType(ir.IntType(32), LANES)
        shift = ir.Constant(whole, [23] * LANES)
        bits = builder.bitcast(args[0], whole)
        above = builder.sub(bits, ir.Constant(whole, [0x3F400000] * LANES))  # bits of 0.75
        exponent = builder.ashr(above, shift)
        mantissa = builder.bitcast(builder.sub(bits, builder.shl(exponent, shift)), VECTOR)
        return cgutils.pack_array(builder, [builder.sitofp(exponent, VECTOR), mantissa])

    return types.Tuple((lanes, lanes))(lanes), generate
