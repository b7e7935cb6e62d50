"""Local training of a group of stacked clients: the tools for a method's client side.

A group has some tens of clients at most and runs its local epochs in one thread. Every tensor has
the client first, and no operation mixes clients, so each trains as it would in a group of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fuels.arrays import Flags, Floats, Floats32, Integers
from fuels.data.windows import Dataset
from fuels.model.network import Network, Parts
from fuels.model.optimiser import Update, adam, sgd
from fuels.randomness import AUGMENTATION, DOUBT, generator

Slots = dict[str, dict[str, Tensor]]  # part: name of the optimiser's state: [client, ...]


class Optimiser:
    """Adam or SGD. A slot is its state for a part, kept between rounds if the part stays."""

    def __init__(self, kind: str, learning_rate: float, momentum: float = 0.0) -> None:
        self.kind, self.learning_rate, self.momentum = kind, learning_rate, momentum

    def fresh(self, part: Tensor) -> dict[str, Tensor]:
        """The initial state for a part."""
        if self.kind == "sgd":
            return {"momentum": torch.zeros_like(part)}
        return {
            "m": torch.zeros_like(part),
            "v": torch.zeros_like(part),
            "step": torch.zeros(part.shape[0], dtype=torch.int64, device=part.device),
        }

    def update(self, part: Tensor, slot: dict[str, Tensor], active: Tensor) -> Update:
        """A step of `part` [client, size]; inactive clients will stay as they are."""
        if self.kind == "sgd":
            settings = (slot["momentum"], active, self.learning_rate, self.momentum)
            return Update(sgd, part, settings)
        return Update(adam, part, (slot["m"], slot["v"], slot["step"], active, self.learning_rate))

    def step(self, part: Tensor, gradient: Tensor, slot: dict[str, Tensor], active: Tensor) -> None:
        """Take a step of `part` [client, size] in place."""
        self.update(part, slot, active)(gradient.contiguous())


@dataclass(frozen=True)
class Batch:
    """One period of every client of the group: row b is phase b."""

    index: int  # position among the training periods that can have samples
    last_epoch: bool
    views: Tensor  # windows x [client, B, lag], with augmentation x' below them
    clock: Tensor  # calendar columns, [B, H, column], the same for all clients
    y: Tensor  # values to predict, 1, ..., H steps ahead, [client, B, H]
    weight: Tensor  # of each value in the prediction loss, sums to 1, [client, B, H]
    row_weight: Tensor  # of each row in the contrastive losses, [client, B]
    active: Tensor  # [client]: the client has a value to learn from
    complete: Tensor  # [client]: every row has a window

    @property
    def x(self) -> Tensor:
        return self.views[:, : self.y.shape[1]]


class GroupData:
    """Training windows of a group, all periods one after another, as tensors."""

    def __init__(self, dataset: Dataset, clients: Integers, device: torch.device) -> None:
        period, end = dataset.period, dataset.split.train
        target = dataset.target[clients, :end].reshape(len(clients), -1, period)
        window = dataset.window[clients, :end].reshape(len(clients), -1, period)
        # The first periods only feed the windows. All others become batches, even where no client
        # of the group has values, so a client's batches do not depend on the rest of its group.
        self.period, self.first = period, dataset.sample.reach_periods
        self.periods = range(self.first, end // period)
        first, last = self.first * period, end
        # One step more than the targets, for the temporal shift of the last sample; its newest
        # value is still in the training part.
        self.windows = torch.from_numpy(dataset.inputs(clients, first, last + 1)).to(device)
        self.y = torch.from_numpy(values_ahead(dataset, clients, first, last)).to(device)
        self.doubt = dataset.sample.doubt
        self.clocks = [  # the right one and, with doubt, the one wrong about free days
            torch.from_numpy(dataset.clock(first, last, wrong)).to(device)
            for wrong in ((False, True) if self.doubt else (False,))
        ]
        next_window = dataset.window[clients, first + 1 : last + 1]
        if next_window.shape[1] < last - first:
            next_window = np.pad(next_window, ((0, 0), (0, 1)), constant_values=True)
        self.shiftable = torch.from_numpy(next_window.copy()).to(device)
        # Period first, so that a batch is contiguous: [period, client, ...].
        ahead = targets_ahead(dataset, clients, 0, end)  # the first H is `target`
        heads = ahead.shape[2]
        weight = _row_weights(ahead.reshape(len(clients), -1, period * heads))
        weight = weight.reshape(*weight.shape[:2], period, heads)
        by_period = [weight, _row_weights(window), target.any(2), window.all(2)]
        self.weight, self.row_weight, self.active, self.complete = (
            torch.from_numpy(np.swapaxes(array, 0, 1).copy()).to(device) for array in by_period
        )
        self.samples = target[:, self.first :].sum(axis=(1, 2)).astype(np.int64)
        places = dataset.panel.coordinates
        self.coordinates = None if places is None else places[clients]  # [client, 2]

    def rows(self, period: int) -> slice:
        start = (period - self.first) * self.period
        return slice(start, start + self.period)


def targets_ahead(dataset: Dataset, clients: Integers, first: int, last: int) -> Flags:
    """Whether the value h steps after a step is a target of its window, [client, step, H]."""
    window, target = (part[clients, first:last] for part in (dataset.window, dataset.target))
    observed, steps = dataset.observed[clients, first:last], last - first
    masks = [target]
    for h in range(1, dataset.sample.horizon):
        later = np.zeros_like(target)
        later[:, : max(steps - h, 0)] = observed[:, h:] & window[:, : max(steps - h, 0)]
        masks.append(later)  # steps before `last` only
    return np.stack(masks, axis=-1)


def values_ahead(dataset: Dataset, clients: Integers, first: int, last: int) -> Floats32:
    """The value of each step and of the H - 1 after it, [client, step, H]; 0 from `last` on."""
    values = np.zeros((len(clients), last - first, dataset.sample.horizon), np.float32)
    for h in range(min(dataset.sample.horizon, last - first)):
        values[:, : last - first - h, h] = dataset.series[clients, first + h : last]
    return values


def _row_weights(mask: Flags) -> Floats32:
    """1 / (rows that count) for a row that counts, else 0, [client, period, B]."""
    count = mask.sum(axis=2, keepdims=True)
    weights: Floats32 = (mask / np.maximum(count, 1)).astype(np.float32)
    return weights


def unknown_error(models: Parts) -> Floats:
    """The error of each client where there is nothing to measure it on: NaN."""
    return np.full(len(next(iter(models.values()))), np.nan)


class Group:
    """Clients in training: their data, parameters and optimiser."""

    def __init__(
        self,
        ids: Sequence[str],
        data: GroupData,
        network: Network,
        parts: Parts,
        slots: Slots,
        optimiser: Optimiser,
        seed: int,
        round_number: int,
        shift: float,
        own_error: Callable[[Parts], Floats] = unknown_error,
    ) -> None:
        self.own_error = own_error  # of the clients, on data that they do not train on
        self.ids, self.data, self.network = tuple(ids), data, network
        self.parts = parts
        self.slots = slots
        self.optimiser = optimiser
        self.seed, self.round, self.shift = seed, round_number, shift
        self.installed: Parts = {}  # the server's parts of this round, [1, size]
        self.losses: dict[str, list[tuple[Tensor, Tensor]]] = {}

    @property
    def device(self) -> torch.device:
        return self.data.y.device

    def install(self, parts: dict[str, Floats32]) -> None:
        """Replace parts by the server's [size] and reset their optimiser state."""
        for name, value in parts.items():
            row = torch.from_numpy(np.ascontiguousarray(value)).to(self.device).unsqueeze(0)
            self.installed[name] = row
            self.parts[name] = row.repeat(len(self.ids), 1)
            self.slots[name] = self.optimiser.fresh(self.parts[name])

    def batches(self, epochs: int, augment: bool = False) -> Iterator[Batch]:
        """The training periods in order, `epochs` times; never shuffled."""
        data = self.data
        for epoch in range(epochs):
            views = self._views(epoch, augment)
            clocks = self._clocks(epoch)
            for index, period in enumerate(data.periods):
                rows = data.rows(period)
                yield Batch(
                    index=index,
                    last_epoch=epoch == epochs - 1,
                    views=views[:, index],
                    clock=clocks[index][rows],
                    y=data.y[:, rows],
                    weight=data.weight[period],
                    row_weight=data.row_weight[period],
                    active=data.active[period],
                    complete=data.complete[period],
                )

    def _views(self, epoch: int, augment: bool) -> Tensor:
        """The windows of an epoch, [client, period, B, lag] or, augmented, [.., 2 B, lag]."""
        data = self.data
        x = data.windows[:, :-1]
        by_period = (len(x), len(data.periods), data.period, x.shape[2])
        if not augment:
            return x.view(by_period)
        shifted = torch.lerp(data.windows[:, 1:], x, self._mix(epoch).unsqueeze(2))
        return torch.cat([x.view(by_period), shifted.view(by_period)], dim=2)

    def _clocks(self, epoch: int) -> list[Tensor]:
        """The clock of each period; in a share of them it is wrong about free days.

        All clients have the same clock, so there is one draw for all.
        """
        data = self.data
        draws = generator(self.seed, DOUBT, self.round, epoch).random(len(data.periods))
        return [data.clocks[int(draw < data.doubt)] for draw in draws]

    def _mix(self, epoch: int) -> Tensor:
        """The share a ~ U(shift, 1) of x(k) in x'(k) = a x(k) + (1 - a) x(k+1), [client, step].

        If the window of the next step is not known, x' is x.
        """
        steps = self.data.y.shape[1]
        draws = np.stack(
            [
                generator(self.seed, AUGMENTATION, client, self.round, epoch).uniform(
                    self.shift, 1.0, steps
                )
                for client in self.ids
            ]
        )
        mix = torch.from_numpy(draws.astype(np.float32)).to(self.device)
        return torch.where(self.data.shiftable, mix, 1.0)

    def updates(self, names: Sequence[str], active: Tensor) -> dict[str, list[Update]]:
        """An optimiser step of the named parts; inactive clients will stay as they are."""
        return {n: [self.optimiser.update(self.parts[n], self.slots[n], active)] for n in names}

    def step(self, gradient: Parts, active: Tensor) -> None:
        """Take an optimiser step of the parts in `gradient`; inactive clients stay as they are."""
        for name, value in gradient.items():
            self.optimiser.step(self.parts[name], value, self.slots[name], active)

    def record(self, batch: Batch, **losses: Tensor) -> None:
        """Keep the losses [client] of a batch for the round's report."""
        for name, value in losses.items():
            self.losses.setdefault(name, []).append((value.detach(), batch.active))

    def mean_losses(self) -> dict[str, Floats]:
        """Mean over the batches in which a client was active, [client] per loss."""
        result = {}
        for name, values in self.losses.items():
            counted = torch.stack([active for _, active in values], dim=1)  # [client, batch]
            total = (torch.stack([value for value, _ in values], dim=1) * counted).sum(1)
            result[name] = (total / counted.sum(1).clamp(min=1)).double().cpu().numpy()
        return result


def leaves(parts: Parts, names: Sequence[str]) -> Parts:
    """The parts, the named ones as leaves of an autograd graph."""
    return {n: p.detach().requires_grad_(True) if n in names else p for n, p in parts.items()}


def gradients(loss: Tensor, names: Sequence[str], parts: Parts) -> Parts:
    """Gradient of each client's own loss [client] with respect to its named parts."""
    found = torch.autograd.grad(loss.sum(), [parts[n] for n in names], allow_unused=True)
    return {
        n: torch.zeros_like(parts[n]) if g is None else g for n, g in zip(names, found, strict=True)
    }
