"""FedDA: clustered clients, a warm-up model, and attention instead of an average.

Zhang et al., "Dual Attention-Based Federated Learning for Wireless Traffic Prediction", INFOCOM
2021, with its authors' published settings.

Round 1 is preparation without training: each client sends its augmented set (the standardised means
by week and phase of the values it learns to forecast) and its location, if known. The server cuts
windows from the sets and trains the warm-up model w_Q on them, from which all models start. It also
groups the clients: k-means on the locations if all are known, then k-means on the sets, started at
the mean sets of the first grouping.

From round 2 on, a share of the clients trains the global model w as in FedAvg, and the server
updates models by attention, each layer l separately:

    A(w, {w_k}) = w - epsilon (sum_k a_k (w - w_k) + rho b (w - w_Q))
    a_k(l) = softmax over k of ||w(l) - w_k(l)||,   b(l) = softmax over l of ||w(l) - w_Q(l)||

first inside each cluster c, w_c <- A(w_c, {w_n : n in c}), then across, w <- A(w, {w_c}) over the
clusters that took part. Clients that were absent in round 1 have no set and form a separate
cluster. Differences from the published code: the model is the common one, not an LSTM; a batch is
one period of 24, not 20 samples; the warm-up goes through the windows in order instead of drawing
them; weeks are counted from the first training sample, not by the calendar, and the days before it,
which only feed the windows, are in no mean; k-means starts at clients far from each other, not at
zeros; and the models w_c are kept between rounds, whereas that code resets them to w_Q.

Travels up: once 144 + 3 numbers for 37 training periods of 24 (the set; longitude, latitude, and
whether they are known), computed from raw data; later the whole model. Travels down: the whole
model, from round 2 on. Stays: nothing. Evaluated: the global model. By default the optimiser is SGD
0.01 with momentum 0.9 and the share of clients is 10 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fuels.arrays import Floats, Floats32, Integers
from fuels.data.calendar import Calendar
from fuels.errors import FuelsError
from fuels.methods.base import MODEL, GlobalModel, Options, Sent, at_least, positive
from fuels.methods.fedavg import FedAvg
from fuels.methods.messages import Arrays, Download, Upload
from fuels.paper.losses import prediction_loss
from fuels.training.groups import Group, Optimiser, gradients, leaves

DEGREES = 360.0  # bound of longitude and latitude
UNKNOWN = -1  # label of a client without an augmented set: the last cluster


@dataclass(frozen=True)
class FedDAOptions(Options):
    """Defaults are from the published code and scripts of Zhang et al. (clusters and warm_rate from
    the scripts, which try rho from -0.3 to 0.3; 0.2 is the default of the code); the FUELS paper
    says that it uses FedDA's settings."""

    clusters: int = 16
    rho: float = 0.2  # weight of the warm-up model
    epsilon: float = 1.0  # step of the server
    week: int = 7  # training periods averaged into one period of the augmented set
    warm_epochs: int = 150
    warm_rate: float = 0.1  # divided by 10 after half of the epochs, by 100 in the last quarter
    warm_batch: int = 64


