"""The GRU encoder of stacked clients: one call encodes a batch of all of them.

Every client has its own weights. One client's encoder is a flat row of numbers: for each branch in
order (closeness, periodicity, ...) weight_ih [3H, I], weight_hh [3H, H], bias_ih [3H], bias_hh
[3H], with the gates in the order r, z, n and the equations of torch.nn.GRU:

    r = sigmoid(W_ir x + b_ir + W_hr h + b_hr)
    z = sigmoid(W_iz x + b_iz + W_hz h + b_hz)
    n = tanh(W_in x + b_in + r * (W_hn h + b_hn))
    h' = n + z * (h - n)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fuels.errors import FuelsError
from fuels.kernels.checks import check_encoder
from fuels.kernels.dispatch import find_kernels, has_twin


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
        """Columns of the representation: the final states of all branches, concatenated."""
        return self.hidden * len(self.branches)

    @property
    def size(self) -> int:
        """Parameters in the encoder of one client."""
        return sum(self.branch_size(inputs) for _, inputs in self.branches)

    def branch_size(self, inputs: int) -> int:
        """Parameters in one branch of one client."""
        return 3 * self.hidden * (inputs + self.hidden + 2)


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


def has_compiled_rows(params: Tensor) -> bool:
    """Whether rows are encoded one beside the other, as in compiled code.

    A library's product chooses its order of additions by the number of rows.
    """
    return find_kernels("fuels.kernels.gru", params) is not None


@has_twin("fuels.kernels.gru", check_encoder)
def encode(params: Tensor, inputs: Sequence[Tensor], shape: GruShape) -> Tensor:
    """Final states of all branches [G, R, branches * H] with the parameters params [G, E].

    inputs has one tensor [G, R, length, inputs per step] per branch. They are data: no gradient
    flows into them.
    """
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
