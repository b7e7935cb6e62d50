"""Compiled twin of model/gru.py: runs the GRU loops on torch tensors and manages their memory.

Each thread keeps the tapes that link forward to backward passes, as it does scratch memory.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fuels.arrays import Integers
from fuels.errors import FuelsError
from fuels.kernels.gru_loops import GATES, MAX_ROWS, gru_backward, gru_forward
from fuels.kernels.simd import LANES, TILE
from fuels.kernels.stages import Given, Stage, run, scratch

if TYPE_CHECKING:
    from fuels.model.gru import GruShape


def encode(params: Tensor, inputs: Sequence[Tensor], shape: GruShape) -> Any:
    if not inputs[0].shape[1]:  # no rows
        return NotImplemented
    encoding = Encoding(params, inputs, shape)
    if torch.is_grad_enabled() and params.requires_grad:
        return cast(Tensor, cast(Any, _Encode).apply(params, encoding))
    run([encoding.forward(None)], encoding.clients)
    return encoding.encoded


class _Encode(torch.autograd.Function):
    """Joins the forward and the backward pass by a tape, which serves once."""

    @staticmethod
    def forward(ctx: Any, params: Tensor, encoding: Encoding) -> Tensor:
        ctx.encoding, ctx.tape = encoding, encoding.take_tape(shared=False)
        ctx.save_for_backward(params)  # autograd refuses parameters changed in between
        run([encoding.forward(ctx.tape)], encoding.clients)
        return encoding.encoded.detach()  # the result refers to ctx: no cycle

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None]:
        if ctx.tape is None:
            raise FuelsError("encoder: a second backward pass needs a second forward pass")
        (params,) = ctx.saved_tensors
        gradient = torch.empty(params.shape)
        run([ctx.encoding.backward(ctx.tape, grad_out, gradient)], ctx.encoding.clients)
        ctx.encoding.give_tape(ctx.tape)  # the next forward pass finds it in the cache
        ctx.tape = None
        return gradient, None


class _Memory(threading.local):
    """Tapes of one thread, ready for the next forward pass."""

    def __init__(self) -> None:
        self.tapes: list[Tensor] = []


_memory = _Memory()


def _padded(count: int) -> int:
    """count, rounded up to whole registers."""
    return -(-count // LANES) * LANES


class Encoding:
    """The encoder of stacked clients on one batch.

    A tape links forward and backward: one for each client, or a shared one if each client has gone
    back before the next one goes forward.
    """

    def __init__(self, params: Tensor, inputs: Sequence[Tensor], shape: GruShape) -> None:
        self.clients, self.rows = inputs[0].shape[:2]
        self.shape, self.inputs = shape, inputs  # held: the plan has only their addresses
        self.plan = _plan(inputs, shape)
        self.params = params.detach().contiguous()
        blocks = max(1, -(-self.rows // MAX_ROWS))
        self.block = max(1, -(-self.rows // blocks))  # rows in a block
        self.padded = _padded(self.block)
        steps = sum(length for length, _ in shape.branches)
        self.block_tape = steps * GATES * shape.hidden * self.padded  # numbers
        self.tape_size = blocks * self.block_tape
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
        """Keep a tape for the next forward pass; a thread keeps the two newest."""
        _memory.tapes = [tape, *_memory.tapes[:1]]

    def forward(self, tape: Tensor | None, shared: bool = False) -> Stage:
        """Fills `encoded`, and the tape if there is one."""
        used = self.padded * (self.longest + 2 * self.shape.hidden)
        work = scratch(used + self.block_tape)
        keep = tape is not None
        return Stage(
            gru_forward, *self._given(self.encoded), tape if keep else work[used:],
            self.tape_size, shared or not keep, keep, work,
        )  # fmt: skip

    def backward(
        self, tape: Tensor, upstream: Tensor, gradient: Tensor, shared: bool = False
    ) -> Stage:
        """Fills the gradient [client, E] of the parameters from upstream [client, row, width]."""
        hidden, padded, wide = self.shape.hidden, self.padded, _padded(self.shape.hidden)
        steps = (max(length for length, _ in self.shape.branches) - 1) * padded
        size = padded * (self.longest + 3 + hidden) + steps * (4 * hidden + wide) + TILE * wide
        return Stage(
            gru_backward, *self._given(upstream.contiguous()), tape, self.tape_size, shared,
            gradient, scratch(size),
        )  # fmt: skip

    def _given(self, states: Tensor) -> tuple[Given, ...]:
        """The first entries of both tables."""
        params, shape = self.params, self.shape
        return (
            self.plan, len(self.plan), shape.hidden, params, params.shape[1],
            states, self.rows, shape.width, self.block, self.padded,
        )  # fmt: skip


def _plan(inputs: Sequence[Tensor], shape: GruShape) -> Integers:
    """A row for each branch; gru_loops.py names the columns."""
    rows, offset = [], 0
    for b, (x, (length, width)) in enumerate(zip(inputs, shape.branches, strict=True)):
        rows.append((x.data_ptr(), *x.stride(), length, width, offset, b * shape.hidden))
        offset += shape.branch_size(width)
    return np.array(rows, dtype=np.int64)
