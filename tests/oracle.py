"""Textbook versions of all methods, to hold the real ones against.

One client at a time, torch.nn.GRU and torch.optim, plain loops, double precision, and the formulas
as the papers print them, without logarithms. Windows, batches and scales are made here from the raw
series. Of fuels only the random draws are used, so that both sides start alike.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fuels.randomness import AUGMENTATION, generator

LAGS = 3  # both windows


class Model(nn.Module):
    """Eq. 2 and the decoder: two GRUs side by side and a linear layer."""

    def __init__(self, start: dict[str, Tensor]) -> None:
        super().__init__()
        hidden = start["encoder.gru.0.weight_hh_l0"].shape[1]
        self.close = nn.GRU(1, hidden, batch_first=True)
        self.periodic = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Linear(2 * hidden, 1)
        self.double()
        with torch.no_grad():
            for name, value in self.named().items():
                value.copy_(start[name])

    def named(self) -> dict[str, Tensor]:
        """The parameters under the names fuels saves them by."""
        names = {}
        for branch, gru in enumerate((self.close, self.periodic)):
            for name, value in gru.named_parameters():
                names[f"encoder.gru.{branch}.{name}"] = value
        return names | {"decoder.weight": self.head.weight, "decoder.bias": self.head.bias}

    def encode(self, x: Tensor) -> Tensor:
        """[row, 6] to [row, 2 hidden]."""
        _, close = self.close(x[:, :LAGS, None])
        _, periodic = self.periodic(x[:, LAGS:, None])
        return torch.cat([close[0], periodic[0]], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encode(x))[:, 0]

    @property
    def body(self) -> list[nn.Parameter]:
        return [*self.close.parameters(), *self.periodic.parameters()]


@dataclass
class Batch:
    """One period of one client; rows are those phases whose window is known."""

    x: Tensor  # [row, 6]
    x_next: Tensor  # windows one step later, [row, 6]; x itself where that is not known
    y: Tensor  # [row]
    target: Tensor  # the value was observed, [row]
    steps: list[int]  # time of each row
    phases: list[int]
    complete: bool


@dataclass
class Client:
    """A series cut into windows and batches, the way Section 2 of the paper says."""

    id: str
    values: np.ndarray  # raw, NaN where missing
    period: int
    train: int  # training periods
    place: tuple[float, float] | None = None
    z: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        past = self.values[: self.train * self.period]
        z = (self.values - np.nanmean(past)) / np.nanstd(past)
        self.z = z.astype(np.float32).astype(np.float64)

    def window(self, k: int) -> list[float] | None:
        p = self.period
        if k < LAGS * p:
            return None
        values = [self.z[k - 3], self.z[k - 2], self.z[k - 1]]
        values += [self.z[k - 3 * p], self.z[k - 2 * p], self.z[k - p]]
        return None if np.isnan(values).any() else values

    def batches(self) -> list[Batch]:
        """The training periods in which something was observed."""
        found = []
        for period in range(self.train):
            steps = [period * self.period + b for b in range(self.period)]
            known = [k for k in steps if self.window(k) is not None]
            target = [not np.isnan(self.z[k]) for k in known]
            if not any(target):
                continue
            found.append(
                Batch(
                    x=torch.tensor([self.window(k) for k in known], dtype=torch.float64),
                    x_next=torch.tensor(
                        [self.window(k + 1) or self.window(k) for k in known], dtype=torch.float64
                    ),
                    y=torch.tensor([np.nan_to_num(self.z[k]) for k in known], dtype=torch.float64),
                    target=torch.tensor(target),
                    steps=known,
                    phases=[k % self.period for k in known],
                    complete=len(known) == self.period,
                )
            )
        return found

    @property
    def samples(self) -> int:
        return sum(int(batch.target.sum()) for batch in self.batches())

    def predict(self, model: Model, first: int, last: int) -> np.ndarray:
        x = torch.tensor([self.window(k) for k in range(first, last)], dtype=torch.float64)
        with torch.no_grad():
            return model(x).numpy()


def prediction_loss(model: Model, batch: Batch) -> Tensor:
    """Eq. 14 over the observed rows."""
    return F.mse_loss(model(batch.x)[batch.target], batch.y[batch.target])


Optimise = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]


def adam(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.001)


def sgd(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def train(
    model: Model,
    client: Client,
    optimiser: torch.optim.Optimizer,
    epochs: int = 1,
    penalty: Callable[[], Tensor] | None = None,
) -> None:
    for _ in range(epochs):
        for batch in client.batches():
            model.zero_grad()
            loss = prediction_loss(model, batch)
            if penalty is not None:
                loss = loss + penalty()
            loss.backward()
            optimiser.step()


def average(models: Sequence[nn.Module], weights: Sequence[float]) -> dict[str, Tensor]:
    total = sum(weights)
    states = [model.state_dict() for model in models]
    return {
        key: sum(w / total * state[key] for w, state in zip(weights, states, strict=True))
        for key in states[0]
    }


@dataclass
class Federation:
    """What every method below gets: clients, the start, and who trains in which round."""

    clients: list[Client]
    start: dict[str, Tensor]
    chosen: list[list[int]]  # clients of each round, by position
    epochs: int = 1

    def model(self) -> Model:
        return Model(self.start)


# -- the methods: each returns the models by which the clients are judged ---------------------------


def solo(fed: Federation) -> list[Model]:
    models = [fed.model() for _ in fed.clients]
    optimisers = [adam(list(model.parameters())) for model in models]
    for chosen in fed.chosen:
        for n in chosen:
            train(models[n], fed.clients[n], optimisers[n], fed.epochs)
    return models


def fedavg(fed: Federation, mu: float = 0.0) -> list[Model]:
    """FedAvg, and FedProx where mu is not 0."""
    shared = fed.model()
    for chosen in fed.chosen:
        locals_ = []
        for n in chosen:
            model = copy.deepcopy(shared)

            def proximal(model: Model = model) -> Tensor:
                pairs = zip(model.parameters(), shared.parameters(), strict=True)
                return mu / 2 * sum(((w - g.detach()) ** 2).sum() for w, g in pairs)

            train(model, fed.clients[n], adam(list(model.parameters())), fed.epochs, proximal)
            locals_.append(model)
        shared.load_state_dict(average(locals_, [fed.clients[n].samples for n in chosen]))
    return [shared for _ in fed.clients]


def fedrep(fed: Federation, head_epochs: int = 1) -> list[Model]:
    shared = fed.model()
    heads = [copy.deepcopy(shared.head) for _ in fed.clients]
    head_optimisers = [adam(list(head.parameters())) for head in heads]
    for chosen in fed.chosen:
        locals_ = []
        for n in chosen:
            model = copy.deepcopy(shared)
            model.head = heads[n]
            train(model, fed.clients[n], head_optimisers[n], head_epochs)
            train(model, fed.clients[n], adam(model.body), fed.epochs)
            locals_.append(copy.deepcopy(model))
        shared.load_state_dict(average(locals_, [fed.clients[n].samples for n in chosen]))
    judged = [copy.deepcopy(shared) for _ in fed.clients]
    for model, head in zip(judged, heads, strict=True):
        model.head = head
    return judged


def gradient_at(model: Model, w: Tensor, batch: Batch) -> Tensor:
    """Gradient of the loss on a batch at parameters w."""
    probe = copy.deepcopy(model)
    vector_to_parameters(w, probe.parameters())
    probe.zero_grad()
    prediction_loss(probe, batch).backward()
    return torch.cat([p.grad.flatten() for p in probe.parameters()])


def weights_of(model: Model) -> Tensor:
    return parameters_to_vector(model.parameters()).detach().clone()


def perfedavg(
    fed: Federation,
    periods: Sequence[int],
    variant: str = "hf",
    alpha: float = 0.01,
    delta: float = 0.001,
    outer: str = "next",
) -> list[Model]:
    """`periods` of the training part go round; a client skips those in which it has nothing."""
    shared = fed.model()
    for chosen in fed.chosen:
        locals_ = []
        for n in chosen:
            model, client = copy.deepcopy(shared), fed.clients[n]
            optimiser = adam(list(model.parameters()))
            there = {batch.steps[0] // client.period: batch for batch in client.batches()}
            days = list(periods) * fed.epochs
            if outer == "every":
                turns = [(days[i - 1], days[i], days[(i + 1) % len(days)]) for i in range(len(days))]
            elif variant == "hf":
                turns = list(zip(days[0::3], days[1::3], days[2::3], strict=False))
            else:
                turns = [(a, b, -1) for a, b in zip(days[0::2], days[1::2], strict=False)]
            for first, second, third in turns:
                if second not in there:
                    continue
                w = weights_of(model)
                inner = gradient_at(model, w, there[first]) if first in there else 0.0
                g = gradient_at(model, w - alpha * inner, there[second])
                if variant == "hf" and third in there:
                    ahead = gradient_at(model, w + delta * g, there[third])
                    behind = gradient_at(model, w - delta * g, there[third])
                    g = g - alpha * (ahead - behind) / (2 * delta)
                start = 0
                for p in model.parameters():
                    p.grad = g[start : start + p.numel()].view_as(p).clone()
                    start += p.numel()
                optimiser.step()
            locals_.append(model)
        shared.load_state_dict(average(locals_, [fed.clients[n].samples for n in chosen]))
    judged = []
    for client in fed.clients:
        model = copy.deepcopy(shared)
        w = weights_of(model)
        last = client.batches()[-1]  # every client of the tests has a value in the last period
        vector_to_parameters(w - alpha * gradient_at(model, w, last), model.parameters())
        judged.append(model)
    return judged


def pfedme(
    fed: Federation,
    inner_steps: int = 5,
    lam: float = 15.0,
    personal_rate: float = 0.09,
    eta: float = 0.005,
    beta: float = 1.0,
) -> tuple[list[Model], Model]:
    """The personal models and the global one."""
    shared = fed.model()
    personal = [fed.model() for _ in fed.clients]
    for chosen in fed.chosen:
        locals_ = []
        for n in chosen:
            w = weights_of(shared)
            theta = w.clone()
            for _ in range(fed.epochs):
                for batch in fed.clients[n].batches():
                    for _ in range(inner_steps):
                        g = gradient_at(shared, theta, batch) + lam * (theta - w)
                        theta = theta - personal_rate * g
                    w = w - eta * lam * (w - theta)
            vector_to_parameters(theta, personal[n].parameters())
            locals_.append(copy.deepcopy(shared))
            vector_to_parameters(w, locals_[-1].parameters())
        mean = average(locals_, [fed.clients[n].samples for n in chosen])
        old = shared.state_dict()
        shared.load_state_dict({k: (1 - beta) * old[k] + beta * mean[k] for k in mean})
    return personal, shared


# -- FedDA -----------------------------------------------------------------------------------------


def augmented_set(client: Client, week: int) -> np.ndarray:
    p = client.period
    first, means = LAGS, []
    for start in range(first, client.train, week):
        for phase in range(p):
            seen = []
            for day in range(start, min(start + week, client.train)):
                k = day * p + phase
                if client.window(k) is not None and not np.isnan(client.z[k]):
                    seen.append(client.z[k])
            means.append(np.mean(seen) if seen else 0.0)
    values = np.array(means)
    return ((values - values.mean()) / values.std()).astype(np.float32).astype(np.float64)


def far_apart(points: np.ndarray, count: int) -> np.ndarray:
    centre = points.mean(axis=0)
    chosen = [min(range(len(points)), key=lambda i: np.linalg.norm(points[i] - centre))]
    while len(chosen) < count:

        def nearest(i: int) -> float:
            return min(np.linalg.norm(points[i] - points[j]) for j in chosen)

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
    fed: Federation, clusters: int, rho: float, week: int, warm_epochs: int, warm_rate: float
) -> tuple[list[Model], np.ndarray]:
    """Round 1 prepares. Returns the judged models and the clusters."""
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
        for k in range(LAGS * p, len(series)):
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
            F.mse_loss(shared(x[first : first + 64]), y[first : first + 64]).backward()
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
            train(model, fed.clients[n], sgd(list(model.parameters())), fed.epochs)
            trained.setdefault(int(labels[n]), []).append(model.state_dict())
        for label, models in trained.items():
            of_cluster[label] = dual_attention(of_cluster[label], models, warm, rho)
        shared.load_state_dict(
            dual_attention(state(), [of_cluster[label] for label in trained], warm, rho)
        )
    return [shared for _ in fed.clients], labels


# -- FUELS -----------------------------------------------------------------------------------------


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
    if W is None:
        Z = sm * (1 - torch.eye(len(r), dtype=sm.dtype))
    else:
        Z = torch.relu(sm * W)
    loss = 0.0
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
    fed: Federation, W: list[Tensor], seed: int, options: FuelsSettings
) -> tuple[list[Model], list[Tensor], list[Tensor]]:
    """Algorithm 1. Returns models, filters W_n and the last prototypes."""
    models = [fed.model() for _ in fed.clients]
    filters = [nn.Parameter(w.double().clone()) for w in W]
    optimisers = [adam([*m.parameters(), w]) for m, w in zip(models, filters, strict=True)]
    prototypes: list[Tensor | None] = [None] * len(models)
    for number, chosen in enumerate(fed.chosen, start=1):
        given = global_prototypes(prototypes, options.beta) if options.inter else {}
        fresh = {
            n: fuels_client(
                models[n],
                filters[n],
                optimisers[n],
                fed.clients[n],
                given.get(n),
                lambda epoch, n=n, number=number: generator(
                    seed, AUGMENTATION, fed.clients[n].id, number, epoch
                ),
                fed.epochs,
                options,
            )
            for n in chosen
        }
        for n, prototype in fresh.items():
            prototypes[n] = prototype
    return models, [w.detach() for w in filters], prototypes


def fuels_client(
    model: Model,
    W: nn.Parameter,
    optimiser: torch.optim.Optimizer,
    client: Client,
    given: tuple[Tensor, Tensor] | None,
    draws: Callable[[int], np.random.Generator],
    epochs: int,
    options: FuelsSettings,
) -> Tensor:
    collected = []
    for epoch in range(epochs):
        first = LAGS * client.period  # the first step that can be a sample
        drawn = draws(epoch).uniform(options.shift, 1.0, client.train * client.period - first)
        a = np.concatenate([np.ones(first), drawn.astype(np.float32)])
        for index, batch in enumerate(client.batches()):
            optimiser.zero_grad()
            r = model.encode(batch.x)
            loss = F.mse_loss(model.head(r)[:, 0][batch.target], batch.y[batch.target])
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
                loss = loss + options.rho * inter_loss(r, given[0][rows], given[1][rows], options.tau)
            loss.backward()
            optimiser.step()
            if epoch == epochs - 1 and batch.complete:
                collected.append(r.detach())
    if options.periodic:
        return torch.stack(collected).mean(dim=0)
    return torch.cat(collected)


def global_prototypes(
    prototypes: list[Tensor | None], percentile: float
) -> dict[int, tuple[Tensor, Tensor]]:
    """Eq. 9-10: the means of those alike and of those unlike, for whoever has both."""
    known = [n for n, prototype in enumerate(prototypes) if prototype is not None]
    table = {(n, m): jsd(prototypes[n], prototypes[m]) for n in known for m in known}
    pairs = [table[n, m] for n in known for m in known if n < m]
    if not pairs:
        return {}
    threshold = np.percentile(pairs, percentile)
    given = {}
    for n in known:
        alike = [prototypes[m] for m in known if m == n or table[min(n, m), max(n, m)] <= threshold]
        unlike = [prototypes[m] for m in known if m != n and table[min(n, m), max(n, m)] > threshold]
        if unlike:
            given[n] = (torch.stack(alike).mean(dim=0), torch.stack(unlike).mean(dim=0))
    return given