class FedDA(FedAvg):
    name = "fedda"
    title = "FedDA"
    sends = (
        "once, a mean profile of its values by week and, if known, its location; then the weights"
        " of its model"
    )
    receives = "a model that the server makes of all models"
    Options = FedDAOptions
    options: FedDAOptions
    only_mean = False
    own_optimiser = Optimiser("sgd", 0.01, 0.9)
    own_selection = 0.1
    remark = (
        "FedDA trains nothing in round 1: each client sends the means of its values by week and"
        " phase, which are computed from raw data, and its location if it is known."
    )

    def check(self) -> None:
        at_least(1, self.options, "clusters", "week", "warm_epochs", "warm_batch")
        positive(self.options, "epsilon", "warm_rate")
        if self.weeks <= self.reach:
            raise FuelsError(
                f"fedda: {self.facts.train_periods} training periods make an augmented set of"
                f" {self.weeks}, too short for windows that look back {self.reach}; use a smaller"
                f" options.week (now {self.options.week}), or omit fedda"
            )

    @property
    def weeks(self) -> int:
        return -(-self.facts.train_periods // self.options.week)

    @property
    def lags(self) -> Integers:
        return np.array(self.facts.sample.lags, dtype=np.int64)

    @property
    def reach(self) -> int:
        """Periods that only feed the windows."""
        return self.facts.sample.reach_periods

    # -- what travels --------------------------------------------------------------------------

    def uploads(self, round_number: int) -> dict[str, Sent]:
        if round_number > 1:
            return super().uploads(round_number)
        size = self.weeks * self.facts.period
        # A standardised row has a mean square of 1, so no entry exceeds the root of its length.
        # Larger entries could make the warm-up, and with it the whole run, diverge.
        sets = Sent((size,), bound=size**0.5, raw=True, rms=1.0)
        return {"augmented": sets, "place": Sent((3,), bound=DEGREES, raw=True)}

    def counts(self, round_number: int) -> bool:
        return False  # attention weights the clients, not their sample counts

    # -- client --------------------------------------------------------------------------------

    def local(self, group: Group, download: Download) -> Arrays:
        if group.round > 1:
            return super().local(group, download)
        return {"augmented": self.augmented_set(group), "place": places(group)}

    def augmented_set(self, group: Group) -> Floats32:
        """Means by week and phase of what was observed, standardised, [client, week x phase]."""
        shape = (len(group.ids), self.weeks, self.facts.period)
        total, count = np.zeros(shape), np.zeros(shape)
        for batch in group.batches(1):
            week = batch.index // self.options.week
            observed = batch.weight[..., 0].cpu().numpy() > 0
            total[:, week] += np.where(observed, batch.y[..., 0].cpu().numpy(), 0.0)
            count[:, week] += observed
        means = np.where(count > 0, total / np.maximum(count, 1), 0.0).reshape(len(group.ids), -1)
        centred = means - means.mean(axis=1, keepdims=True)
        spread = centred.std(axis=1, keepdims=True)
        standard: Floats32 = (centred / np.where(spread > 0, spread, 1.0)).astype(np.float32)
        return standard

    # -- server --------------------------------------------------------------------------------

    def server(self, clients: Sequence[str]) -> Clusters:
        return Clusters(super().server(clients).parts, clients)

    def aggregate(self, server: Any, upload: Upload) -> None:
        if "augmented" in upload.arrays:
            self.prepare(server, upload)
        else:
            self.attend(server, upload)

    def download(self, server: Any, clients: Sequence[str]) -> Download:
        return super().download(server, clients) if server.ready else Download()

    def prepare(self, server: Clusters, upload: Upload) -> None:
        """Clusters and warm-up model from the augmented sets of round 1."""
        sets, place = upload.arrays["augmented"], upload.arrays["place"].astype(np.float64)
        patterns, count = sets.astype(np.float64), min(self.options.clusters, len(sets))
        start = spread_out(patterns, count)
        if (place[:, 2] == 1).all():
            near = k_means(place[:, :2], spread_out(place[:, :2], count))
            start = np.stack([patterns[near == label].mean(axis=0) for label in np.unique(near)])
        server.labels[server.rows(upload.clients)] = k_means(patterns, start)
        server.parts = self.warm_up(sets, server.parts)
        server.warm = joined(server.parts)
        server.models = np.tile(server.warm, (count + 1, 1))

    def warm_up(self, sets: Floats32, start: Arrays) -> Arrays:
        """A model trained on the windows of the augmented sets, client after client."""
        options, network = self.options, self.facts.network
        steps = np.arange(self.reach * self.facts.period, sets.shape[1])
        x = torch.from_numpy(sets[:, steps[:, None] - self.lags].reshape(1, -1, len(self.lags)))
        y = torch.from_numpy(sets[:, steps].reshape(1, -1))
        clock = self.clock(steps).repeat(len(sets), 1, 1)
        parts = {name: torch.from_numpy(start[name])[None].clone() for name in MODEL}
        slots = {name: self.own_optimiser.fresh(part) for name, part in parts.items()}
        on = torch.ones(1, dtype=torch.bool)
        for epoch in range(options.warm_epochs):
            decades = (2 * epoch >= options.warm_epochs) + (4 * epoch >= 3 * options.warm_epochs)
            rate = options.warm_rate * 0.1**decades
            optimiser = Optimiser("sgd", rate, self.own_optimiser.momentum)
            for first in range(0, y.shape[1], options.warm_batch):
                rows = slice(first, first + options.warm_batch)
                moving = leaves(parts, MODEL)
                weight = torch.full_like(y[:, rows], 1 / y[:, rows].shape[1])
                predicted = network.predict(moving, x[:, rows], clock[rows])
                loss = prediction_loss(y[:, rows], predicted, weight)
                for name, gradient in gradients(loss, MODEL, moving).items():
                    optimiser.step(parts[name], gradient, slots[name], on)
        if not all(bool(part.isfinite().all()) for part in parts.values()):
            raise FuelsError(
                "round 1: the warm-up model of fedda diverged; use a smaller options.warm_rate"
            )
        return {name: part[0].numpy() for name, part in parts.items()}

    def clock(self, steps: Integers) -> Tensor:
        """Calendar features of steps of an augmented set: its days are means of many days, so only
        the time of the period is known."""
        sample = self.facts.sample
        count = len(steps) + sample.horizon - 1
        nowhere = np.full(count, np.datetime64("1970-01-01", "s"))  # a working day
        return torch.from_numpy(sample.clock(Calendar(), nowhere, int(steps[0])))

    def attend(self, server: Clusters, upload: Upload) -> None:
        """Attention inside the clusters of this round's clients, then across these clusters."""
        models = np.concatenate([upload.arrays[n] for n in MODEL], axis=1).astype(np.float64)
        labels = server.labels[server.rows(upload.clients)]
        taking_part = np.unique(labels)
        for label in taking_part:
            inside = models[labels == label]
            server.models[label] = self.attention(server.models[label], inside, server.warm)
        new = self.attention(joined(server.parts), server.models[taking_part], server.warm)
        sizes = [self.facts.network.sizes[n] for n in MODEL]
        pieces = np.split(new.astype(np.float32), np.cumsum(sizes)[:-1])
        server.parts = dict(zip(MODEL, pieces, strict=True))

    def attention(self, w: Floats, models: Floats, warm: Floats) -> Floats:
        """A(w, models) of the docstring; w and warm [size], models [model, size]."""
        layers, moved = self.layers(), w.copy()
        to_warm = softmax(np.array([np.linalg.norm(w[layer] - warm[layer]) for layer in layers]))
        for layer, b in zip(layers, to_warm, strict=True):
            apart = w[layer] - models[:, layer]
            pull = softmax(np.linalg.norm(apart, axis=1)) @ apart
            pull += self.options.rho * b * (w[layer] - warm[layer])
            moved[layer] -= self.options.epsilon * pull
        return moved

    def layers(self) -> list[Integers]:
        """For each tensor of the model, the positions of its numbers in the joined parts."""
        numbers, first = {}, 0
        for name in MODEL:
            size = self.facts.network.sizes[name]
            numbers[name] = torch.arange(first, first + size).unsqueeze(0)
            first += size
        tensors = self.facts.network.tensors(numbers, 0).values()
        return [tensor.flatten().numpy() for tensor in tensors]


class Clusters(GlobalModel):
    """The global model, the warm-up model, one model per cluster, and each client's cluster."""

    def __init__(self, parts: Arrays, clients: Sequence[str]) -> None:
        super().__init__(parts)
        self.position = {client: i for i, client in enumerate(clients)}
        self.labels = np.full(len(clients), UNKNOWN, dtype=np.int64)
        self.warm: Floats = np.zeros(0)  # [size], empty until the end of round 1
        self.models: Floats = np.zeros((0, 0))  # [cluster, size], the last for UNKNOWN

    @property
    def ready(self) -> bool:
        return self.warm.size > 0

    def rows(self, clients: Sequence[str]) -> list[int]:
        return [self.position[client] for client in clients]

    def state(self) -> dict[str, NDArray[Any]]:
        own = {"warm": self.warm, "models": self.models, "labels": self.labels}
        return super().state() | own

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        super().load({name: state[name] for name in MODEL})
        self.warm, self.models = np.array(state["warm"]), np.array(state["models"])
        self.labels[: len(state["labels"])] = state["labels"]  # clients may have joined since


def places(group: Group) -> Floats32:
    """Longitude, latitude and 1 for each client, or zeros if they are unknown, [client, 3]."""
    found = np.zeros((len(group.ids), 3), dtype=np.float32)
    if group.data.coordinates is not None:
        known = np.isfinite(group.data.coordinates).all(axis=1)
        found[known, :2], found[known, 2] = group.data.coordinates[known], 1.0
    return found


def spread_out(points: Floats, count: int) -> Floats:
    """`count` of the points [point, width], far from each other, from which k-means starts.

    The first is the point nearest to the mean; each further one is farthest from those before it.
    """
    distance = ((points - points.mean(axis=0)) ** 2).sum(axis=1)
    chosen = [int(distance.argmin())]
    nearest = np.full(len(points), np.inf)
    while len(chosen) < count:
        nearest = np.minimum(nearest, ((points - points[chosen[-1]]) ** 2).sum(axis=1))
        chosen.append(int(nearest.argmax()))
    return points[chosen]


def k_means(points: Floats, centres: Floats) -> Integers:
    """Lloyd's k-means from the given centres until nothing changes; the label of every point."""
    labels = np.full(len(points), -1, dtype=np.int64)
    while True:
        distance = ((points[:, None] - centres[None]) ** 2).sum(axis=2)
        new = distance.argmin(axis=1)
        if (new == labels).all():
            return labels
        labels = new
        # A centre without points does not move.
        for label in np.unique(labels):
            centres[label] = points[labels == label].mean(axis=0)


def softmax(values: Floats) -> Floats:
    weights = np.exp(values - values.max())
    shares: Floats = weights / weights.sum()
    return shares


def joined(parts: Arrays) -> Floats:
    """All numbers of a model in one row, in double precision."""
    return np.concatenate([parts[name] for name in MODEL]).astype(np.float64)
