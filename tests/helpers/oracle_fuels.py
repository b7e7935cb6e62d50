"""FUELS in textbook form: the formulas as the paper prints them, one client at a time.

See oracle.py for the model and the data. Of fuels only the random draws of the temporal shift are
used, so that both sides see the same augmented windows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from fuels.randomness import AUGMENTATION, generator
from helpers import oracle

F = nn.functional


@dataclass
class FuelsSettings:
    tau: float = 0.02
    rho: float = 5.0
    beta: float = 50.0
    shift: float = 0.8
    inter: bool = True
    intra: bool = True
    periodic: bool = True
    filter: bool = True
    detach: bool = False


def intra_loss(r: Tensor, r_augmented: Tensor, W: Tensor | None, tau: float) -> Tensor:
    """Eq. 3-6 as printed."""
    sm = torch.exp(F.cosine_similarity(r[:, None], r_augmented[None], dim=2) / tau)
    Z = sm * (1 - torch.eye(len(r), dtype=sm.dtype)) if W is None else torch.relu(sm * W)
    loss = torch.zeros((), dtype=sm.dtype)
    for b in range(len(r)):
        true_negatives = [i for i in range(len(r)) if Z[b, i] > 0]
        negatives = Z[b, true_negatives].sum()  # 0 with gradient 0 where there are none
        loss = loss - torch.log(sm[b, b] / (sm[b, b] + negatives))
    return loss / len(r)


def inter_loss(r: Tensor, positive: Tensor, negative: Tensor, tau: float) -> Tensor:
    """Eq. 11-13 as printed."""
    pos = torch.exp(F.cosine_similarity(r, positive, dim=1) / tau)
    neg = torch.exp(F.cosine_similarity(r, negative, dim=1) / tau)
    return -torch.log(pos / (pos + neg)).mean()


def jsd(a: Tensor, b: Tensor) -> float:
    """Jensen-Shannon divergence of the rows as distributions, mean over rows, in nats."""
    total = 0.0
    for p, q in zip(torch.softmax(a, dim=1), torch.softmax(b, dim=1), strict=True):
        m = (p + q) / 2
        total += float((p * torch.log(p / m)).sum() / 2 + (q * torch.log(q / m)).sum() / 2)
    return total / len(a)


def fuels(
    fed: oracle.Federation, W: list[Tensor], seed: int, options: FuelsSettings
) -> tuple[list[oracle.Model], list[Tensor], list[Tensor]]:
    """Algorithm 1. Returns models, filters W_n and the last prototypes."""
    models = [fed.model() for _ in fed.clients]
    filters = [nn.Parameter(w.double().clone()) for w in W]
    optimisers = [oracle.adam([*m.parameters(), w]) for m, w in zip(models, filters, strict=True)]
    prototypes: dict[int, Tensor] = {}
    for number, chosen in enumerate(fed.chosen, start=1):
        given = global_prototypes(prototypes, options.beta) if options.inter else {}
        fresh = {
            n: fuels_client(
                models[n],
                filters[n],
                optimisers[n],
                fed.clients[n],
                given.get(n),
                partial(generator, seed, AUGMENTATION, fed.clients[n].id, number),
                fed.epochs,
                options,
            )
            for n in chosen
        }
        prototypes |= fresh
    return models, [w.detach() for w in filters], [prototypes[n] for n in range(len(models))]


def fuels_client(
    model: oracle.Model,
    W: nn.Parameter,
    optimiser: torch.optim.Optimizer,
    client: oracle.Client,
    given: tuple[Tensor, Tensor] | None,
    draws: Callable[[int], np.random.Generator],
    epochs: int,
    options: FuelsSettings,
) -> Tensor:
    collected = []
    for epoch in range(epochs):
        first = oracle.LAGS * client.period  # the first step that can be a sample
        drawn = draws(epoch).uniform(options.shift, 1.0, client.train * client.period - first)
        a = np.concatenate([np.ones(first), drawn.astype(np.float32)])
        for index, batch in enumerate(client.batches()):
            optimiser.zero_grad()
            r = model.encode(batch.x)
            loss = F.mse_loss(model.decode(r)[batch.target], batch.y[batch.target])
            if options.intra:
                share = torch.tensor(a[batch.steps])[:, None]
                r_augmented = model.encode(share * batch.x + (1 - share) * batch.x_next)
                if options.detach:
                    r_augmented = r_augmented.detach()
                rows = torch.tensor(batch.phases)
                W_rows = W[rows][:, rows] if options.filter else None
                loss = loss + intra_loss(r, r_augmented, W_rows, options.tau)
            if given is not None:
                rows = torch.tensor(batch.phases)
                if not options.periodic:
                    rows = rows + index * client.period
                loss = loss + options.rho * inter_loss(
                    r, given[0][rows], given[1][rows], options.tau
                )
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            if epoch == epochs - 1 and batch.complete:
                collected.append(r.detach())
    if options.periodic:
        return torch.stack(collected).mean(dim=0)
    return torch.cat(collected)


def global_prototypes(
    prototypes: dict[int, Tensor], percentile: float
) -> dict[int, tuple[Tensor, Tensor]]:
    """Eq. 9-10: the means of those alike and of those unlike, for whoever has both."""
    known = sorted(prototypes)
    table = {(n, m): jsd(prototypes[n], prototypes[m]) for n in known for m in known}
    pairs = [table[n, m] for n in known for m in known if n < m]
    if not pairs:
        return {}
    threshold = np.percentile(pairs, percentile)
    given = {}
    for n in known:
        alike = [prototypes[m] for m in known if m == n or table[min(n, m), max(n, m)] <= threshold]
        unlike = [
            prototypes[m] for m in known if m != n and table[min(n, m), max(n, m)] > threshold
        ]
        if unlike:
            given[n] = (torch.stack(alike).mean(dim=0), torch.stack(unlike).mean(dim=0))
    return given
