"""The losses of FUELS, Eq. 3-6 and 11-15, one value per client.

Clients are stacked: every loss is [client], so the gradient of their sum gives each client the
gradient of its own loss. sim is the cosine similarity. The functions take rows scaled to length one
by `unit`, so a dot product is the similarity.

exp(sim / tau) reaches e^50 at the paper's tau = 0.02 and overflows float32 below 0.012. Everything
is therefore written in logarithms of ratios, softplus(log(negatives / positive)), which holds for
any tau > 0 and keeps all digits of a gradient that is nearly 0. Cosines are computed in double
precision: an error of 1e-7, typical of float32, becomes 1e-4 when divided by tau = 0.001.

`weight` [client, row] is the share of a row in its client's mean: 1/B for every row of a full
batch, 0 for a row without a window (contrastive) or without an observed value (prediction).

    Eq. 2   r = en(delta; x)         model/network.py     Eq. 11-13  `inter_loss`
    Eq. 3-6 `intra_loss`                                  Eq. 14     `prediction_loss`
    Eq. 7-8 R_n                      prototypes.py        Eq. 15     `local_losses`
    Eq. 9-10 PR_n, NR_n              similarity.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fuels.kernels.checks import check_losses
from fuels.kernels.dispatch import has_twin
from fuels.model.network import Target

# The logarithm of a pair that does not count. It is finite: a row without any pair that counts has
# the gradient 0 and not NaN.
NEVER = -1e30


def unit(r: Tensor) -> Tensor:
    """Rows [.., width] scaled to length one, in double precision."""
    return functional.normalize(r.double(), dim=-1, eps=1e-8)


def prediction_loss(y: Tensor, predicted: Tensor, weight: Tensor) -> Tensor:
    """Eq. 14: L_pred = 1/B ||y - y^||^2, also the mean over the steps ahead if y is [.., H]."""
    return (weight * (y - predicted).square()).flatten(1).sum(1)


def intra_loss(
    u: Tensor, u_augmented: Tensor, W: Tensor | None, tau: float, weight: Tensor
) -> Tensor:
    """Eq. 3-6: pull row b towards its augmented view and away from its true negatives.

        SM_bi = exp(sim(r_b, r'_i) / tau)                                          (3)
        Z = ReLU(SM * W)                                                           (4)
        TN_b = {i : Z_bi > 0}                                                      (5)
        L_intra = 1/B sum_b -log(SM_bb / (SM_bb + sum_{i in TN_b} Z_bi))           (6)

    SM is positive, so Z_bi > 0 exactly where W_bi > 0, and there
    log(Z_bi / SM_bb) = (sim_bi - sim_bb) / tau + log W_bi; b itself may be in TN_b.
    Without W (the ablation) Z = SM for every i != b.
    """
    sim = torch.bmm(u.double(), u_augmented.double().transpose(1, 2))  # Eq. 3, [client, row, row]
    same = torch.eye(u.shape[1], dtype=torch.bool, device=u.device)
    beyond = sim - torch.diagonal(sim, dim1=1, dim2=2).unsqueeze(2)
    log_ratio = torch.where(same, 0.0, beyond / tau)  # of SM_bi to SM_bb
    if W is None:
        log_ratio = log_ratio.masked_fill(same, NEVER)
    else:
        negative = W > 0  # Eq. 4 and 5
        # log of 1 where W <= 0: the value is not used, and its gradient is 0 instead of NaN.
        log_w = torch.where(negative, W, 1.0).double().log()
        log_ratio = torch.where(negative, log_ratio + log_w, NEVER)
    log_ratio = log_ratio.masked_fill((weight == 0).unsqueeze(1), NEVER)
    # Eq. 6, numerator and denominator divided by SM_bb: log(1 + sum_i Z_bi / SM_bb).
    return _mean_softplus(torch.logsumexp(log_ratio, dim=2), weight)


def inter_loss(u: Tensor, positive: Tensor, negative: Tensor, tau: float, weight: Tensor) -> Tensor:
    """Eq. 11-13: pull row b towards row b of PR_n and away from row b of NR_n.

        L_inter = 1/B sum_b -log(loss_pos / (loss_pos + loss_neg))                 (11)
        loss_pos = exp(sim(r_b, PR_b) / tau)                                       (12)
        loss_neg = exp(sim(r_b, NR_b) / tau)                                       (13)

    L_inter equals 1/B sum_b log(1 + loss_neg / loss_pos).
    """
    gap = (u.double() * (negative.double() - positive.double())).sum(2)
    return _mean_softplus(gap / tau, weight)


def _mean_softplus(log_ratio: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean over the rows of log(1 + e^log_ratio), in the precision of the weights."""
    return (weight * functional.softplus(log_ratio)).sum(1).to(weight.dtype)


@dataclass(frozen=True)
class Intra:
    """What L_intra needs besides r and r'."""

    W: Tensor | None  # [client, B, B]
    tau: float
    weight: Tensor  # [client, B]
    detach: bool = False  # no gradient through r'


@dataclass(frozen=True)
class Inter:
    """What L_inter needs besides r."""

    positive: Tensor  # PR_n, the rows of this batch, [client, B, width]
    negative: Tensor  # NR_n
    tau: float
    weight: Tensor  # [client, B]; 0 for a client without PR_n and NR_n
    rho: float


@has_twin("fuels.kernels.losses", check_losses)
def local_losses(
    decoder: Tensor,
    encoded: Tensor,
    target: Target,
    intra: Intra | None = None,
    inter: Inter | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Eq. 15: L = L_pred + L_intra + rho L_inter [client], and its terms by name, detached.

    decoder [client, H * head] has a head for each step ahead, [weights of r | weights of the clock
    | bias]; encoded [client, B, width] holds r, for L_intra [client, 2 B, width] with r' below it.
    """
    clients, B, H = target.y.shape
    r, r_augmented = encoded[:, :B], encoded[:, B:]
    heads, width = decoder.view(clients, H, -1), r.shape[2]
    bias = torch.einsum("nhc,bhc->nbh", heads[:, :, width:-1], target.clock) + heads[:, None, :, -1]
    predicted = torch.baddbmm(bias, r, heads[:, :, :width].transpose(1, 2))
    total = prediction_loss(target.y, predicted, target.weight)
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
