"""Kernels as stages: a client goes through a list of them before the next client starts.

Parameters, tape and gradient of a client fit a processor's cache, those of a group of clients do
not: stage after stage for all of them would fetch from memory what the stage before has just
written. And a call from Python in between costs ten microseconds when its code has left the cache.
So a stage is a compiled function of two numbers, the address of a table with all that it needs and
the client it is to work on, and the loop over clients and stages is compiled too. It calls stages
by their address: a kernel is compiled once, whatever list it stands in.

Nothing here needs Numba until stages run; tables.py is what the kernels read their tables with.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# What a table is made of: numbers, and memory by its address; None is 0.
Given = int | float | Tensor | NDArray[Any] | None

_addresses: dict[Any, int] = {}


class _Scratch(threading.local):
    """Memory of one thread that a stage may use until it ends."""

    def __init__(self) -> None:
        self.memory = torch.empty(0)


_scratch = _Scratch()


class Stage:
    """A kernel with its table."""

    def __init__(self, kernel: Callable[[int, int], None], *given: Given) -> None:
        self.kernel, self.held = kernel, given  # held: addresses do not keep memory alive
        self.table = np.array([_number(value) for value in given], dtype=np.int64)


def scratch(size: int) -> Tensor:
    """At least `size` numbers of 4 bytes for a stage to work in, the same for all of this thread.

    Fresh memory costs a page fault for every 4 kB, more than the work done in it.
    """
    if _scratch.memory.numel() < size:
        _scratch.memory = torch.empty(size)
    return _scratch.memory


def run(stages: Sequence[Stage], clients: int) -> None:
    """All stages of each client, client after client."""
    from fuels.kernels.stage_tables import call_all  # a kernel is there, and with it Numba

    found = [(_address(stage.kernel), stage.table.ctypes.data) for stage in stages]
    call_all(np.array(found, dtype=np.int64).reshape(-1, 2), clients)


def _number(value: Given) -> int:
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
    """Where the machine code of a compiled stage begins."""
    if kernel not in _addresses:
        (made,) = kernel.overloads.values()
        name = made.fndesc.llvm_cfunc_wrapper_name
        _addresses[kernel] = made.library.get_pointer_to_function(name)
    return _addresses[kernel]
