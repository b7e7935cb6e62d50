"""What the two bounds of the analysis say (Section 4), with constants estimated in a run.

The constants come from `constants.py`, the bounds from `research/bounds.py`. Every estimate is the
largest value observed, so the true bounds are no better than those shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fuels.report import style
from fuels.report.tables import Cell, Table, columns
from fuels.research.bounds import (
    Constants,
    best_rate,
    generalisation,
    generalisation_by_client,
    largest_rate,
    rounds,
)
from fuels.research.experiments.base import Budget, Context, Experiment, Result, source_name
from fuels.research.experiments.constants import Probe, estimate
from fuels.research.experiments.inside import follow


def check(context: Context) -> None:
    context.dataset(context.settings("fuels"))


def run(context: Context) -> Result:
    chance = "a probability between 0 and 1"
    [kappa] = context.numbers("kappa", chance, lambda p: 0 < p < 1, most=1)
    dimensions = context.numbers("vc", "dimensions of at least 1", lambda d: 1 <= d < math.inf)
    job, probe = follow(context, "theory", context.settings("fuels"), Probe)
    constants, largest_loss = estimate(probe)
    seen = float(np.mean([found.squared.mean() for found in probe.looks.values()]))
    samples = [int(n) for n in job.dataset.target[:, : job.dataset.split.train].sum(axis=1)]
    data = source_name(context.sources[0])
    rate = job.settings.training.learning_rate
    tables = {
        "theory-constants": constants_table(constants, largest_loss, samples, data),
        "theory-convergence": convergence_table(constants, seen, rate),
        "theory-generalisation": generalisation_table(dimensions, samples, largest_loss, kappa),
    }
    text = sentences(probe, constants, seen, sum(samples), largest_loss, kappa)
    return Result(tables, {"theory": draw(probe, constants)}, text)


def constants_table(
    constants: Constants, largest_loss: float, samples: Sequence[int], data: str
) -> Table:
    rows: list[list[Cell]] = [
        ["Λ", "loss after round 1 less the lowest seen, of the worst client", constants.gap],
        ["G", "length of a gradient, mean over the batches", constants.gradient],
        ["L_1", "half of ||∇L(w) - ∇L(v)|| / ||w - v||", constants.smoothness],
        ["L_h", "||∂L_inter(n) / ∂δ_m|| for one batch of any client m", constants.coupling],
        ["C", "loss of one batch", largest_loss],
        ["ρ", "weight of L_inter, given", constants.rho],
        ["N", "clients, given", constants.clients],
        ["α", "share of clients in a round, given", constants.selection],
        ["I", "local steps in a round, given", constants.iterations],
        ["D", "training samples of all clients, given", sum(samples)],
        ["ρ L_h N α I G", "what ξ has to exceed", constants.floor],
    ]
    title = f"Constants of the bounds, estimated in a run on {data}"
    return Table(columns("constant | what it is | largest seen"), rows, title)


def convergence_table(constants: Constants, seen: float, eta: float) -> Table:
    """Eq. 17 and 19 for several xi, from what the run reaches to far above the floor."""
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
    headings = "ξ | value | η has to stay below (Eq. 19) | T at half of it (Eq. 17)"
    bound = "Convergence bound: learning rate and rounds for a wanted ξ"
    title = f"{bound}; – where nothing is promised"
    return Table(columns(f"{headings} | T at η = {eta:g} (Eq. 17)"), rows, title)


def generalisation_table(
    dimensions: Sequence[float], samples: Sequence[int], largest_loss: float, kappa: float
) -> Table:
    rows: list[list[Cell]] = []
    total = sum(samples)
    for d in dimensions:
        printed = generalisation(d, total, largest_loss, kappa) if d <= total else None
        fits = d <= min(samples)
        client = generalisation_by_client(d, samples, largest_loss, kappa) if fits else None
        terms = [[p.complexity, p.chance, p.total] if p else [None] * 3 for p in (printed, client)]
        rows.append([d, *terms[0], *terms[1], largest_loss])
    headings = "VC dimension d"
    for proof in ("Theorem 4.2", "by client"):
        headings += f" | class term ({proof}) | chance term ({proof}) | bound ({proof})"
    title = f"Generalisation bound with probability {1 - kappa:g}; – where d exceeds the samples"
    return Table(columns(f"{headings} | C, above which it says nothing"), rows, title)


def sentences(
    probe: Probe, constants: Constants, seen: float, total: int, largest_loss: float, kappa: float
) -> list[str]:
    """What the bounds say about the run."""
    job, floor = probe.job, constants.floor
    chance = largest_loss * total * math.sqrt(math.log(1 / kappa) / 2)
    applies = "this is above the floor, so the bound applies to it"
    if floor >= seen:
        times = style.number(floor / seen, 2)
        applies = (
            f"the smallest value that can be promised is {times} times as large, so the bound says"
            " nothing about the run"
        )
    share, jumps = 100 * float(np.mean(probe.changed or [0])), ""
    if probe.changed:
        jumps = f" From one round to the next {share:.1f} % of the pairs changed sides."
    return [
        f"Observed: {len(probe.index)} clients after {len(probe.looks)} rounds. Every estimate is"
        " the largest value observed, so the true constant is at least as large.",
        f"The convergence bound promises a mean squared gradient below ξ only for ξ above"
        f" ρ L_h N α I G = {style.number(floor)}. The run itself has {style.number(seen)}:"
        f" {applies}.",
        "The floor assumes that every client of a round pushes with its largest gradient, in every"
        " local step and all in the same direction. L_h is largest where a set of similar or"
        " dissimilar clients is small, because a prototype then has more weight in the mean.",
        "The proof assumes plain gradient descent on the whole loss; training uses"
        f" {job.settings.training.optimiser} on one batch at a time, which the theorem does not"
        " cover.",
        "Two assumptions do not hold exactly: ReLU(W) has a kink at 0, so L is not smooth there,"
        f" and h jumps where a client changes from similar to dissimilar.{jumps}",
        f"The generalisation bound as printed has a chance term C D sqrt(log(1/κ)/2) ="
        f" {style.number(chance)} that grows with the data, although no loss exceeds C ="
        f" {style.number(largest_loss)}: it says nothing for any D above"
        f" {style.number(math.sqrt(2 / math.log(1 / kappa)), 2)} samples. The columns by client"
        " follow the same proof with c_n = C |D_n| / D and without step (c), which does not"
        " follow from Jensen's inequality and is too small by about sqrt(N).",
    ]


def draw(probe: Probe, constants: Constants) -> style.Figure:
    """The gradient over the rounds, and the floor below which nothing is promised."""
    labels = ["mean squared gradient, mean of the clients", "largest client", "ρ L_h N α I G"]
    picture, [[axis]] = style.figure(
        labels,
        title="Gradients in training and what the convergence bound can promise",
        subtitle="Squared length of a client's whole gradient. The theorem promises only values"
        " above the dashed line.",
        footer=style.origin(probe.job.dataset),
        height=3.4,
    )
    x = list(probe.looks)
    squared = np.stack([found.squared for found in probe.looks.values()])
    axis.plot(x, squared.mean(axis=1), "o-", color=style.METHOD, linewidth=2, label=labels[0])
    axis.plot(x, squared.max(axis=1), color="#8cb8d8", linewidth=1.4, label=labels[1])
    axis.axhline(
        constants.floor, color=style.RIVAL, linewidth=1.8, linestyle=(0, (5, 2)), label=labels[2]
    )
    axis.set_yscale("log")
    style.whole_numbers(axis, "x")
    axis.set_xlabel("round")
    axis.set_ylabel("squared gradient (log scale)")
    style.legend(picture, axis)
    return picture


EXPERIMENT = Experiment(
    name="theory",
    title="What the two bounds of the analysis say about a run",
    run=run,
    quick=Budget(clients=24, rounds=30),
    options={"vc": "1,10,100,1000,100865", "kappa": "0.05"},
    one_source=True,
    one_seed=True,
    check=check,
)
