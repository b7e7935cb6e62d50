"""The GRU encoder of a group of clients, stacked: one call encodes all of them.

Every client has its own weights. The encoder of one client is a flat row of numbers: for each
branch in order (closeness, periodicity, ...) weight_ih [3H, I], weight_hh [3H, H], bias_ih [3H],
bias_hh [3H], with the gates in the order r, z, n and the equations of torch.nn.GRU:

    r = sigmoid(W_ir x + b_ir + W_hr h + b_hr)
    z = sigmoid(W_iz x + b_iz + W_hz h + b_hz)
    n = tanh(W_in x + b_in + r * (W_hn h + b_hn))
    h' = n + z * (h - n)

The plain path says this in batched torch operators and runs on any device and precision. The
fused path (fused.py, kernels.py) does the same in two compiled functions, forward and backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fuels.errors import FuelsError
from fuels.kernels.dispatch import kernels

if TYPE_CHECKING:  # importing it compiles the kernels
    from fuels.kernels.encoding import Encoding

_KERNELS = "fuels.kernels.encoding"


@dataclass(frozen=True)
class GruShape:
    """Width of the hidden state and, for each branch, its window length and inputs per step."""

    hidden: int
    branches: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        numbers = [self.hidden, *(number for branch in self.branches for number in branch)]
        if not self.branches or min(numbers) < 1:
            raise FuelsError(
                f"encoder: hidden {self.hidden} with branches {self.branches} cannot be built; "
                "give at least one branch, and widths and lengths of at least 1"
            )

    @property
    def width(self) -> int:
        """Columns of the representation: the final states of all branches side by side."""
        return self.hidden * len(self.branches)

    def branch_size(self, inputs: int) -> int:
        """Parameters in one branch of one client."""
        return 3 * self.hidden * (inputs + self.hidden + 2)


def encoder_size(shape: GruShape) -> int:
    """Parameters in the encoder of one client."""
    return sum(shape.branch_size(inputs) for _, inputs in shape.branches)


def branch_weights(params: Tensor, shape: GruShape) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Views of params [G, E]: per branch weight_ih, weight_hh, bias_ih, bias_hh (G leading)."""
    clients, gates = params.shape[0], 3 * shape.hidden
    weights = []
    start = 0
    for _, inputs in shape.branches:
        sizes = [gates * inputs, gates * shape.hidden, gates, gates]
        end = start + sum(sizes)
        w_ih, w_hh, b_ih, b_hh = torch.split(params[:, start:end], sizes, dim=1)
        weights.append(
            (w_ih.view(clients, gates, inputs), w_hh.view(clients, gates, shape.hidden), b_ih, b_hh)
        )
        start = end
    return weights


def encode(params: Tensor, inputs: Sequence[Tensor], shape: GruShape) -> Tensor:
    """Final states of all branches [G, R, branches * H] of params [G, E].

    inputs holds one tensor [G, R, length, inputs per step] per branch. They are data: no gradient
    flows into them.
    """
    encoding = begin(params, inputs, shape)
    if encoding is None:
        return plain_encode(params, inputs, shape)
    if torch.is_grad_enabled() and params.requires_grad:
        return cast(Tensor, cast(Any, _FusedEncode).apply(params, encoding))
    encoding.run(encoding.forward(None))
    return encoding.encoded


def begin(params: Tensor, inputs: Sequence[Tensor], shape: GruShape) -> Encoding | None:
    """The compiled encoder, ready to take this batch; None where there is none."""
    _check(params, inputs, shape)
    compiled = kernels(_KERNELS, params, *inputs) if inputs[0].shape[1] else None  # without rows
    return None if compiled is None else cast("Encoding", compiled.Encoding(params, inputs, shape))


class _FusedEncode(torch.autograd.Function):
    """The compiled forward with its compiled backward, joined by a tape that serves once."""

    @staticmethod
    def forward(ctx: Any, params: Tensor, encoding: Encoding) -> Tensor:
        ctx.encoding, ctx.tape = encoding, encoding.take_tape(shared=False)
        ctx.save_for_backward(params)  # which must not move until then
        encoding.run(encoding.forward(ctx.tape))
        return encoding.encoded.detach()  # the result knows ctx, ctx must not know the result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None]:
        if ctx.tape is None:
            raise FuelsError("encoder: a second backward pass needs a second forward pass")
        (params,) = ctx.saved_tensors
        gradient = torch.empty(params.shape)
        ctx.encoding.run(ctx.encoding.backward(ctx.tape, grad_out, gradient))
        ctx.encoding.give_tape(ctx.tape)  # the next forward pass finds it still in the cache
        ctx.tape = None
        return gradient, None


def plain_encode(params: Tensor, inputs: Sequence[Tensor], shape: GruShape) -> Tensor:
    """The encoder in batched torch operators, differentiated by autograd."""
    H = shape.hidden
    states = []
    for x, (w_ih, w_hh, b_ih, b_hh) in zip(inputs, branch_weights(params, shape), strict=True):
        clients, rows, length, width = x.shape
        flat = x.detach().reshape(clients, rows * length, width)
        gates_x = torch.baddbmm(b_ih.unsqueeze(1), flat, w_ih.transpose(1, 2))
        gates_x = gates_x.view(clients, rows, length, 3 * H)
        h = params.new_zeros(clients, rows, H)
        for t in range(length):
            gates_h = torch.baddbmm(b_hh.unsqueeze(1), h, w_hh.transpose(1, 2))
            x_r, x_z, x_n = torch.split(gates_x[:, :, t], H, dim=2)
            h_r, h_z, h_n = torch.split(gates_h, H, dim=2)
            r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
            n = torch.tanh(x_n + r * h_n)
            h = n + z * (h - n)
        states.append(h)
    return torch.cat(states, dim=2)


def _check(params: Tensor, inputs: Sequence[Tensor], shape: GruShape) -> None:
    size = encoder_size(shape)
    if params.dim() != 2 or params.shape[1] != size:
        raise FuelsError(
            f"encoder: parameters of shape {tuple(params.shape)} do not fit; "
            f"hidden {shape.hidden} with branches {shape.branches} needs [clients, {size}]"
        )
    rows = inputs[0].shape[1] if inputs and inputs[0].dim() == 4 else 0
    wanted = [(params.shape[0], rows, length, width) for length, width in shape.branches]
    found = [tuple(x.shape) for x in inputs]
    if found != wanted:
        raise FuelsError(
            f"encoder: inputs of shapes {found} do not fit; one [clients, rows, length, inputs] "
            f"per branch is needed, with {params.shape[0]} clients and branches {shape.branches}"
        )
