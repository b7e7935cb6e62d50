"""Vectors of float32 for Numba: the arithmetic of the kernels, one machine register at a time.

LLVM's automatic vectoriser gives up on loops over many arrays (it cannot prove that they do not
overlap), and no BLAS is fast on products as small as a GRU's. So the kernels are explicit: a value
of type `lanes` is LANES float32 numbers in a register, loaded from and stored to addresses, with
+ - * / between registers and with scalars.

Addresses are plain integers (`address(array)`), offsets count float32 numbers.
"""

from __future__ import annotations

import inspect
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


FLOAT, DOUBLE = ir.FloatType(), ir.DoubleType()
INT = ir.IntType(64)
VECTOR = ir.VectorType(FLOAT, LANES)
FLAGS = ("contract", "arcp", "nsz")  # NaN and infinity keep their meaning


def intrinsic(generator: Callable[..., Any]) -> Callable[..., Any]:
    """A function for kernels, written as LLVM instructions."""
    made: Callable[..., Any] = extending.intrinsic(generator)
    return made


def instructions(result: Any, *types_: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function for kernels from one that writes its LLVM instructions: write(builder, *values).

    It takes values of these types; a result of type void needs no value.
    """

    def decorate(write: Callable[..., Any]) -> Callable[..., Any]:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            value = write(builder, *args)
            return context.get_dummy_value() if value is None else value

        def typing(context: Any, *given: Any) -> Any:
            return result(*types_), generate

        # Numba reads the names of the arguments.
        own = list(inspect.signature(write).parameters.values())[1:]
        first = inspect.Parameter("typingctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        typing.__dict__["__signature__"] = inspect.Signature([first, *own])
        typing.__name__, typing.__doc__ = write.__name__, write.__doc__
        return intrinsic(typing)

    return decorate


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


def broadcast_scalar(builder: ir.IRBuilder, scalar: Any, lanes: int = LANES) -> Any:
    """The same scalar in every lane."""
    empty = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    first = builder.insert_element(empty, scalar, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
    return builder.shuffle_vector(first, empty, zeros)


def llvm(builder: ir.IRBuilder, name: str, *values: Any, **flags: Any) -> Any:
    """A call of LLVM's function of this name, for the type of the last value."""
    kind, result = values[-1].type, values[0].type
    suffix = "f64" if DOUBLE in (kind, getattr(kind, "element", None)) else "f32"
    if isinstance(kind, ir.VectorType):
        suffix = f"v{kind.count}{suffix}"
    takes = ir.FunctionType(result, [value.type for value in values])
    function = cgutils.get_or_insert_function(builder.module, takes, f"llvm.{name}.{suffix}")
    return builder.call(function, values, **flags)


def add_product(builder: ir.IRBuilder, a: Any, b: Any, held: Any) -> None:
    """Add a b to the register that is held."""
    builder.store(llvm(builder, "fmuladd", a, b, builder.load(held)), held)


def add_lanes(builder: ir.IRBuilder, value: Any) -> Any:
    """The sum over the lanes."""
    zero = ir.Constant(value.type.element, 0.0)
    return llvm(builder, "vector.reduce.fadd", zero, value, fastmath=("reassoc",))


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


def pointer(builder: ir.IRBuilder, address: Any, offset: Any, kind: Any = FLOAT) -> Any:
    return builder.gep(builder.inttoptr(address, kind.as_pointer()), [offset])


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


@instructions(lanes, types.int64, types.int64)
def load(builder: ir.IRBuilder, base: Any, offset: Any) -> Any:
    """LANES numbers from base + offset."""
    return load_vector(builder, pointer(builder, base, offset))


@instructions(types.void, types.int64, types.int64, lanes)
def store(builder: ir.IRBuilder, base: Any, offset: Any, value: Any) -> None:
    """LANES numbers to base + offset."""
    store_vector(builder, value, pointer(builder, base, offset))


@instructions(types.float32, types.int64, types.int64)
def get(builder: ir.IRBuilder, base: Any, offset: Any) -> Any:
    """One number from base + offset."""
    return builder.load(pointer(builder, base, offset), align=4)


@instructions(types.void, types.int64, types.int64, types.float32)
def put(builder: ir.IRBuilder, base: Any, offset: Any, value: Any) -> None:
    """One number to base + offset."""
    builder.store(value, pointer(builder, base, offset), align=4)


@instructions(lanes, types.float32)
def broadcast(builder: ir.IRBuilder, value: Any) -> Any:
    """A scalar in every lane."""
    return broadcast_scalar(builder, value)


@instructions(types.float32, lanes)
def total(builder: ir.IRBuilder, value: Any) -> Any:
    """Sum over the lanes."""
    return add_lanes(builder, value)


@intrinsic
def root(typingctx: Any, value: Any) -> Any:
    """Square root of lanes or of a float32."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return llvm(builder, "sqrt", args[0])

    return value(value), generate


@instructions(lanes, lanes, types.float32)
def clamp(builder: ir.IRBuilder, value: Any, limit: Any) -> Any:
    """Each lane clamped to [-limit, limit]; NaN stays NaN."""
    high = broadcast_scalar(builder, limit)
    low = broadcast_scalar(builder, builder.fneg(limit))
    capped = builder.select(builder.fcmp_ordered(">", value, high), high, value)
    return builder.select(builder.fcmp_ordered("<", capped, low), low, capped)


@instructions(lanes, lanes, lanes)
def ratio(builder: ir.IRBuilder, over: Any, under: Any) -> Any:
    """over / under for finite numbers, by the processor's estimate and a Newton step (1e-7)."""
    return builder.fdiv(over, under, flags=(*FLAGS, "ninf"))


@instructions(types.boolean, lanes, types.float32)
def any_above(builder: ir.IRBuilder, value: Any, limit: Any) -> Any:
    """Whether any lane exceeds the limit."""
    above = builder.fcmp_ordered(">", value, broadcast_scalar(builder, limit))
    bits = builder.bitcast(above, ir.IntType(LANES))
    return builder.icmp_unsigned("!=", bits, ir.Constant(ir.IntType(LANES), 0))


@instructions(lanes, lanes, lanes)
def greater(builder: ir.IRBuilder, a: Any, b: Any) -> Any:
    """The larger of each lane of a and b; NaN if the lane of b is NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@instructions(types.Tuple((lanes, lanes)), lanes)
def split_power(builder: ir.IRBuilder, value: Any) -> Any:
    """(e, m) with value = 2^e m and m in [0.75, 1.5), for positive numbers; 0 gives e = -127."""
    whole = ir.VectorType(ir.IntType(32), LANES)
    shift = ir.Constant(whole, [23] * LANES)
    bits = builder.bitcast(value, whole)
    above = builder.sub(bits, ir.Constant(whole, [0x3F400000] * LANES))  # bits of 0.75
    exponent = builder.ashr(above, shift)
    mantissa = builder.bitcast(builder.sub(bits, builder.shl(exponent, shift)), VECTOR)
    return cgutils.pack_array(builder, [builder.sitofp(exponent, VECTOR), mantissa])
