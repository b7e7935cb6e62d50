"""The personal model f = de(en(x)) of Section 3.1, for many clients at once.

A network describes the architecture; parameters live outside it, one tensor [client, size] per
part ("encoder", "decoder"), so that a method can say which parts travel and which stay. Another
encoder is another class with the same members; nothing else depends on it, because what FUELS
sends is a representation, not a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fuels.config import nearest
from fuels.data.sample import Branches, Sample
from fuels.errors import FuelsError
from fuels.model.gru import GruShape, begin, branch_weights, encode, encoder_size
from fuels.randomness import WEIGHTS, generator

if TYPE_CHECKING:  # importing it compiles the kernels
    from fuels.kernels.encoding import Encoding

Parts = dict[str, Tensor]  # part: [client, size]


class Encoder(Protocol):
    """en(delta; x): windows to representations."""

    size: int  # numbers in delta
    width: int  # d_r, columns of the representation
    bounded: bool  # representations lie in [-1, 1]

    def initial(self, rng: np.random.Generator) -> NDArray[np.float32]: ...

    def __call__(self, params: Tensor, x: Tensor, signs: Tensor) -> Tensor: ...

    def begin(self, params: Tensor, x: Tensor, signs: Tensor) -> Encoding | None: ...

    def tensors(self, params: Tensor) -> dict[str, Tensor]: ...


class GruEncoder:
    """Eq. 2: one GRU per branch, their final states side by side."""

    bounded = True

    def __init__(self, hidden: int, branches: Branches, signs: int = 0) -> None:
        self.lengths = [len(branch) for branch in branches]
        self.shape = GruShape(hidden, tuple((length, 1 + signs) for length in self.lengths))
        self.size = encoder_size(self.shape)
        self.width = self.shape.width

    def initial(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """Uniform in +-1/sqrt(hidden), as torch.nn.GRU starts."""
        bound = 1 / np.sqrt(self.shape.hidden)
        return rng.uniform(-bound, bound, self.size).astype(np.float32)

    def __call__(self, params: Tensor, x: Tensor, signs: Tensor) -> Tensor:
        """Representations [client, row, d_r] of windows x [client, row, lag]."""
        return encode(params, self._inputs(x, signs), self.shape)

    def begin(self, params: Tensor, x: Tensor, signs: Tensor) -> Encoding | None:
        """The compiled encoder, ready to take these windows; None where there is none."""
        return begin(params, self._inputs(x, signs), self.shape)

    def _inputs(self, x: Tensor, signs: Tensor) -> list[Tensor]:
        """Every step of a GRU reads a value and, beside it, what the clock tells, [row, column]."""
        inputs = [branch.unsqueeze(-1) for branch in torch.split(x, self.lengths, dim=2)]
        if signs.shape[1]:
            clock = signs[None, :, None]
            inputs = [
                torch.cat([branch, clock.expand(*branch.shape[:3], -1)], dim=3) for branch in inputs
            ]
        return inputs

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

    def __init__(self, hidden: int, branches: Branches, signs: int = 0) -> None:
        self.inputs = sum(len(branch) for branch in branches) + signs
        self.width = hidden * len(branches)
        self.size = self.width * (self.inputs + 1)

    def initial(self, rng: np.random.Generator) -> NDArray[np.float32]:
        bound = 1 / np.sqrt(self.inputs)
        return rng.uniform(-bound, bound, self.size).astype(np.float32)

    def __call__(self, params: Tensor, x: Tensor, signs: Tensor) -> Tensor:
        weight, bias = self._weights(params)
        clock = signs.expand(len(x), *signs.shape)
        return torch.tanh(torch.baddbmm(bias, torch.cat([x, clock], dim=2), weight))

    def begin(self, params: Tensor, x: Tensor, signs: Tensor) -> None:
        """It is small enough for torch."""
        return

    def tensors(self, params: Tensor) -> dict[str, Tensor]:
        weight, bias = self._weights(params.unsqueeze(0))
        return {"linear.weight": weight[0].T.contiguous(), "linear.bias": bias[0, 0]}

    def _weights(self, params: Tensor) -> tuple[Tensor, Tensor]:
        split = self.inputs * self.width
        return (
            params[:, :split].view(-1, self.inputs, self.width),
            params[:, split:].unsqueeze(1),
        )


ENCODERS: dict[str, Callable[[int, Branches, int], Encoder]] = {
    "gru": GruEncoder,
    "linear": LinearEncoder,
}


@dataclass(frozen=True)
class Target:
    """What the heads of a decoder are to say, 1, ..., H steps ahead."""

    y: Tensor  # [client, row, H]
    weight: Tensor  # of each in the prediction loss, [client, row, H]
    clock: Tensor  # what a head reads beside r, the same for all clients, [row, H, column]


class Network:
    """Encoder and decoder; the decoder is one fully connected layer from d_r to each step ahead.

    A head's row is [weights of r | weights of the clock | bias]. Where the sample asks for the
    change, windows are taken relative to their last value, and what a head says is added to
    it: a shift of the level then shifts the forecast by as much.
    """

    def __init__(self, encoder: Encoder, sample: Sample) -> None:
        self.encoder, self.sample = encoder, sample
        self.head = encoder.width + sample.clock_width + 1
        self.sizes = {"encoder": encoder.size, "decoder": sample.horizon * self.head}

    @property
    def width(self) -> int:
        return self.encoder.width

    def initial(self, seed: int) -> dict[str, NDArray[np.float32]]:
        """The one model every client starts from, [size] per part, drawn from the seed."""
        rng = generator(seed, WEIGHTS)
        bound = 1 / np.sqrt(self.encoder.width)
        encoder = self.encoder.initial(rng)
        heads = np.zeros((self.sample.horizon, self.head))  # the clock's weights start at 0
        for head in heads:
            drawn = rng.uniform(-bound, bound, self.width + 1)
            head[: self.width], head[-1] = drawn[:-1], drawn[-1]
        return {"encoder": encoder, "decoder": heads.ravel().astype(np.float32)}

    def encode(self, parts: Mapping[str, Tensor], x: Tensor, clock: Tensor) -> Tensor:
        """r = en(delta; x): [client, row, d_r] of windows [client, row, lag].

        Where there are more rows than the clock has, they are further views of the same steps.
        """
        return self.encoder(parts["encoder"], *self._seen(x, clock))

    def begin(self, parts: Mapping[str, Tensor], x: Tensor, clock: Tensor) -> Encoding | None:
        """The compiled encoder, ready to take these windows; None where there is none."""
        return self.encoder.begin(parts["encoder"], *self._seen(x, clock))

    def _seen(self, x: Tensor, clock: Tensor) -> tuple[Tensor, Tensor]:
        """What the encoder sees of the windows and of the clock."""
        if self.sample.change:  # the encoder too sees changes only, so a level shifts nothing
            x = x - x[:, :, self.sample.newest, None]
        signs = clock[:, 0, self.sample.clock_width :]
        if len(signs) < x.shape[1]:  # also where there are none: [row, 0] must fit the windows
            signs = signs.repeat(x.shape[1] // len(signs), 1)
        return x, signs

    def decode(self, parts: Mapping[str, Tensor], r: Tensor, x: Tensor, clock: Tensor) -> Tensor:
        """y = de(phi; r): the next value, [client, row].

        `clock` [row, H, column] is what the clock tells of the steps ahead.
        """
        weight = parts["decoder"][:, : self.width]
        offset = self.offset(parts["decoder"][:, : self.head], x, clock[:, 0])
        if offset.shape[1] == 1:  # the same for all rows: the product adds it
            return torch.baddbmm(offset.unsqueeze(2), r, weight.unsqueeze(2)).squeeze(2)
        return torch.bmm(r, weight.unsqueeze(2)).squeeze(2) + offset

    def offset(self, head: Tensor, x: Tensor, clock: Tensor) -> Tensor:
        """What a head adds to its product with r, [client, row]; [client, 1] if it is but a bias.

        head [client, size], clock [row, column].
        """
        bias = head[:, -1:]
        if self.sample.calendar:
            bias = bias + head[:, self.width : -1] @ clock[:, : self.sample.clock_width].T
        return bias + x[:, :, self.sample.newest] if self.sample.change else bias

    def target(self, y: Tensor, weight: Tensor, x: Tensor, clock: Tensor) -> Target:
        """What the heads are to say of the values y [client, row, H] after the windows x."""
        if self.sample.change:
            y = y - x[:, :, self.sample.newest, None]
        return Target(y, weight, clock[:, :, : self.sample.clock_width])

    def decode_later(
        self, parts: Mapping[str, Tensor], r: Tensor, x: Tensor, clock: Tensor
    ) -> Tensor:
        """The values 2, ..., H steps ahead, [client, row, H - 1]."""
        heads = parts["decoder"].view(len(r), self.sample.horizon, self.head)[:, 1:]
        said = torch.bmm(r, heads[:, :, : self.width].transpose(1, 2))
        offsets = [self.offset(heads[:, h], x, clock[:, h + 1]) for h in range(heads.shape[1])]
        return said + torch.stack([o.expand(said.shape[:2]) for o in offsets], dim=2)

    def predict(self, parts: Mapping[str, Tensor], x: Tensor, clock: Tensor) -> Tensor:
        """The next value, [client, row]."""
        return self.decode(parts, self.encode(parts, x, clock), x, clock)

    def predict_all(self, parts: Mapping[str, Tensor], x: Tensor, clock: Tensor) -> Tensor:
        """The next H values, [client, row, H]."""
        r = self.encode(parts, x, clock)
        first = self.decode(parts, r, x, clock).unsqueeze(2)
        if self.sample.horizon == 1:
            return first
        return torch.cat([first, self.decode_later(parts, r, x, clock)], dim=2)

    def tensors(self, parts: Mapping[str, Tensor], client: int) -> dict[str, Tensor]:
        """One client's model as named tensors, the way it is saved."""
        named = {
            f"encoder.{key}": value
            for key, value in self.encoder.tensors(parts["encoder"][client]).items()
        }
        heads = parts["decoder"][client].view(self.sample.horizon, self.head)
        named["decoder.weight"], named["decoder.bias"] = heads[:, :-1], heads[:, -1]
        return named


def build_network(encoder: str, hidden: int, sample: Sample) -> Network:
    if encoder not in ENCODERS:
        raise FuelsError(f"model.encoder {encoder} is unknown{nearest(encoder, ENCODERS)}")
    return Network(ENCODERS[encoder](hidden, sample.branches, sample.signs_width), sample)
