"""The personal model f = de(en(x)) of Section 3.1, for many clients at once.

A network describes the architecture. Parameters live outside it, one tensor [client, size] per
part ("encoder", "decoder"), so that a method can declare which parts travel and which stay. A new
encoder is a class with the members of `Encoder`; nothing else depends on it, because FUELS sends
representations, not models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fuels.arrays import Floats32
from fuels.config import Model, nearest
from fuels.data.sample import Branches, Sample
from fuels.errors import FuelsError
from fuels.model.gru import GruShape, branch_weights, encode, has_compiled_rows
from fuels.randomness import WEIGHTS, generator

Parts = dict[str, Tensor]  # part: [client, size]


class Encoder(Protocol):
    """en(delta; x): windows to representations."""

    size: int  # numbers in delta
    width: int  # d_r, columns of the representation
    bounded: bool  # representations are in [-1, 1]
    gru: GruShape | None  # of an encoder of GRUs, which has a compiled twin

    def initial(self, rng: np.random.Generator) -> Floats32: ...

    def inputs(self, x: Tensor, signs: Tensor) -> list[Tensor]: ...

    def __call__(self, params: Tensor, x: Tensor, signs: Tensor) -> Tensor: ...

    def tensors(self, params: Tensor) -> dict[str, Tensor]: ...


class GruEncoder:
    """Eq. 2: one GRU per branch, their final states concatenated."""

    bounded = True

    def __init__(self, hidden: int, branches: Branches, signs: int = 0) -> None:
        self.lengths = [len(branch) for branch in branches]
        self.shape = GruShape(hidden, tuple((length, 1 + signs) for length in self.lengths))
        self.gru: GruShape | None = self.shape
        self.size, self.width = self.shape.size, self.shape.width

    def initial(self, rng: np.random.Generator) -> Floats32:
        """Uniform in +-1/sqrt(hidden), as torch.nn.GRU starts."""
        bound = 1 / np.sqrt(self.shape.hidden)
        return rng.uniform(-bound, bound, self.size).astype(np.float32)

    def inputs(self, x: Tensor, signs: Tensor) -> list[Tensor]:
        """Per branch [client, row, step, 1 + sign]: a value and the calendar signs of its row."""
        inputs = [branch.unsqueeze(-1) for branch in torch.split(x, self.lengths, dim=2)]
        if signs.shape[1]:
            signs = signs[None, :, None]
            inputs = [torch.cat([b, signs.expand(*b.shape[:3], -1)], dim=3) for b in inputs]
        return inputs

    def __call__(self, params: Tensor, x: Tensor, signs: Tensor) -> Tensor:
        """Representations [client, row, d_r] of windows x [client, row, lag]."""
        return encode(params, self.inputs(x, signs), self.shape)

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
    """One linear map of all lags followed by tanh: the smallest encoder."""

    bounded = True
    gru: GruShape | None = None

    def __init__(self, hidden: int, branches: Branches, signs: int = 0) -> None:
        self.lags = sum(len(branch) for branch in branches) + signs
        self.width = hidden * len(branches)
        self.size = self.width * (self.lags + 1)

    def initial(self, rng: np.random.Generator) -> Floats32:
        bound = 1 / np.sqrt(self.lags)
        return rng.uniform(-bound, bound, self.size).astype(np.float32)

    def inputs(self, x: Tensor, signs: Tensor) -> list[Tensor]:
        return [torch.cat([x, signs.expand(len(x), *signs.shape)], dim=2)]

    def __call__(self, params: Tensor, x: Tensor, signs: Tensor) -> Tensor:
        weight, bias = self._weights(params)
        (x,) = self.inputs(x, signs)
        return torch.tanh(torch.baddbmm(bias, x, weight))

    def tensors(self, params: Tensor) -> dict[str, Tensor]:
        weight, bias = self._weights(params.unsqueeze(0))
        return {"linear.weight": weight[0].T.contiguous(), "linear.bias": bias[0, 0]}

    def _weights(self, params: Tensor) -> tuple[Tensor, Tensor]:
        split = self.lags * self.width
        return params[:, :split].view(-1, self.lags, self.width), params[:, split:].unsqueeze(1)


ENCODERS: dict[str, Callable[[int, Branches, int], Encoder]] = {
    "gru": GruEncoder,
    "linear": LinearEncoder,
}


@dataclass(frozen=True)
class Target:
    """The values that the heads of a decoder should predict, 1, ..., H steps ahead."""

    y: Tensor  # [client, row, H]
    weight: Tensor  # of each value in the prediction loss, [client, row, H]
    clock: Tensor  # calendar columns that a head reads besides r, for all clients, [row, H, column]


class Network:
    """Encoder and decoder; the decoder is one fully connected layer from d_r to each step ahead.

    A head's row is [weights of r | weights of the clock | bias]. `summed` heads read the sum of the
    branches' states instead of r: the branches share their weights. If the sample's target is the
    change, windows are relative to their last value and a head's output is added to it: a shift of
    the level then shifts the forecast by as much.
    """

    def __init__(self, encoder: Encoder, sample: Sample, summed: bool = False) -> None:
        self.encoder, self.sample, self.summed = encoder, sample, summed
        self.reads = encoder.width // len(sample.branches) if summed else encoder.width
        self.head = self.reads + sample.clock_width + 1
        self.sizes = {"encoder": encoder.size, "decoder": sample.horizon * self.head}

    @property
    def width(self) -> int:
        return self.encoder.width

    def initial(self, seed: int) -> dict[str, Floats32]:
        """The one model every client starts from, [size] per part, drawn from the seed."""
        rng = generator(seed, WEIGHTS)
        bound = 1 / np.sqrt(self.reads)
        encoder = self.encoder.initial(rng)
        heads = np.zeros((self.sample.horizon, self.head))  # the clock's weights start at 0
        for head in heads:
            drawn = rng.uniform(-bound, bound, self.reads + 1)
            head[: self.reads], head[-1] = drawn[:-1], drawn[-1]
        return {"encoder": encoder, "decoder": heads.ravel().astype(np.float32)}

    def encode(self, parts: Mapping[str, Tensor], x: Tensor, clock: Tensor) -> Tensor:
        """r = en(delta; x): [client, row, d_r] of windows [client, row, lag].

        If there are more rows than in the clock, they are further views of the same steps.
        """
        return self.encoder(parts["encoder"], *self.encoder_view(x, clock))

    def rows_are_independent(self, parts: Mapping[str, Tensor]) -> bool:
        """Whether a row is encoded to the same bits whichever rows are encoded with it."""
        return self.encoder.gru is not None and has_compiled_rows(parts["encoder"])

    def encoder_view(self, x: Tensor, clock: Tensor) -> tuple[Tensor, Tensor]:
        """What the encoder reads: windows [client, row, lag] and calendar signs [row, sign]."""
        if self.sample.change:  # the encoder too sees only changes, so a level shifts nothing
            x = x - x[:, :, self.sample.newest, None]
        signs = clock[:, 0, self.sample.clock_width :]
        if len(signs) < x.shape[1]:  # also without signs: [row, 0] must fit the windows
            signs = signs.repeat(x.shape[1] // len(signs), 1)
        return x, signs

    def on_r(self, decoder: Tensor) -> Tensor:
        """Decoders [client, H * head] as layers that read r.

        Weights of a sum of states are weights of r that repeat for every branch.
        """
        if not self.summed:
            return decoder
        heads = decoder.view(len(decoder), self.sample.horizon, self.head)
        weights = heads[:, :, : self.reads].repeat(1, 1, self.width // self.reads)
        return torch.cat([weights, heads[:, :, self.reads :]], dim=2).flatten(1)

    def decode(self, parts: Mapping[str, Tensor], r: Tensor, x: Tensor, clock: Tensor) -> Tensor:
        """y = de(phi; r): the next value, [client, row].

        `clock` [row, H, column] has the calendar columns of the steps ahead.
        """
        first = self.on_r(parts["decoder"])[:, : self.width + self.sample.clock_width + 1]
        weight, offset = first[:, : self.width], self.offset(first, x, clock[:, 0])
        if offset.shape[1] == 1:  # the same for all rows: the product adds it
            return torch.baddbmm(offset.unsqueeze(2), r, weight.unsqueeze(2)).squeeze(2)
        return torch.bmm(r, weight.unsqueeze(2)).squeeze(2) + offset

    def offset(self, head: Tensor, x: Tensor, clock: Tensor) -> Tensor:
        """What a head adds to its product with r, [client, row]; [client, 1] if only a bias.

        head [client, size] reads r; clock [row, column].
        """
        bias = head[:, -1:]
        if self.sample.calendar:
            bias = bias + head[:, self.width : -1] @ clock[:, : self.sample.clock_width].T
        return bias + x[:, :, self.sample.newest] if self.sample.change else bias

    def target(self, y: Tensor, weight: Tensor, x: Tensor, clock: Tensor) -> Target:
        """What the heads should predict for the values y [client, row, H] after the windows x."""
        if self.sample.change:
            y = y - x[:, :, self.sample.newest, None]
        return Target(y, weight, clock[:, :, : self.sample.clock_width])

    def decode_later(
        self, parts: Mapping[str, Tensor], r: Tensor, x: Tensor, clock: Tensor
    ) -> Tensor:
        """The values 2, ..., H steps ahead, [client, row, H - 1]."""
        heads = self.on_r(parts["decoder"]).view(len(r), self.sample.horizon, -1)[:, 1:]
        said = torch.bmm(r, heads[:, :, : self.width].transpose(1, 2))
        offsets = [self.offset(heads[:, h], x, clock[:, h + 1]) for h in range(heads.shape[1])]
        return said + torch.stack([o.expand(said.shape[:2]) for o in offsets], dim=2)

    def predict(self, parts: Mapping[str, Tensor], x: Tensor, clock: Tensor) -> Tensor:
        """The next value, [client, row]."""
        return self.decode(parts, self.encode(parts, x, clock), x, clock)

    def predict_all(self, parts: Mapping[str, Tensor], x: Tensor, clock: Tensor) -> Tensor:
        """The next H values, [client, row, H]."""
        return self.decode_all(parts, self.encode(parts, x, clock), x, clock)

    def decode_all(
        self, parts: Mapping[str, Tensor], r: Tensor, x: Tensor, clock: Tensor
    ) -> Tensor:
        """The values 1, ..., H steps ahead, [client, row, H]."""
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


def build_network(encoder: str, hidden: int, sample: Sample, head: str = Model.head) -> Network:
    if encoder not in ENCODERS:
        raise FuelsError(f"model.encoder {encoder} is unknown{nearest(encoder, ENCODERS)}")
    made = ENCODERS[encoder](hidden, sample.branches, sample.encoder_clock_width)
    return Network(made, sample, summed=head == "sum")
