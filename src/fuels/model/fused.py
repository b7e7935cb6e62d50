"""Runs the compiled GRU kernels on torch tensors, and looks after the memory they need.

Fresh memory costs a page fault for every 4 kB, more than the work done in it; so the tape that
links forward to backward and the scratch space are kept by each thread and used again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fuels.model.gru import GruShape, branch_size
from fuels.model.kernels import GATES, MAX_ROWS, gru_backward, gru_forward
from fuels.model.lanes import LANES, TILE


class _Memory(threading.local):
    """Buffers of one thread: scratch space, and tapes that wait for the next forward pass."""

    def __init__(self) -> None:
        self.work = torch.empty(0)
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
        offset += branch_size(shape.hidden, width)
    return np.array(rows, dtype=np.int64)


def take_tape(inputs: Sequence[Tensor], shape: GruShape) -> Tensor:
    """Memory for what the forward pass of one call leaves for its backward pass."""
    clients, rows = inputs[0].shape[:2]
    blocks, _, padded = _blocks(rows)
    size = clients * blocks * _tape_size(shape, padded)
    waiting = _memory.tapes
    for i, tape in enumerate(waiting):
        if tape.numel() == size:
            return waiting.pop(i)
    return torch.empty(size)


def give_tape(tape: Tensor) -> None:
    """Leave a tape for the next forward pass; the two newest are kept."""
    _memory.tapes = [tape, *_memory.tapes[:1]]


def _work(size: int) -> Tensor:
    if _memory.work.numel() < size:
        _memory.work = torch.zeros(size)  # zeros: padding must be finite
    return _memory.work


def encode_forward(
    params: Tensor, inputs: Sequence[Tensor], shape: GruShape, tape: Tensor | None
) -> Tensor:
    """Final states [G, R, branches * H]; without a tape nothing is kept."""
    clients, rows = inputs[0].shape[:2]
    _, block, padded = _blocks(rows)
    longest = max(length * width for length, width in shape.branches)
    used = padded * (longest + 2 * shape.hidden)
    work = _work(used + _tape_size(shape, padded))
    out = torch.empty(clients, rows, shape.width)
    gru_forward(
        _plan(inputs, shape), shape.hidden, params.detach().contiguous().numpy(), out.numpy(),
        block, padded, (work[used:] if tape is None else tape).numpy(), tape is not None,
        work.numpy(),
    )  # fmt: skip
    return out


def encode_backward(
    params: Tensor, inputs: Sequence[Tensor], shape: GruShape, tape: Tensor, upstream: Tensor
) -> Tensor:
    """Gradient [G, E] of the parameters for the gradient [G, R, branches * H] of the result."""
    _, block, padded = _blocks(inputs[0].shape[1])
    hidden, wide = shape.hidden, _whole(shape.hidden)
    longest = max(length * width for length, width in shape.branches)
    steps = (max(length for length, _ in shape.branches) - 1) * padded
    work = _work(padded * (longest + 3 + hidden) + steps * (4 * hidden + wide) + TILE * wide)
    grad = torch.empty(params.shape)
    gru_backward(
        _plan(inputs, shape), hidden, params.detach().contiguous().numpy(),
        upstream.contiguous().numpy(), block, padded, tape.numpy(), work.numpy(), grad.numpy(),
    )  # fmt: skip
    return grad
