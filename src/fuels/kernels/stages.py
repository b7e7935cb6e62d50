"""Stages: each client goes through a list of kernels before the next client starts.

Parameters, tape and gradient of one client fit a processor's cache; those of a group do not. Stage
after stage for all clients would fetch from memory what the previous stage has just written. A call
from Python in between costs ten microseconds once its code has left the cache. So a stage is a
compiled function of two numbers, the address of a table with everything it needs and the client to
work on, and the loop over clients and stages is compiled too. It calls stages by address: a kernel
is compiled once, whichever lists it is in.

A table holds 64-bit numbers, integer or real. A stage allocates no memory: an exception inside it
would be lost, and Numba frees an array after its last use by name, even if its address is still in
use. It gets scratch memory instead, and views it as arrays.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numba import carray, int64, void  # type: ignore[attr-defined]
from numpy.typing import NDArray
from torch import Tensor

from fuels.arrays import Integers
from fuels.kernels.jit import compiled
from fuels.kernels.numba_internals import cgutils, code_address, extending, ir, types
from fuels.kernels.simd import DOUBLE, INT, instructions, number, pointer

STAGE = void(int64, int64)  # (address of the table, client)

# Entries of a table: numbers, and memory by its address; None becomes 0.
Given = int | float | Tensor | NDArray[Any] | None

_addresses: dict[Any, int] = {}


class _Scratch(threading.local):
    """Scratch memory of one thread, which a stage may use until it ends."""

    def __init__(self) -> None:
        self.memory = torch.empty(0)


_scratch = _Scratch()


class Stage:
    """A kernel with its table."""

    def __init__(self, kernel: Callable[[int, int], None], *given: Given) -> None:
        self.kernel, self.held = kernel, given  # held: an address does not keep memory alive
        self.table = np.array([_entry(value) for value in given], dtype=np.int64)


def scratch(size: int) -> Tensor:
    """At least `size` numbers of 4 bytes, which all stages of this thread share.

    Fresh memory costs a page fault for every 4 kB, more than the work done in it.
    """
    if _scratch.memory.numel() < size:
        _scratch.memory = torch.empty(size)
    return _scratch.memory


def run(stages: Sequence[Stage], clients: int) -> None:
    """Run all stages of each client, client by client."""
    found = [(_address(stage.kernel), stage.table.ctypes.data) for stage in stages]
    call_all(np.array(found, dtype=np.int64).reshape(-1, 2), clients)


def _entry(value: Given) -> int:
    if type(value) is int:  # most are
        return value
    if isinstance(value, Tensor):
        return value.data_ptr()
    if isinstance(value, float):
        return int(struct.unpack("q", struct.pack("d", value))[0])
    if isinstance(value, np.ndarray):
        return value.ctypes.data
    return 0 if value is None else int(value)


def _address(kernel: Any) -> int:
    if kernel not in _addresses:
        _addresses[kernel] = code_address(kernel)
    return _addresses[kernel]


# -- inside a stage --------------------------------------------------------------------------------


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

    # It needs the literal values of `first` and `count`: they decide the type of the result.
    made: Callable[[int, int, int], tuple[Any, ...]] = extending.intrinsic(prefer_literal=True)(
        read
    )
    return made


# Entries first to first + count - 1 of a table.
ints = _make_reader(types.int64, INT)
reals = _make_reader(types.float64, DOUBLE)


def _make_pointer(kind: Any, element: Any) -> Callable[[int], Any]:
    @instructions(types.CPointer(kind), types.int64)
    def point(builder: ir.IRBuilder, address: Any) -> Any:
        return builder.inttoptr(address, element.as_pointer())

    return point


_real_pointer = _make_pointer(types.float64, DOUBLE)
_int_pointer = _make_pointer(types.int64, INT)


@compiled()
def vector(memory: int, first: int, count: int) -> np.ndarray:
    """Real numbers [count] in memory, from number `first` on."""
    return carray(_real_pointer(memory + 8 * first), (count,))


@compiled()
def matrix(memory: int, first: int, rows: int, columns: int) -> np.ndarray:
    """Real numbers [rows, columns] in memory, from number `first` on."""
    return carray(_real_pointer(memory + 8 * first), (rows, columns))


@compiled()
def int_matrix(memory: int, first: int, rows: int, columns: int) -> np.ndarray:
    """Integers [rows, columns] in memory, from number `first` on."""
    return carray(_int_pointer(memory + 8 * first), (rows, columns))


@instructions(types.boolean, types.int64, types.int64)
def flag(builder: ir.IRBuilder, base: Any, offset: Any) -> Any:
    """Whether a byte is not 0, as torch stores a bool."""
    place = pointer(builder, base, offset, ir.IntType(8))
    return builder.icmp_unsigned("!=", builder.load(place), ir.Constant(ir.IntType(8), 0))


@instructions(types.void, *[types.int64] * 3)
def _call(builder: ir.IRBuilder, function: Any, table: Any, client: Any) -> None:
    """Calls the function at an address with (table, client)."""
    kind = ir.FunctionType(ir.VoidType(), [INT, INT])
    builder.call(builder.inttoptr(function, kind.as_pointer()), [table, client])


@compiled(void(int64[:, ::1], int64))
def call_all(stages: Integers, clients: int) -> None:
    """Run all stages [(function, table)] of each client, client by client."""
    for client in range(clients):
        for stage in range(len(stages)):
            _call(stages[stage, 0], stages[stage, 1], client)
