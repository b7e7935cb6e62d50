"""The constants of the convergence bound, estimated while FUELS trains.

After some rounds, some clients are observed with fixed parameters: loss, gradient, how fast the
gradient changes, and how strongly L_inter depends on the encoders of other clients. Every estimate
is the largest value observed, so the true constant is at least as large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fuels.arrays import Flags, Floats, Integers
from fuels.errors import FuelsError
from fuels.federation.loop import Round
from fuels.methods.messages import Download
from fuels.model.network import Parts
from fuels.model.optimiser import Update
from fuels.paper.losses import inter_loss, unit
from fuels.research.bounds import Constants
from fuels.runs.build import Job
from fuels.storage.checkpoint import unprefixed
from fuels.training.groups import Group, GroupData

LOOKED_AT = 8  # clients
LOOKS = 8  # rounds
TURNS = 3  # steps towards the direction in which the gradient changes fastest
SHORT = 1e-3  # length of such a step, as a share of the length of w


class Frozen(Group):
    """Clients that go through a round with fixed parameters; losses and gradients are recorded."""

    def __init__(self, job: Job, data: GroupData, index: Sequence[int], parts: Parts, number: int):
        facts = job.method.facts
        super().__init__(
            ids=[job.dataset.ids[i] for i in index],
            data=data,
            network=facts.network,
            parts=parts,
            slots={},
            optimiser=facts.optimiser,
            seed=facts.seed,
            round_number=number,
            shift=job.method.shift,
        )
        self.sums = {name: torch.zeros_like(part) for name, part in parts.items()}
        self.norms: list[tuple[Tensor, Tensor]] = []  # squared, of each batch, and who was active

    def updates(self, names: Sequence[str], active: Tensor) -> dict[str, list[Update]]:
        squares = torch.zeros(len(self.ids), device=self.device)
        self.norms.append((squares, active))

        def keep(name: str) -> Update:
            def add(param: Tensor, gradient: Tensor) -> None:
                self.sums[name] += gradient * active.unsqueeze(1)
                squares.add_(gradient.square().sum(1))

            return Update(add, self.parts[name])

        return {name: [keep(name)] for name in names}


@dataclass(frozen=True)
class Look:
    """What was observed of some clients at one point, [client] each."""

    loss: Floats  # mean over the batches
    largest: Floats  # of one batch
    norm: Floats  # mean over the batches of the gradient's length
    squared: Floats  # squared length of the mean gradient
    gradient: Tensor  # the mean gradient, all parts side by side, [client, size]

    @property
    def numbers(self) -> Floats:
        """Everything but the gradient, which the next look does not need, [4, client]."""
        return np.stack([self.loss, self.largest, self.norm, self.squared])


def look(job: Job, data: GroupData, index: Sequence[int], parts: Parts, download: Download) -> Look:
    """Loss and gradient of the round that `download` starts, at fixed parameters."""
    group = Frozen(job, data, index, parts, job.loop.round + 1)
    job.method.local(group, download)
    active = torch.stack([on for _, on in group.norms], dim=1)  # [client, batch]
    count = active.sum(1).clamp(min=1)
    total = torch.zeros(active.shape)
    for name, values in group.losses.items():
        weight = job.method.options.rho if name == "inter" else 1.0
        total += weight * torch.stack([value.cpu() for value, _ in values], dim=1)
    norms = torch.stack([squares.sqrt() for squares, _ in group.norms], dim=1)
    gradient = torch.cat([group.sums[name] for name in parts], dim=1) / count.unsqueeze(1)
    return Look(
        loss=((total * active.cpu()).sum(1) / count.cpu()).double().numpy(),
        largest=(total * active.cpu()).amax(1).double().numpy(),
        norm=((norms * active).sum(1) / count).double().cpu().numpy(),
        squared=gradient.double().square().sum(1).cpu().numpy(),
        gradient=gradient,
    )


@dataclass
class Probe:
    """Observes a few clients after a few rounds of a run."""

    job: Job
    looks: dict[int, Look] = field(default_factory=dict)  # round: what was seen
    steepest: float = 0.0  # largest ||grad(w) - grad(v)|| / ||w - v||
    coupling: float = 0.0  # largest ||d L_inter(n) / d delta_m^i||
    changed: list[float] = field(default_factory=list)  # share of pairs that changed sides

    def __post_init__(self) -> None:
        last = self.job.settings.training.rounds
        if last < 2:
            raise FuelsError("experiment theory needs at least 2 rounds: L_inter begins in round 2")
        count = len(self.job.dataset.ids)
        if count < 3:
            raise FuelsError(f"experiment theory needs at least 3 clients, there are {count}")
        chosen = np.linspace(0, count - 1, min(LOOKED_AT, count)).round().astype(np.int64)
        self.index = np.unique(chosen)
        self.data = GroupData(self.job.dataset, self.index, self.job.site.device)
        self.when = set(np.linspace(1, last, min(LOOKS, last)).round().astype(int).tolist())
        self.before: Parts = {}
        self.alike: Flags | None = None

    def on_round(self, done: Round) -> None:
        table, beta = self.job.loop.server, self.job.method.options.beta
        alike = table.alike(beta)
        if self.alike is not None:
            upper = np.triu_indices(len(alike), k=1)
            self.changed.append(float((alike != self.alike)[upper].mean()))
        self.alike = alike
        if done.number in self.when:
            self.see(done.number)

    def arrays(self) -> dict[str, NDArray[Any]]:
        found = {f"look/{number}": look.numbers for number, look in self.looks.items()}
        found |= {f"before/{name}": part.cpu().numpy() for name, part in self.before.items()}
        found["largest"] = np.array([self.steepest, self.coupling])
        found["changed"] = np.array(self.changed, dtype=np.float64)
        return found if self.alike is None else found | {"alike": self.alike}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        looks = unprefixed("look", arrays)
        self.looks = {}
        for number in sorted(looks, key=int):
            loss, largest, norm, squared = looks[number]
            self.looks[int(number)] = Look(loss, largest, norm, squared, torch.empty(0))
        before = unprefixed("before", arrays)
        self.before = {  # in the order of the parts, which lie side by side
            name: torch.from_numpy(before[name]).to(part)
            for name, part in self.job.site.parts.items()
            if name in before
        }
        self.steepest, self.coupling = arrays["largest"].tolist()
        self.changed, self.alike = arrays["changed"].tolist(), arrays.get("alike")

    def see(self, number: int) -> None:
        rows = torch.from_numpy(self.index)
        ids = [self.job.dataset.ids[i] for i in self.index]
        here = {name: part[rows].clone() for name, part in self.job.site.parts.items()}
        download = self.job.method.download(self.job.loop.server, ids)
        seen = self.looks[number] = self._look(here, download)
        if self.before:  # along the path: the same loss, at the point of the look before
            earlier = self._look(self.before, download)
            apart = lengths(flat(here) - flat(self.before))
            self._steep(lengths(seen.gradient - earlier.gradient), apart)
        direction = seen.gradient
        for _ in range(TURNS):  # from the gradient's own direction to where it changes fastest
            size = SHORT * lengths(flat(here))
            step = direction * (size / lengths(direction).clamp(min=1e-12)).unsqueeze(1)
            other = self._look(shifted(here, step), download)
            direction = other.gradient - seen.gradient
            self._steep(lengths(direction), size)
        self.before = here
        self.coupling = max(self.coupling, coupling(self.job, self.data, self.index, here))

    def _look(self, parts: Parts, download: Download) -> Look:
        return look(self.job, self.data, self.index.tolist(), parts, download)

    def _steep(self, change: Tensor, apart: Tensor) -> None:
        ratio = torch.where(apart > 0, change / apart.clamp(min=1e-12), 0.0)
        self.steepest = max(self.steepest, float(ratio.max()))


def flat(parts: Parts) -> Tensor:
    return torch.cat(list(parts.values()), dim=1)


def lengths(rows: Tensor) -> Tensor:
    """Euclidean length of each row, [client]."""
    return rows.double().square().sum(1).sqrt().to(rows.dtype)


def shifted(parts: Parts, step: Tensor) -> Parts:
    """The parts moved by `step`, all parts side by side [client, size]."""
    pieces = torch.split(step, [part.shape[1] for part in parts.values()], dim=1)
    return {name: parts[name] + piece for name, piece in zip(parts, pieces, strict=True)}


def coupling(job: Job, data: GroupData, index: Integers, parts: Parts) -> float:
    """Largest ||d L_inter(n) / d delta_m^i|| over the clients looked at: L_h at this point.

    In the proof, the prototype of m is the mean over the I batches of en(delta_m^i), each with
    its own parameters, and L_inter of n is a function h of all of them.
    """
    table, options, B = job.loop.server, job.method.options, job.dataset.period
    network, periods = job.method.facts.network, len(data.periods)
    with torch.no_grad():
        r = network.encode(parts, data.windows[:, : periods * B], data.clocks[0][: periods * B])
    everyone = torch.from_numpy(table.prototypes)
    known = torch.from_numpy(table.known)
    sides = torch.from_numpy(table.alike(options.beta)[index])  # [looked at, client]
    largest = 0.0
    for n in range(len(index)):
        if bool((sides[n] | ~known).all()):  # no dissimilar client: there is no L_inter
            continue
        R = everyone[torch.from_numpy(index)].clone().requires_grad_(True)
        full = everyone.clone().index_copy(0, torch.from_numpy(index), R)
        positive, negative = full[sides[n]].mean(0), full[~sides[n] & known].mean(0)
        rows = unit(r[n]).view(periods, B, -1)
        weight = data.row_weight[list(data.periods), n] / periods  # [period, B]
        near, far = (unit(each).expand(periods, -1, -1) for each in (positive, negative))
        value = inter_loss(rows, near, far, options.tau, weight).sum()
        (slope,) = torch.autograd.grad(value, R)  # d L_inter(n) / d R_m, [looked at, B, width]
        for i in (0, periods // 2, periods - 1):
            moving = parts["encoder"].detach().clone().requires_grad_(True)
            part = slice(i * B, (i + 1) * B)
            batch = network.encode({"encoder": moving}, data.windows[:, part], data.clocks[0][part])
            (found,) = torch.autograd.grad((batch * slope).sum() / periods, moving)
            largest = max(largest, float(lengths(found).max()))
    return largest


def estimate(probe: Probe) -> tuple[Constants, float]:
    """The constants of the convergence bound, and C, from the observations."""
    found, job = list(probe.looks.values()), probe.job
    losses = np.stack([one.loss for one in found])  # [look, client]
    constants = Constants(
        gap=max(0.0, float((losses[0] - losses.min(axis=0)).max())),
        gradient=max(float(one.norm.max()) for one in found),
        smoothness=probe.steepest / 2,
        coupling=probe.coupling,
        rho=job.method.options.rho,
        clients=len(job.dataset.ids),
        selection=job.settings.training.selection,
        iterations=len(probe.data.periods) * job.method.facts.local_epochs,
    )
    return constants, max(float(one.largest.max()) for one in found)
