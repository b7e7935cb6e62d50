"""How far the two bounds of the analysis hold (Section 4): their constants estimated in a run.

While FUELS trains, some clients are looked at after some rounds, with their parameters held still:
loss, gradient, how fast the gradient changes, and how strongly L_inter depends on the encoders of
others. Every estimate is the largest value seen, so the true constant is at least as large, and the
true bounds are no better than those shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fuels.bounds import (
    Constants,
    best_rate,
    generalisation,
    generalisation_by_client,
    largest_rate,
    rounds,
)
from fuels.build import Job
from fuels.errors import FuelsError
from fuels.experiments.base import Budget, Context, Experiment, Result, source_name
from fuels.experiments.data import origin
from fuels.experiments.filtering import follow
from fuels.federation.loop import Round
from fuels.losses import inter_loss, unit
from fuels.messages import Download
from fuels.model.network import Parts
from fuels.report.style import METHOD, RIVAL, figure, legend, number
from fuels.report.tables import Cell, Column, Table
from fuels.training import Group, GroupData

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

LOOKED_AT = 8  # clients
LOOKS = 8  # rounds
TURNS = 3  # steps towards the direction in which the gradient changes fastest
SHORT = 1e-3  # length of such a step, as a share of the length of w


class Frozen(Group):
    """Clients that go through a round without moving: their losses and gradients are kept."""

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
        self.norms: list[tuple[Tensor, Tensor]] = []  # of each batch, and who was active

    def step(self, gradient: Parts, active: Tensor) -> None:
        squares = torch.zeros(len(self.ids), device=self.device)
        for name, value in gradient.items():
            self.sums[name] += value * active.unsqueeze(1)
            squares += value.square().sum(1)
        self.norms.append((squares.sqrt(), active))


@dataclass(frozen=True)
class Look:
    """What was seen of some clients at one point, [client] each."""

    loss: Floats  # mean over the batches
    largest: Floats  # of one batch
    norm: Floats  # mean over the batches of the gradient's length
    squared: Floats  # squared length of the mean gradient
    gradient: Tensor  # the mean gradient, all parts side by side, [client, size]


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
    norms = torch.stack([norm for norm, _ in group.norms], dim=1)
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
    """Looks at a few clients after a few rounds of a run."""

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
        self.alike: NDArray[np.bool_] | None = None

    def on_round(self, done: Round) -> None:
        table, beta = self.job.loop.server, self.job.method.options.beta
        alike = table.alike(beta)
        if self.alike is not None:
            upper = np.triu_indices(len(alike), k=1)
            self.changed.append(float((alike != self.alike)[upper].mean()))
        self.alike = alike
        if done.number in self.when:
            self.see(done.number)

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


def coupling(job: Job, data: GroupData, index: NDArray[np.int64], parts: Parts) -> float:
    """Largest ||d L_inter(n) / d delta_m^i|| over the clients looked at: L_h at this point.

    In the proof, the prototype of m is the mean over the I batches of en(delta_m^i), each with
    parameters of its own, and L_inter of n is a function h of all of them.
    """
    table, options, B = job.loop.server, job.method.options, job.dataset.period
    network, periods = job.method.facts.network, len(data.periods)
    with torch.no_grad():
        r = network.encode(parts, data.windows[:, : periods * B])
    everyone = torch.from_numpy(table.prototypes)
    known = torch.from_numpy(table.known)
    sides = torch.from_numpy(table.alike(options.beta)[index])  # [looked at, client]
    largest = 0.0
    for n in range(len(index)):
        if bool((sides[n] | ~known).all()):  # nobody is unlike this client: it has no L_inter
            continue
        R = everyone[torch.from_numpy(index)].clone().requires_grad_(True)
        full = everyone.clone().index_copy(0, torch.from_numpy(index), R)
        positive, negative = full[sides[n]].mean(0), full[~sides[n] & known].mean(0)
        rows = unit(r[n]).view(periods, B, -1)
        weight = data.row_weight[list(data.periods), n] / periods  # [period, B]
        value = inter_loss(
            rows,
            unit(positive).expand(periods, -1, -1),
            unit(negative).expand(periods, -1, -1),
            options.tau,
            weight,
        ).sum()
        (slope,) = torch.autograd.grad(value, R)  # d L_inter(n) / d R_m, [looked at, B, width]
        for i in (0, periods // 2, periods - 1):
            moving = parts["encoder"].detach().clone().requires_grad_(True)
            batch = network.encode({"encoder": moving}, data.windows[:, i * B : (i + 1) * B])
            (found,) = torch.autograd.grad((batch * slope).sum() / periods, moving)
            largest = max(largest, float(lengths(found).max()))
    return largest


# -- the experiment ----------------------------------------------------------------------------


def run(context: Context) -> Result:
    probes: list[Probe] = []

    def watch(job: Job) -> Probe:
        probes.append(Probe(job))
        return probes[0]

    job = follow(context, context.settings("fuels"), watch)
    [probe] = probes
    constants, largest_loss = estimate(probe)
    seen = float(np.mean([found.squared.mean() for found in probe.looks.values()]))
    samples = [int(n) for n in job.dataset.target[:, : job.dataset.split.train].sum(axis=1)]
    kappa = _float(context.options["kappa"], "kappa")
    dimensions = [_float(d, "vc") for d in context.options["vc"].split(",")]
    data = source_name(context.sources[0])
    return Result(
        {
            "theory-constants": constants_table(constants, largest_loss, samples, data),
            "theory-convergence": convergence_table(
                constants, seen, job.settings.training.learning_rate
            ),
            "theory-generalisation": generalisation_table(dimensions, samples, largest_loss, kappa),
        },
        {"theory": draw(probe, constants)},
        sentences(probe, constants, seen, sum(samples), largest_loss, kappa),
    )


def estimate(probe: Probe) -> tuple[Constants, float]:
    """The constants of the convergence bound, and C, from what was seen."""
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


def _float(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise FuelsError(f"experiment theory: {name} takes numbers, not {text!r}") from None


def constants_table(
    constants: Constants, largest_loss: float, samples: Sequence[int], data: str
) -> Table:
    rows: list[list[Cell]] = [
        ["Λ", "loss after round 1 less the lowest seen, of the worst client", constants.gap],
        ["G", "length of a gradient, mean over the batches", constants.gradient],
        ["L_1", "half of ||∇L(w) - ∇L(v)|| / ||w - v||", constants.smoothness],
        ["L_h", "||∂L_inter(n) / ∂δ_m|| for one batch of another client", constants.coupling],
        ["C", "loss of one batch", largest_loss],
        ["ρ", "weight of L_inter, given", constants.rho],
        ["N", "clients, given", constants.clients],
        ["α", "share of clients in a round, given", constants.selection],
        ["I", "local steps in a round, given", constants.iterations],
        ["D", "training samples of all clients, given", sum(samples)],
        ["ρ L_h N α I G", "what ξ has to exceed", constants.floor],
    ]
    return Table(
        columns=[Column("constant"), Column("what it is"), Column("largest seen")],
        rows=rows,
        title=f"Constants of the bounds, estimated in a run on {data}",
    )


def convergence_table(constants: Constants, seen: float, eta: float) -> Table:
    """Eq. 17 and 19 for several xi, from what the run really reaches to far above the floor."""
    wanted = {
        "mean squared gradient of this run": seen,
        "1.1 times the least admissible": 1.1 * constants.floor,
        "2 times": 2 * constants.floor,
        "10 times": 10 * constants.floor,
    }
    rows: list[list[Cell]] = []
    for name, xi in wanted.items():
        if xi <= constants.floor:
            rows.append([name, xi, None, None, None])
            continue
        limit = largest_rate(constants, xi)
        at_eta = rounds(constants, xi, eta) if eta < limit else None
        fewest = rounds(constants, xi, best_rate(constants, xi))
        rows.append([name, xi, limit, fewest, at_eta])
    return Table(
        columns=[
            Column("ξ"),
            Column("value"),
            Column("η has to stay below", "Eq. 19"),
            Column("T at half of it", "Eq. 17"),
            Column(f"T at η = {eta:g}", "Eq. 17"),
        ],
        rows=rows,
        title="Convergence bound: learning rate and rounds for a wanted ξ; – where nothing is"
        " promised",
    )


def generalisation_table(
    dimensions: Sequence[float], samples: Sequence[int], largest_loss: float, kappa: float
) -> Table:
    rows: list[list[Cell]] = []
    total = sum(samples)
    for d in dimensions:
        printed = generalisation(d, total, largest_loss, kappa) if d <= total else None
        fits = d <= min(samples)
        client = generalisation_by_client(d, samples, largest_loss, kappa) if fits else None
        rows.append(
            [
                d,
                None if printed is None else printed.complexity,
                None if printed is None else printed.chance,
                None if printed is None else printed.total,
                None if client is None else client.complexity,
                None if client is None else client.chance,
                None if client is None else client.total,
                largest_loss,
            ]
        )
    return Table(
        columns=[
            Column("VC dimension d"),
            Column("class term", "Theorem 4.2"),
            Column("chance term", "Theorem 4.2"),
            Column("bound", "Theorem 4.2"),
            Column("class term", "by client"),
            Column("chance term", "by client"),
            Column("bound", "by client"),
            Column("C, above which it says nothing"),
        ],
        rows=rows,
        title=f"Generalisation bound with probability {1 - kappa:g}; – where d exceeds the samples",
    )


def sentences(
    probe: Probe,
    constants: Constants,
    seen: float,
    total: int,
    largest_loss: float,
    kappa: float,
) -> list[str]:
    """How far the bounds hold, in words and with the numbers of the run."""
    job, floor = probe.job, constants.floor
    chance = largest_loss * total * math.sqrt(math.log(1 / kappa) / 2)
    text = [
        f"Looked at: {len(probe.index)} clients after {len(probe.looks)} rounds. Every estimate is"
        " the largest value seen, so the true constant is at least as large.",
        f"The convergence bound promises a mean squared gradient below ξ only for ξ above"
        f" ρ L_h N α I G = {number(floor)}. The run itself has {number(seen)}:"
        + (
            f" {number(floor / seen, 2)} times less than the least that can be promised, so the"
            " bound says nothing about it."
            if floor >= seen
            else " that is above the floor, so the bound does say something about it."
        ),
        "The floor grows with N α and I: the more clients take part and the longer they train, the"
        " less is promised. It comes from adding up the largest possible influence of every client.",
        f"The proof takes steps of plain gradient descent on the whole loss; training uses"
        f" {job.settings.training.optimiser} on one batch after another, and the theorem does not"
        " cover that.",
        "Two assumptions fail in the letter: ReLU(W) has a kink at 0, so L is not smooth there, and"
        " h jumps where a client changes from alike to unlike."
        + (
            f" From one round to the next {100 * float(np.mean(probe.changed)):.1f} % of the pairs"
            " changed sides."
            if probe.changed
            else ""
        ),
        f"The generalisation bound as printed has a chance term C D sqrt(log(1/κ)/2) ="
        f" {number(chance)} that grows with the data, while no loss exceeds C ="
        f" {number(largest_loss)}: it says nothing for any D above 1 or 2. The column by client"
        " keeps the proof but takes c_n = C |D_n| / D and leaves out step (c), which does not"
        " follow from Jensen's inequality and is too small by about sqrt(N).",
    ]
    return text


def draw(probe: Probe, constants: Constants) -> Figure:
    """The gradient over the rounds, and the floor below which nothing is promised."""
    labels = ["mean squared gradient, mean of the clients", "largest client", "ρ L_h N α I G"]
    picture, [[axis]] = figure(
        1,
        1,
        labels,
        title="How far training is from what the convergence bound can promise",
        subtitle="Squared length of a client's whole gradient. The theorem promises only values"
        " above the dashed line.",
        footer=origin(probe.job.dataset),
        height=3.4,
    )
    x = list(probe.looks)
    squared = np.stack([found.squared for found in probe.looks.values()])
    axis.plot(x, squared.mean(axis=1), "o-", color=METHOD, linewidth=2, label=labels[0])
    axis.plot(x, squared.max(axis=1), color="#8cb8d8", linewidth=1.4, label=labels[1])
    axis.axhline(
        constants.floor, color=RIVAL, linewidth=1.8, linestyle=(0, (5, 2)), label=labels[2]
    )
    axis.set_yscale("log")
    axis.set_xlabel("round")
    axis.set_ylabel("squared gradient (log scale)")
    legend(picture, axis)
    return picture


EXPERIMENT = Experiment(
    name="theory",
    title="How far the two bounds of the analysis hold",
    run=run,
    quick=Budget(clients=24, rounds=30),
    paper=Budget(clients=100, rounds=80),
    options={"vc": "1,10,100,1000,100865", "kappa": "0.05"},
)
