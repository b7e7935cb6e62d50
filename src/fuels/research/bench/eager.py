"""(b) Eager PyTorch: the same clients one after another, as one would write them first.

torch.nn.GRU, torch.optim.Adam as it comes and the formulas as the paper prints them, in single
precision. Raw and augmented rows go through the network in one call, and tiny numbers count as
zero, as in our kernels. Flower and pfl run this same code.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fuels.arrays import Floats32
from fuels.data.windows import Dataset
from fuels.methods.fuels import Fuels, FuelsOptions
from fuels.randomness import AUGMENTATION, generator
from fuels.research.bench.work import (
    FIRST,
    PERIOD,
    SETTINGS,
    Given,
    Sizes,
    make_dataset,
    make_method,
)

OPTIONS = FuelsOptions()
LAGS = [3, 3]  # of the closeness and of the periodic window
TRIES = 4  # epochs for each number of threads, to find out which is faster


class Encoder(nn.Module):
    """Eq. 2: one GRU per window, their final states side by side."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gru = nn.ModuleList(nn.GRU(1, hidden, batch_first=True) for _ in LAGS)

    def forward(self, x: Tensor) -> Tensor:
        """Representations [row, 2 hidden] of windows [row, lag]."""
        windows = torch.split(x.unsqueeze(2), LAGS, dim=1)
        finals = [gru(window)[1][0] for gru, window in zip(self.gru, windows, strict=True)]
        return torch.cat(finals, dim=1)


class Model(nn.Module):
    """The personal model; its parameters have the names and the order ours have."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.encoder = Encoder(hidden)
        self.decoder = nn.Linear(2 * hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Forecasts [row] of windows [row, lag]."""
        y: Tensor = self.decoder(self.encoder(x))
        return y.squeeze(1)


@dataclass(frozen=True)
class ClientData:
    """The training part of one client, batch after batch: row b is phase b."""

    id: str
    x: Tensor  # windows, [batch, B, lag]
    x_next: Tensor  # windows of the next step
    y: Tensor  # [batch, B]

    def augmented(self, round_number: int) -> Tensor:
        """x' of an epoch: the temporal shift with a ~ U(shift, 1), drawn as our clients draw."""
        draws = generator(SETTINGS.seed, AUGMENTATION, self.id, round_number, 0).uniform(
            OPTIONS.shift, 1.0, self.y.numel()
        )
        share = torch.from_numpy(draws.astype(np.float32)).view(*self.y.shape, 1)
        return torch.lerp(self.x_next, self.x, share.to(self.x.dtype))


def client_data(dataset: Dataset, row: int) -> ClientData:
    first, last = FIRST * PERIOD, dataset.split.train
    windows = dataset.inputs(np.array([row]), first, last + 1)[0]
    x, x_next = (
        torch.from_numpy(part.copy()).view(-1, PERIOD, sum(LAGS))
        for part in (windows[:-1], windows[1:])
    )
    y = torch.from_numpy(dataset.series[row, first:last].copy()).view(-1, PERIOD)
    return ClientData(dataset.ids[row], x, x_next, y)


# -- what a client does in a round -------------------------------------------------------------


def fuels_epoch(
    model: Model,
    W: Tensor,
    adam: torch.optim.Optimizer,
    data: ClientData,
    round_number: int,
    given: Sequence[Tensor],
) -> Tensor:
    """A local epoch of FUELS (Eq. 15) and the periodic prototype; `given` is PR_n, NR_n or none."""
    total = data.y.new_zeros(PERIOD, model.decoder.in_features)
    for x, x_augmented, y in zip(data.x, data.augmented(round_number), data.y, strict=True):
        adam.zero_grad()
        r, r_augmented = model.encoder(torch.cat([x, x_augmented])).split(PERIOD)
        u = functional.normalize(r, dim=1)
        loss = functional.mse_loss(model.decoder(r).squeeze(1), y)
        loss = loss + intra_loss(u, functional.normalize(r_augmented, dim=1), W)
        if given:
            loss = loss + OPTIONS.rho * inter_loss(u, *given)
        torch.autograd.backward(loss)
        adam.step()
        total += r.detach()
    return total / len(data.y)


def intra_loss(u: Tensor, u_augmented: Tensor, W: Tensor) -> Tensor:
    """Eq. 3-6 for rows of length one."""
    sm = torch.exp(u @ u_augmented.T / OPTIONS.tau)
    negatives = torch.relu(sm * W).sum(1)
    positive = sm.diagonal()
    return -torch.log(positive / (positive + negatives)).mean()


