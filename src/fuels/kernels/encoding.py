"""Runs the compiled GRU kernels on torch tensors, and looks after the memory they need.

The tape that links forward to backward is kept by each thread and used again, as scratch space is.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fuels.kernels.gru import GATES, MAX_ROWS, gru_backward, gru_forward
from fuels.kernels.simd import LANES, TILE
from fuels.kernels.stages import Given, Stage, run, scratch

if TYPE_CHECKING:
    from fuels.model.gru import GruShape


class _Memory(threading.local):
    """Tapes of one thread that wait for the next forward pass."""

    def __init__(self) -> None:
        self.tapes: list[Tensor] = []


_memory = _Memory()


def _whole(count: int) -> int:
    """count, up to whole registers."""
    return -(-count // LANES) * LANES


def _blocks(rows: int) -> tuple[int, int, int]:
    """(number of blocks of rows, rows in a block, rows padded to whole registers)."""
    count = max(1, -(-rows // MAX_ROWS))
    block = max(1, -(-rows // count))
    return count, block, _whole(block)


def _tape_size(shape: GruShape, padded: int) -> int:
    """Numbers on the tape for one block of rows of one client."""
    return sum(length for length, _ in shape.branches) * GATES * shape.hidden * padded


def _plan(inputs: Sequence[Tensor], shape: GruShape) -> NDArray[np.int64]:
    """What the kernels need to know of each branch; the columns are named in kernels.py."""
    rows, offset = [], 0
    for b, (x, (length, width)) in enumerate(zip(inputs, shape.branches, strict=True)):
        rows.append((x.data_ptr(), *x.stride(), length, width, offset, b * shape.hidden))
        offset += shape.branch_size(width)
    return np.array(rows, dtype=np.int64)


class Encoding:
    """A batch of stacked clients on its way through the encoder.

    A tape links forward and backward: one for each client, or one that they share, if a client has
    gone back before the next one goes forward.
    """

    def __init__(self, params: Tensor, inputs: Sequence[Tensor], shape: GruShape) -> None:
        self.clients, self.rows = inputs[0].shape[:2]
        self.shape, self.inputs = shape, inputs  # held: the plan knows but their addresses
        self.plan = _plan(inputs, shape)
        self.params = params.detach().contiguous()
        blocks, self.block, self.padded = _blocks(self.rows)
        self.tape_size = blocks * _tape_size(shape, self.padded)
        self.longest = max(length * width for length, width in shape.branches)
        self.encoded = torch.empty(self.clients, self.rows, shape.width)  # the final states

    def take_tape(self, shared: bool) -> Tensor:
        size = self.tape_size * (1 if shared else self.clients)
        waiting = _memory.tapes
        for i, tape in enumerate(waiting):
            if tape.numel() == size:
                return waiting.pop(i)
        return torch.empty(size)

    def give_tape(self, tape: Tensor) -> None:
        """Leave a tape for the next forward pass; the two newest are kept."""
        _memory.tapes = [tape, *_memory.tapes[:1]]

    def forward(self, tape: Tensor | None, shared: bool = False) -> Stage:
        """Fills `encoded`; without a tape nothing is kept."""
        used = self.padded * (self.longest + 2 * self.shape.hidden)
        work = scratch(used + _tape_size(self.shape, self.padded))
        keep = tape is not None
        return Stage(
            gru_forward, *self._given(self.encoded), tape if keep else work[used:],
            self.tape_size, shared or not keep, keep, work,
        )  # fmt: skip

    def backward(
        self, tape: Tensor, upstream: Tensor, gradient: Tensor, shared: bool = False
    ) -> Stage:
        """Gradient [client, E] of the parameters from upstream [client, row, width]."""
        hidden, padded, wide = self.shape.hidden, self.padded, _whole(self.shape.hidden)
        steps = (max(length for length, _ in self.shape.branches) - 1) * padded
        size = padded * (self.longest + 3 + hidden) + steps * (4 * hidden + wide) + TILE * wide
        return Stage(
            gru_backward, *self._given(upstream.contiguous()), tape, self.tape_size, shared,
            gradient, scratch(size),
        )  # fmt: skip

    def run(self, *stages: Stage) -> None:
        """All stages of each client, client after client."""
        run(stages, self.clients)

    def _given(self, states: Tensor) -> tuple[Given, ...]:
        """What both kernels need."""
        params, shape = self.params, self.shape
        return (
            self.plan, len(self.plan), shape.hidden, params, params.shape[1],
            states, self.rows, shape.width, self.block, self.padded,
        )  # fmt: skip
