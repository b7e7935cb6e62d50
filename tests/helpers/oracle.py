"""Textbook versions of all methods, to hold the real ones against.

One client at a time, torch.nn.GRU and torch.optim, plain loops, double precision, and the formulas
as the papers print them, without logarithms. Windows, batches and scales are made here from the raw
series. Nothing of fuels is used: the start and the choice of clients are given.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

LAGS = 3  # both windows
F = nn.functional


class Model(nn.Module):
    """Eq. 2 and the decoder: two GRUs and a linear layer that reads both states, or their sum."""

    def __init__(self, start: dict[str, Tensor]) -> None:
        super().__init__()
        hidden = start["encoder.gru.0.weight_hh_l0"].shape[1]
        self.close = nn.GRU(1, hidden, batch_first=True)
        self.periodic = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Linear(start["decoder.weight"].shape[1], 1)
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
        return self.decode(self.encode(x))

    def decode(self, r: Tensor) -> Tensor:
        """[row, 2 hidden] to [row]."""
        hidden = r.shape[1] // 2
        read = r if self.head.in_features > hidden else r[:, :hidden] + r[:, hidden:]
        forecast: Tensor = self.head(read)[:, 0]
        return forecast

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
            forecast: np.ndarray = model(x).numpy()
        return forecast


def prediction_loss(model: Model, batch: Batch) -> Tensor:
    """Eq. 14 over the observed rows."""
    return F.mse_loss(model(batch.x)[batch.target], batch.y[batch.target])


Optimise = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]


def adam(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.001)


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
            loss.backward()  # type: ignore[no-untyped-call]
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


# -- the methods: each returns the models with which the clients are evaluated ---------------------


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
                return (
                    mu
                    / 2
                    * sum((((w - g.detach()) ** 2).sum() for w, g in pairs), torch.tensor(0.0))
                )

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
    evaluated = [copy.deepcopy(shared) for _ in fed.clients]
    for model, head in zip(evaluated, heads, strict=True):
        model.head = head
    return evaluated


def gradient_at(model: Model, w: Tensor, batch: Batch) -> Tensor:
    """Gradient of the loss on a batch at parameters w."""
    probe = copy.deepcopy(model)
    vector_to_parameters(w, probe.parameters())
    probe.zero_grad()
    loss = prediction_loss(probe, batch)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(probe.parameters()))])


def weights_of(model: Model) -> Tensor:
    return parameters_to_vector(model.parameters()).detach().clone()


def perfedavg(
    fed: Federation,
    periods: Sequence[int],
    variant: str = "hf",
    alpha: float = 0.01,
    delta: float = 0.001,
    outer: str = "next",
    steps: int = 1,
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
                turns = [
                    (days[i - 1], days[i], days[(i + 1) % len(days)]) for i in range(len(days))
                ]
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
    evaluated = []
    for client in fed.clients:
        model = copy.deepcopy(shared)
        for batch in client.batches()[-steps:]:  # all clients of the tests have values there
            w = weights_of(model)
            vector_to_parameters(w - alpha * gradient_at(model, w, batch), model.parameters())
        evaluated.append(model)
    return evaluated


def pfedme(
    fed: Federation,
    inner_steps: int = 5,
    lam: float = 1.0,
    personal_rate: float = 0.0,
    eta: float = 0.5,
    beta: float = 1.0,
) -> tuple[list[Model], Model]:
    """The personal models and the global one."""
    shared = fed.model()
    personal = [fed.model() for _ in fed.clients]
    for chosen in fed.chosen:
        locals_ = []
        for n in chosen:
            w = weights_of(shared)
            theta = nn.Parameter(w.clone())
            optimiser = (
                torch.optim.SGD([theta], lr=personal_rate) if personal_rate else adam([theta])
            )
            for _ in range(fed.epochs):
                for batch in fed.clients[n].batches():
                    for _ in range(inner_steps):
                        optimiser.zero_grad()
                        theta.grad = gradient_at(shared, theta.detach(), batch)
                        theta.grad += lam * (theta.detach() - w)
                        optimiser.step()
                    w = w - eta * lam * (w - theta.detach())
            vector_to_parameters(theta.detach(), personal[n].parameters())
            locals_.append(copy.deepcopy(shared))
            vector_to_parameters(w, locals_[-1].parameters())
        mean = average(locals_, [fed.clients[n].samples for n in chosen])
        old = shared.state_dict()
        shared.load_state_dict({k: (1 - beta) * old[k] + beta * mean[k] for k in mean})
    return personal, shared
