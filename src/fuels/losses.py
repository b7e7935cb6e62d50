"""The three losses of FUELS (Eq. 3-6, 11-14), one value per client.

All work on stacked clients: every loss comes back as [client], so that the gradient of their sum
gives each client the gradient of its own loss alone. sim is the cosine similarity: the functions
take rows already scaled to length one by `unit`, and a product is then the similarity.
exp(sim / tau) reaches e^50 at the paper's tau = 0.02 and overflows below 0.012; everything is
therefore written in logarithms, which is exact for any tau > 0.

`weight` [client, row] says how much a row counts in its client's mean: 1/B for every row of a full
batch, 0 for a row without a window (contrastive) or without an observed value (prediction).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

NEVER = float("-inf")  # the logarithm of a pair that does not count


def unit(r: Tensor) -> Tensor:
    """Rows [.., width] scaled to length one."""
    return functional.normalize(r, dim=-1, eps=1e-8)


def prediction_loss(y: Tensor, predicted: Tensor, weight: Tensor) -> Tensor:
    """Eq. 14: the mean squared error over the rows."""
    return (weight * (y - predicted).square()).sum(1)


def intra_loss(
    u: Tensor, u_augmented: Tensor, W: Tensor | None, tau: float, weight: Tensor
) -> Tensor:
    """Eq. 3-6: pull row b to its augmented view, push it from its true negatives.

    SM = exp(sim(r, r') / tau), Z = ReLU(SM * W), TN_b = {i : Z_bi > 0}; the loss of row b is
    -log(SM_bb / (SM_bb + sum_{i in TN_b} Z_bi)). SM is positive, so Z_bi > 0 exactly where
    W_bi > 0, and there log Z_bi = sim / tau + log W_bi; b itself may be in TN_b, as in Eq. 5.
    Without W (the ablation) Z = SM for every i != b.
    """
    log_sm = torch.bmm(u, u_augmented.transpose(1, 2)) / tau  # Eq. 3, [client, row, row]
    rows = u.shape[1]
    if W is None:
        same = torch.eye(rows, dtype=torch.bool, device=u.device)
        log_z = log_sm.masked_fill(same, NEVER)
    else:
        negative = W > 0  # Eq. 4 and 5
        # log of 1 where W <= 0: the value is not used, and its gradient is 0 instead of NaN.
        log_w = torch.where(negative, W, 1.0).log()
        log_z = torch.where(negative, log_sm + log_w, NEVER)
    log_z = log_z.masked_fill((weight == 0).unsqueeze(1), NEVER)
    positive = torch.diagonal(log_sm, dim1=1, dim2=2).unsqueeze(2)
    # Eq. 6 is the first entry of a log-softmax over [SM_bb, Z_b1, ..., Z_bB].
    per_row = -functional.log_softmax(torch.cat([positive, log_z], dim=2), dim=2)[:, :, 0]
    return (weight * per_row).sum(1)


def inter_loss(u: Tensor, positive: Tensor, negative: Tensor, tau: float, weight: Tensor) -> Tensor:
    """Eq. 11-13: row b towards row b of PR_n and away from row b of NR_n.

    -log(pos / (pos + neg)) with pos = exp(sim(r_b, PR_b) / tau), neg = exp(sim(r_b, NR_b) / tau)
    equals log(1 + neg / pos).
    """
    log_ratio = (u * (negative - positive)).sum(2) / tau
    return (weight * functional.softplus(log_ratio)).sum(1)
