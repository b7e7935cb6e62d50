"""Runs the compiled GRU kernels on torch tensors, and looks after the memory they need.

Fresh memory costs a page fault for every 4 kB, more than the work done in it; so the tape that
links forward to backward and the scratch space are kept by each thread and used again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import torch
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


def _tape_size(length: int, hidden: int, clients: int, rows: int) -> int:
    count, _, padded = _blocks(rows)
    return clients * count * length * GATES * hidden * padded


def take_tape(inputs: Sequence[Tensor], shape: GruShape) -> Tensor:
    """Memory for what the forward pass of one call leaves for its backward pass."""
    size = sum(_tape_sizes(inputs, shape))
    waiting = _memory.tapes
    for i, tape in enumerate(waiting):
        if tape.numel() == size:
            return waiting.pop(i)
    return torch.empty(size)


def give_tape(tape: Tensor) -> None:
    """Leave a tape for the next forward pass; the two newest are kept."""
    _memory.tapes = [tape, *_memory.tapes[:1]]


def _tape_sizes(inputs: Sequence[Tensor], shape: GruShape) -> list[int]:
    clients, rows = inputs[0].shape[:2]
    return [_tape_size(length, shape.hidden, clients, rows) for length, _ in shape.branches]


def _work(size: int) -> Tensor:
    if _memory.work.numel() < size:
        _memory.work = torch.zeros(size)  # zeros: padding must be finite
    return _memory.work


def _branches(shape: GruShape) -> Iterator[tuple[int, int, int, int]]:
    """(offset of the parameters, column of the result, length, inputs) of each branch."""
    offset = 0
    for i, (length, inputs) in enumerate(shape.branches):
        yield offset, i * shape.hidden, length, inputs
        offset += branch_size(shape.hidden, inputs)


def encode_forward(
    params: Tensor, inputs: Sequence[Tensor], shape: GruShape, tape: Tensor | None
) -> Tensor:
    """Final states [G, R, branches * H]; without a tape nothing is kept."""
    clients, rows = inputs[0].shape[:2]
    _, block, padded = _blocks(rows)
    out = torch.empty(clients, rows, shape.width)
    weights = params.detach().contiguous().numpy()
    parts = None if tape is None else torch.split(tape, _tape_sizes(inputs, shape))
    for i, (offset, column, length, width) in enumerate(_branches(shape)):
        x_size = padded * (length * width + 2 * shape.hidden)
        one_block = _tape_size(length, shape.hidden, 1, block)
        work = _work(x_size + one_block)
        record = work[x_size:] if parts is None else parts[i]
        gru_forward(
            weights, offset, inputs[i].detach().numpy(), shape.hidden, out.numpy(), column,
            block, padded, record.numpy(), parts is not None, work.numpy(),
        )  # fmt: skip
    return out


def encode_backward(
    params: Tensor, inputs: Sequence[Tensor], shape: GruShape, tape: Tensor, grad_out: Tensor
) -> Tensor:
    """Gradient [G, E] of the parameters for the gradient [G, R, branches * H] of the result."""
    _, block, padded = _blocks(inputs[0].shape[1])
    hidden, wide = shape.hidden, _whole(shape.hidden)
    weights, upstream = params.detach().contiguous().numpy(), grad_out.contiguous().numpy()
    parts = torch.split(tape, _tape_sizes(inputs, shape))
    grad = torch.empty(params.shape)
    for i, (offset, column, length, width) in enumerate(_branches(shape)):
        steps = (length - 1) * padded
        work = _work(
            padded * (length * width + 3 + hidden) + steps * (4 * hidden + wide) + TILE * wide
        )
        gru_backward(
            weights, offset, inputs[i].detach().numpy(), hidden, upstream, column,
            block, padded, parts[i].numpy(), work.numpy(), grad.numpy(),
        )  # fmt: skip
    return grad
