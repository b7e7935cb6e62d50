"""FedDA in textbook form, layer by layer and client by client; see oracle.py for model and data."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor, nn

from helpers import oracle

F = nn.functional


def sgd(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def augmented_set(client: oracle.Client, week: int) -> np.ndarray:
    p = client.period
    first, means = oracle.LAGS, []
    for start in range(first, client.train, week):
        for phase in range(p):
            seen = []
            for day in range(start, min(start + week, client.train)):
                k = day * p + phase
                if client.window(k) is not None and not np.isnan(client.z[k]):
                    seen.append(client.z[k])
            means.append(np.mean(seen) if seen else 0.0)
    values = np.array(means)
    scaled: np.ndarray = (values - values.mean()) / values.std()
    return scaled.astype(np.float32).astype(np.float64)


def far_apart(points: np.ndarray, count: int) -> np.ndarray:
    centre = points.mean(axis=0)
    chosen = [min(range(len(points)), key=lambda i: np.linalg.norm(points[i] - centre))]
    while len(chosen) < count:

        def nearest(i: int) -> float:
            return min(float(np.linalg.norm(points[i] - points[j])) for j in chosen)

        chosen.append(max(range(len(points)), key=nearest))
    return points[chosen]


def dual_attention(
    w: dict[str, Tensor], models: list[dict[str, Tensor]], warm: dict[str, Tensor], rho: float
) -> dict[str, Tensor]:
    layer_weight = torch.softmax(torch.stack([torch.norm(w[k] - warm[k]) for k in w]), dim=0)
    new = {}
    for i, k in enumerate(w):
        attention = torch.softmax(torch.stack([torch.norm(w[k] - m[k]) for m in models]), dim=0)
        pull = sum(a * (w[k] - m[k]) for a, m in zip(attention, models, strict=True))
        new[k] = w[k] - (pull + rho * layer_weight[i] * (w[k] - warm[k]))
    return new


def fedda(
    fed: oracle.Federation, clusters: int, rho: float, week: int, warm_epochs: int, warm_rate: float
) -> tuple[list[oracle.Model], np.ndarray]:
    """Round 1 prepares. Returns the evaluated models and the clusters."""
    sets = np.stack([augmented_set(client, week) for client in fed.clients])
    if all(client.place is not None for client in fed.clients):
        places = np.array([client.place for client in fed.clients]).astype(np.float32) * 1.0
        _, near = kmeans2(places, far_apart(places, clusters), minit="matrix")
        start = np.stack([sets[near == label].mean(axis=0) for label in sorted(set(near))])
    else:
        start = far_apart(sets, clusters)
    _, labels = kmeans2(sets, start, minit="matrix")

    p = fed.clients[0].period
    xs, ys = [], []
    for series in sets:
        for k in range(oracle.LAGS * p, len(series)):
            lags = (3, 2, 1, 3 * p, 2 * p, p)
            xs.append([series[k - lag] for lag in lags])
            ys.append(series[k])
    x, y = torch.tensor(np.array(xs)), torch.tensor(np.array(ys))
    shared = fed.model()
    optimiser = torch.optim.SGD(shared.parameters(), lr=warm_rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.MultiStepLR(
        optimiser, milestones=[warm_epochs // 2, 3 * warm_epochs // 4], gamma=0.1
    )
    for _ in range(warm_epochs):
        for first in range(0, len(y), 64):
            optimiser.zero_grad()
            loss = F.mse_loss(shared(x[first : first + 64]), y[first : first + 64])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        schedule.step()

    def state() -> dict[str, Tensor]:
        return {k: v.detach().clone() for k, v in shared.state_dict().items()}

    warm = state()
    of_cluster = {int(label): state() for label in set(labels)}
    for chosen in fed.chosen[1:]:
        trained: dict[int, list[dict[str, Tensor]]] = {}
        for n in chosen:
            model = copy.deepcopy(shared)
            oracle.train(model, fed.clients[n], sgd(list(model.parameters())), fed.epochs)
            trained.setdefault(int(labels[n]), []).append(model.state_dict())
        for label, models in trained.items():
            of_cluster[label] = dual_attention(of_cluster[label], models, warm, rho)
        shared.load_state_dict(
            dual_attention(state(), [of_cluster[label] for label in trained], warm, rho)
        )
    return [shared for _ in fed.clients], labels
