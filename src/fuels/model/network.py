"""The personal model f = de(en(x)) of Section 3.1, for many clients at once.

A network describes the architecture; parameters live outside it, one tensor [client, size] per
part ("encoder", "decoder"), so that a method can say which parts travel and which stay. Another
encoder is another class with the same four members; nothing else depends on it, because what FUELS
sends is a representation, not a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fuels.config import nearest
from fuels.data.windows import Branches
from fuels.errors import FuelsError
from fuels.model.gru import GruShape, branch_weights, encode, encoder_size
from fuels.randomness import WEIGHTS, generator

Parts = dict[str, Tensor]  # part: [client, size]


class Encoder(Protocol):
    """en(delta; x): windows to representations."""

    size: int  # numbers in delta
    width: int  # d_r, columns of the representation
    bounded: bool  # representations lie in [-1, 1]

    def initial(self, rng: np.random.Generator) -> NDArray[np.float32]: ...

    def __call__(self, params: Tensor, x: Tensor) -> Tensor: ...

    def tensors(self, params: Tensor) -> dict[str, Tensor]: ...


class GruEncoder:
    """Eq. 2: one GRU per branch, their final states side by side."""

    bounded = True

    def __init__(self, hidden: int, branches: Branches) -> None:
        self.lengths = [len(branch) for branch in branches]
        self.shape = GruShape(hidden, tuple((length, 1) for length in self.lengths))
        self.size = encoder_size(self.shape)
        self.width = self.shape.width

    def initial(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """Uniform in +-1/sqrt(hidden), as torch.nn.GRU starts."""
        bound = 1 / np.sqrt(self.shape.hidden)
        return rng.uniform(-bound, bound, self.size).astype(np.float32)

    def __call__(self, params: Tensor, x: Tensor) -> Tensor:
        """Representations [client, row, d_r] of windows x [client, row, lag]."""
        inputs = [branch.unsqueeze(-1) for branch in torch.split(x, self.lengths, dim=2)]
        return encode(params, inputs, self.shape)

    def tensors(self, params: Tensor) -> dict[str, Tensor]:
        """One client's delta [size] by the names torch.nn.GRU uses."""
        named: dict[str, Tensor] = {}
        for branch, weights in enumerate(branch_weights(params.unsqueeze(0), self.shape)):
            for name, tensor in zip(
                ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"), weights, strict=True
            ):
                named[f"gru.{branch}.{name}"] = tensor[0]
        return named


class LinearEncoder:
    """One linear map of all lags followed by tanh: the smallest encoder there is."""

    bounded = True

    def __init__(self, hidden: int, branches: Branches) -> None:
        self.inputs = sum(len(branch) for branch in branches)
        self.width = hidden * len(branches)
        self.size = self.width * (self.inputs + 1)

    def initial(self, rng: np.random.Generator) -> NDArray[np.float32]:
        bound = 1 / np.sqrt(self.inputs)
        return rng.uniform(-bound, bound, self.size).astype(np.float32)

    def __call__(self, params: Tensor, x: Tensor) -> Tensor:
        weight, bias = self._weights(params)
        return torch.tanh(torch.baddbmm(bias, x, weight))

    def tensors(self, params: Tensor) -> dict[str, Tensor]:
        weight, bias = self._weights(params.unsqueeze(0))
        return {"linear.weight": weight[0].T.contiguous(), "linear.bias": bias[0, 0]}

    def _weights(self, params: Tensor) -> tuple[Tensor, Tensor]:
        split = self.inputs * self.width
        return (
            params[:, :split].view(-1, self.inputs, self.width),
            params[:, split:].unsqueeze(1),
        )


ENCODERS: dict[str, Callable[[int, Branches], Encoder]] = {
    "gru": GruEncoder,
    "linear": LinearEncoder,
}


class Network:
    """Encoder and decoder; the decoder is one fully connected layer d_r -> 1."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.sizes = {"encoder": encoder.size, "decoder": encoder.width + 1}

    @property
    def width(self) -> int:
        return self.encoder.width

    def initial(self, seed: int) -> dict[str, NDArray[np.float32]]:
        """The one model every client starts from, [size] per part, drawn from the seed."""
        rng = generator(seed, WEIGHTS)
        bound = 1 / np.sqrt(self.encoder.width)
        return {
            "encoder": self.encoder.initial(rng),
            "decoder": rng.uniform(-bound, bound, self.sizes["decoder"]).astype(np.float32),
        }

    def encode(self, parts: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """r = en(delta; x): [client, row, d_r] of windows [client, row, lag]."""
        return self.encoder(parts["encoder"], x)

    def decode(self, parts: Mapping[str, Tensor], r: Tensor) -> Tensor:
        """y = de(phi; r): [client, row]."""
        weight, bias = parts["decoder"][:, :-1], parts["decoder"][:, -1:]
        return torch.baddbmm(bias.unsqueeze(2), r, weight.unsqueeze(2)).squeeze(2)

    def predict(self, parts: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return self.decode(parts, self.encode(parts, x))

    def tensors(self, parts: Mapping[str, Tensor], client: int) -> dict[str, Tensor]:
        """One client's model as named tensors, the way it is saved."""
        named = {
            f"encoder.{key}": value
            for key, value in self.encoder.tensors(parts["encoder"][client]).items()
        }
        named["decoder.weight"] = parts["decoder"][client, :-1].unsqueeze(0)
        named["decoder.bias"] = parts["decoder"][client, -1:]
        return named


def build_network(encoder: str, hidden: int, branches: Branches) -> Network:
    if encoder not in ENCODERS:
        raise FuelsError(f"model.encoder {encoder} is unknown{nearest(encoder, ENCODERS)}")
    return Network(ENCODERS[encoder](hidden, branches))