def inter_loss(u: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Eq. 11-13 for rows of length one: log(1 + neg / pos)."""
    gap = (u * (negative - positive)).sum(1)
    return functional.softplus(gap / OPTIONS.tau).mean()


def unit_rows(given: Mapping[str, Sequence[Floats32]], client: str) -> list[Tensor]:
    """PR_n and NR_n of a client, rows of length one, once for the whole round."""
    return [functional.normalize(torch.tensor(side), dim=1) for side in given.get(client, ())]


def fedavg_epoch(model: Model, adam: torch.optim.Optimizer, data: ClientData) -> None:
    """A local epoch on the prediction loss alone."""
    for x, y in zip(data.x, data.y, strict=True):
        adam.zero_grad()
        torch.autograd.backward(functional.mse_loss(model(x), y))
        adam.step()


def new_adam(parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.001)


# -- the start ---------------------------------------------------------------------------------


class Start:
    """The data of the sampled clients and where they all start from."""

    def __init__(self, sizes: Sizes) -> None:
        dataset = make_dataset(sizes)
        self.method = make_method("fuels", sizes, dataset)
        self.sizes = sizes
        self.clients = [client_data(dataset, row) for row in range(sizes.sample)]
        network = self.method.facts.network
        rows = {n: torch.from_numpy(v)[None] for n, v in network.initial(SETTINGS.seed).items()}
        self.weights = network.tensors(rows, 0)

    def model(self) -> Model:
        model = Model(self.sizes.hidden)
        model.load_state_dict(self.weights)
        return model

    def filter(self, client: str) -> Tensor:
        """W_n as ours is drawn."""
        assert isinstance(self.method, Fuels)
        drawn = torch.from_numpy(self.method.initial_parts(client)["filter"])
        return drawn.view(PERIOD, PERIOD).requires_grad_()


def flat(model: nn.Module) -> Floats32:
    """All parameters in one row."""
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy()


class Eager:
    """The sampled clients one after another in this process."""

    def __init__(self, sizes: Sizes, threads: int) -> None:
        self.clients = sizes.sample
        self.start = Start(sizes)
        self.personal = []
        for data in self.start.clients:
            model, W = self.start.model(), self.start.filter(data.id)
            self.personal.append((model, W, new_adam([*model.parameters(), W]), data))
        self.shared = self.start.model()
        self.threads = self._best_threads(threads)

    def turn(self, method: str, round_number: int, given: Given) -> tuple[float, Floats32]:
        """Seconds of a round of the sampled clients, and what they would upload."""
        with eager_settings(self.threads):
            start = time.perf_counter()
            result = self._fuels(round_number, given) if method == "fuels" else self._fedavg()
            return time.perf_counter() - start, result

    def close(self) -> None:
        """Nothing runs between turns."""

    def _best_threads(self, threads: int) -> int:
        """How many threads of PyTorch are fastest here: it may wait longer for two than for one.

        By the quickest of some epochs of both methods; the first of them also warms up.
        """
        model, data = self.start.model(), self.start.clients[0]
        W = self.start.filter(data.id)
        adam = new_adam([*model.parameters(), W])
        seconds = {}
        for count in (1, threads):
            with eager_settings(count):
                turns = []
                for _ in range(TRIES):
                    start = time.perf_counter()
                    fedavg_epoch(model, adam, data)
                    fuels_epoch(model, W, adam, data, 1, ())
                    turns.append(time.perf_counter() - start)
                seconds[count] = min(turns)
        return min(seconds, key=seconds.__getitem__)

    def _fuels(self, round_number: int, given: Given) -> Floats32:
        prototypes = [
            fuels_epoch(model, W, adam, data, round_number, unit_rows(given, data.id))
            for model, W, adam, data in self.personal
        ]
        return torch.stack(prototypes).numpy()

    def _fedavg(self) -> Floats32:
        models = []
        for data in self.start.clients:
            self.shared.load_state_dict(self.start.weights)
            fedavg_epoch(self.shared, new_adam(list(self.shared.parameters())), data)
            models.append(flat(self.shared))
        return np.asarray(np.mean(models, axis=0))


@contextmanager
def eager_settings(threads: int) -> Iterator[None]:
    """PyTorch as the eager code runs best; afterwards as the rest of this process wants it."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(1)
        torch.set_flush_denormal(False)
