"""The losses of FUELS (Eq. 3-6, 11-15), one value per client.

All work on stacked clients: every loss comes back as [client], so that the gradient of their sum
gives each client the gradient of its own loss alone. sim is the cosine similarity: the functions
take rows already scaled to length one by `unit`, and a product is then the similarity.

exp(sim / tau) reaches e^50 at the paper's tau = 0.02 and overflows below 0.012; everything is
therefore written in logarithms of ratios, softplus(log(negatives / positive)), which holds for any
tau > 0 and keeps all digits of a gradient that is nearly 0. Cosines are made and compared in double
precision: an error of 1e-7, as float32 makes, is 1e-4 once it is divided by tau = 0.001.

`weight` [client, row] says how much a row counts in its client's mean: 1/B for every row of a full
batch, 0 for a row without a window (contrastive) or without an observed value (prediction).

`local_losses` gives all that a client's step needs. It runs as one compiled kernel
(kernels/losses.py), forward and backward together, or as the plain functions below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fuels.errors import FuelsError
from fuels.kernels.dispatch import kernels
from fuels.kernels.stages import Stage, run, scratch
from fuels.model.network import Target

_KERNELS = "fuels.kernels.losses"
# The logarithm of a pair that does not count. It is finite: a row without any pair that counts has
# the gradient 0 and not NaN.
NEVER = -1e30


def unit(r: Tensor) -> Tensor:
    """Rows [.., width] scaled to length one, in double precision."""
    return functional.normalize(r.double(), dim=-1, eps=1e-8)


def prediction_loss(y: Tensor, predicted: Tensor, weight: Tensor) -> Tensor:
    """Eq. 14: the mean squared error over the rows, and over the steps ahead where [.., H]."""
    return (weight * (y - predicted).square()).flatten(1).sum(1)


def intra_loss(
    u: Tensor, u_augmented: Tensor, W: Tensor | None, tau: float, weight: Tensor
) -> Tensor:
    """Eq. 3-6: pull row b to its augmented view, push it from its true negatives.

    SM = exp(sim(r, r') / tau), Z = ReLU(SM * W), TN_b = {i : Z_bi > 0}; the loss of row b is
    -log(SM_bb / (SM_bb + sum_{i in TN_b} Z_bi)). SM is positive, so Z_bi > 0 exactly where
    W_bi > 0, and there log(Z_bi / SM_bb) = (sim_bi - sim_bb) / tau + log W_bi; b itself may be in
    TN_b, as in Eq. 5. Without W (the ablation) Z = SM for every i != b.
    """
    sim = torch.bmm(u.double(), u_augmented.double().transpose(1, 2))  # Eq. 3, [client, row, row]
    same = torch.eye(u.shape[1], dtype=torch.bool, device=u.device)
    beyond = sim - torch.diagonal(sim, dim1=1, dim2=2).unsqueeze(2)
    log_ratio = torch.where(same, 0.0, beyond / tau)  # of Z_bi to SM_bb; of row b to itself 1
    if W is None:
        log_ratio = log_ratio.masked_fill(same, NEVER)
    else:
        negative = W > 0  # Eq. 4 and 5
        # log of 1 where W <= 0: the value is not used, and its gradient is 0 instead of NaN.
        log_w = torch.where(negative, W, 1.0).double().log()
        log_ratio = torch.where(negative, log_ratio + log_w, NEVER)
    log_ratio = log_ratio.masked_fill((weight == 0).unsqueeze(1), NEVER)
    # Eq. 6 with both sides divided by SM_bb: log(1 + sum_i Z_bi / SM_bb).
    return _mean_softplus(torch.logsumexp(log_ratio, dim=2), weight)


def inter_loss(u: Tensor, positive: Tensor, negative: Tensor, tau: float, weight: Tensor) -> Tensor:
    """Eq. 11-13: row b towards row b of PR_n and away from row b of NR_n.

    -log(pos / (pos + neg)) with pos = exp(sim(r_b, PR_b) / tau), neg = exp(sim(r_b, NR_b) / tau)
    equals log(1 + neg / pos).
    """
    gap = (u.double() * (negative.double() - positive.double())).sum(2)
    return _mean_softplus(gap / tau, weight)


def _mean_softplus(log_ratio: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean over the rows of log(1 + e^log_ratio), in the precision of the weights."""
    return (weight * functional.softplus(log_ratio)).sum(1).to(weight.dtype)


# -- all of them in one step -----------------------------------------------------------------------


@dataclass(frozen=True)
class Intra:
    """What L_intra needs beside r and r'."""

    W: Tensor | None  # [client, B, B]
    tau: float
    weight: Tensor  # [client, B]
    detach: bool = False  # no gradient through r'


@dataclass(frozen=True)
class Inter:
    """What L_inter needs beside r."""

    positive: Tensor  # PR_n, the rows of this batch, [client, B, width]
    negative: Tensor  # NR_n
    tau: float
    weight: Tensor  # [client, B]; 0 for a client without PR_n and NR_n
    rho: float


def local_losses(
    decoder: Tensor,
    encoded: Tensor,
    target: Target,
    intra: Intra | None = None,
    inter: Inter | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """L of Eq. 15 [client], to be differentiated, and its terms by name, to be reported.

    decoder [client, H * head] has a head for each step ahead, [weights of r | weights of the clock
    | bias]; encoded [client, B, width] holds r, for L_intra [client, 2 B, width] with r' below it.
    A term whose needs are not given is left out.
    """
    begun = begin_losses(
        decoder, encoded, target, intra, inter, deep=encoded.requires_grad, shared=False
    )
    if begun is None:
        return plain_losses(decoder, encoded, target, intra, inter)
    W = None if intra is None else intra.W
    total = cast(Tensor, cast(Any, _FusedLosses).apply(encoded, decoder, W, begun))
    return total, begun.terms()


def plain_losses(
    decoder: Tensor,
    encoded: Tensor,
    target: Target,
    intra: Intra | None = None,
    inter: Inter | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The same in torch operators, differentiated by autograd."""
    clients, B, H = target.y.shape
    r, r_augmented = encoded[:, :B], encoded[:, B:]
    heads, width = decoder.view(clients, H, -1), r.shape[2]
    bias = torch.einsum("nhc,bhc->nbh", heads[:, :, width:-1], target.clock) + heads[:, None, :, -1]
    said = torch.baddbmm(bias, r, heads[:, :, :width].transpose(1, 2))
    total = prediction_loss(target.y, said, target.weight)
    terms = {"prediction": total.detach()}
    if intra is not None:
        u_augmented = unit(r_augmented.detach() if intra.detach else r_augmented)
        loss = intra_loss(unit(r), u_augmented, intra.W, intra.tau, intra.weight)
        terms["intra"] = loss.detach()
        total = total + loss
    if inter is not None:
        positive, negative = unit(inter.positive), unit(inter.negative)
        loss = inter_loss(unit(r), positive, negative, inter.tau, inter.weight)
        terms["inter"] = loss.detach()
        total = total + inter.rho * loss
    return total, terms


def begin_losses(
    decoder: Tensor,
    encoded: Tensor,
    target: Target,
    intra: Intra | None,
    inter: Inter | None,
    *,
    deep: bool,
    shared: bool,
) -> FusedLosses | None:
    """The compiled losses of a batch; None where there are none.

    They read `encoded` when they run, so that it may be filled until then. `deep` asks for its
    gradient too; gradients that are `shared` have room for one client, each takes the place of the
    one before.
    """
    given = _fitting(encoded, decoder, target, intra, inter)
    compiled = kernels(_KERNELS, *(tensor for tensor in given if tensor is not None))
    if compiled is None:
        return None
    _, B, H = target.y.shape
    return FusedLosses(given, (B, H), intra, inter, deep, shared, compiled)


class FusedLosses:
    """What the compiled losses of a batch read and leave."""

    def __init__(
        self,
        given: Sequence[Tensor | None],
        rows_and_heads: tuple[int, int],
        intra: Intra | None,
        inter: Inter | None,
        deep: bool,
        shared: bool,
        compiled: ModuleType,
    ) -> None:
        self.compiled, self.intra, self.inter, self.shared = compiled, intra, inter, shared
        self.given = [None if t is None else t.detach().contiguous() for t in given]
        encoded, decoder = cast(Tensor, self.given[0]), cast(Tensor, self.given[1])
        self.clients, self.rows, self.width = encoded.shape
        self.B, self.H = rows_and_heads
        self.total, self.parts = torch.empty(self.clients), torch.empty(3, self.clients)
        room = 1 if shared else self.clients
        self.d_encoded = torch.empty(room, self.rows, self.width) if deep else None
        self.d_decoder = torch.empty(room, decoder.shape[1])
        filtered = intra is not None and intra.W is not None
        self.d_W = torch.empty(room, self.B, self.B) if filtered else None

    def stage(self) -> Stage:
        """Losses of a client, and the gradient of their sum."""
        intra, inter, given = self.intra, self.inter, self.given
        return Stage(
            self.compiled.losses_and_gradients,
            self.clients, self.rows, self.B, self.width, self.H, self.d_decoder.shape[1] // self.H,
            *given[:5], intra is not None, intra is not None and intra.detach, *given[5:],
            self.total, self.parts, self.shared,
            self.d_encoded, self.d_decoder, self.d_W,
            scratch(2 * self.compiled.numbers_needed(self.rows, self.B, self.H)),
            float(intra.tau) if intra else 1.0,
            float(inter.tau) if inter else 1.0, float(inter.rho) if inter else 0.0,
        )  # fmt: skip

    def terms(self) -> dict[str, Tensor]:
        """The terms of the loss by name, [client]."""
        there = (True, self.intra, self.inter)
        named = zip(("prediction", "intra", "inter"), there, self.parts.unbind(), strict=True)
        return {name: value for name, given, value in named if given}


class _FusedLosses(torch.autograd.Function):
    """The compiled losses; the same call gives the gradients, which wait for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, encoded: Tensor, decoder: Tensor, W: Tensor | None, begun: FusedLosses
    ) -> Tensor:
        run([begun.stage()], begun.clients)
        ctx.gradients = (begun.d_encoded, begun.d_decoder, begun.d_W)
        return begun.total.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        found: tuple[Tensor | None, ...] = ctx.gradients
        if any(factor != 1.0 for factor in slope.tolist()):  # 1 where the losses are summed up
            found = tuple(
                None if d is None else d * slope.view(-1, *[1] * (d.dim() - 1)) for d in found
            )
        return *found, None


def _fitting(
    encoded: Tensor, decoder: Tensor, target: Target, intra: Intra | None, inter: Inter | None
) -> list[Tensor | None]:
    """What the kernel reads, in its order; it goes by addresses, so that sizes must be right."""
    (clients, B, H), width = target.y.shape, encoded.shape[2]
    columns = target.clock.shape[2]
    one, square, prototype = (clients, B), (clients, B, B), (clients, B, width)
    given: list[tuple[str, Tensor | None, tuple[int, ...]]] = [
        ("encoded", encoded, (clients, B if intra is None else 2 * B, width)),
        ("decoder", decoder, (clients, H * (width + columns + 1))),
        ("target.y", target.y, (clients, B, H)),
        ("target.weight", target.weight, (clients, B, H)),
        ("target.clock", target.clock, (B, H, columns)),
        ("intra.W", intra.W if intra else None, square),
        ("intra.weight", intra.weight if intra else None, one),
        ("inter.positive", inter.positive if inter else None, prototype),
        ("inter.negative", inter.negative if inter else None, prototype),
        ("inter.weight", inter.weight if inter else None, one),
    ]
    for name, tensor, shape in given:
        if tensor is not None and tensor.shape != shape:
            raise FuelsError(
                f"losses: {name} of shape {tuple(tensor.shape)} does not fit {clients} clients with"
                f" {B} rows of width {width}; it must be {shape}"
            )
    return [tensor for _, tensor, _ in given]
