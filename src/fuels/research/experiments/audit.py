"""What uploads reveal of the clients' days, with and without protection, and what that costs.

Each row is one audit (research/audit): a training that attackers observe, and a second one without
some of the days. Errors are those of the personal models of the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuels.config import PRESETS, Privacy, Settings
from fuels.data.windows import Dataset
from fuels.evaluation.scores import score
from fuels.report import style
from fuels.report.tables import Cell, Table, columns
from fuels.research.audit import noised_sums, sums
from fuels.research.audit.audit import Audit, audited, share
from fuels.research.audit.reconstruct import colluders
from fuels.research.experiments.base import Budget, Context, Experiment, Result
from fuels.research.experiments.grid import Variant
from fuels.research.study.store import run_key
from fuels.runs.build import Job, build
from fuels.runs.settings import resolve

LIMIT = 0.2  # R2 that is accepted of an attacker without accomplices
SPARSE = {"secret": True, "first": 5, "every": 10}


def gaussian(scale: float) -> dict[str, Any]:
    return {"options": {"noise": "gaussian", "noise_scale": scale}}


VARIANTS: dict[str, Variant] = {
    "fuels": Variant("FUELS"),
    "noise": Variant("FUELS, noise 1 (the paper's)", changes=gaussian(1.0)),
    "secret": Variant("FUELS, secret", changes={"privacy": {"secret": True}}),
    "sparse": Variant("FUELS, secret, rounds 5, 15, ..", changes={"privacy": SPARSE}),
    "once": Variant(
        "FUELS, secret, round 2 only, noise 1",
        changes={"privacy": {"secret": True, "first": 2, "every": 10_000}, **gaussian(1.0)},
    ),
    "sparse-noise": Variant(
        "FUELS, secret, rounds 5, 15, .., noise 2", changes={"privacy": SPARSE, **gaussian(2.0)}
    ),
    "sparse-trials": Variant(
        "FUELS, secret, rounds 5, 15, .., noise 2, trials",
        changes={"privacy": SPARSE, "defence": {"trials": 5}, **gaussian(2.0)},
    ),
    "helped": Variant(
        "the same, and the server has the secret",
        changes={"privacy": {**SPARSE, "secret": False}, "defence": {"trials": 5}, **gaussian(2.0)},
    ),
    "nothing": Variant("FUELS without prototypes", changes={"privacy": {"first": 10_000}}),
    "best": Variant(
        "FUELS, inputs of preset best",
        changes={"windows": PRESETS["best"]["windows"], "training": {"learning_rate": 0.002}},
    ),
    "fedavg": Variant("FedAvg", "fedavg"),
    "fedrep": Variant("FedRep", "fedrep"),
}


# Sums with noise, as with --preset private; None: without.
SUMS: dict[str, Privacy | None] = {
    "exact": None,
    "hour-8": Privacy(epsilon=8.0),
    "hour-4": Privacy(epsilon=4.0),
    "hour-1": Privacy(epsilon=1.0),
    "day-4": Privacy(epsilon=4.0, unit="day"),
    "client-4": Privacy(epsilon=4.0, unit="client"),
}


@dataclass(frozen=True)
class Found:
    error: float  # MSE on the test part, or on the validation part if there is none
    audit: Audit | None  # None: nothing was sent


def run(context: Context) -> Result:
    names, kinds = context.names("variants", VARIANTS), context.names("sums", SUMS)
    done = {name: finished(context, VARIANTS[name]) for name in names}
    dataset = context.dataset(resolve(context.settings("solo")))
    tables = {"audit": table(done), "sums": sums_table(dataset, kinds)}
    return Result(tables, {"audit": picture(context, done)}, remarks(done))


def finished(context: Context, variant: Variant) -> Found:
    """The outcome of a variant, trained now unless it is in the store."""
    settings = resolve(context.settings(variant.method, **variant.changes))

    def compute() -> dict[str, Any]:
        found = train(context, settings)
        return {"error": found.error, "audit": found.audit and found.audit.to_dict()}

    def parse(content: Mapping[str, Any]) -> Found:
        audit = content["audit"]
        return Found(content["error"], None if audit is None else Audit.from_dict(audit))

    key = run_key(settings, context.dataset(settings))
    return context.store.once("audit", key, compute, parse)[0]


def train(context: Context, settings: Settings) -> Found:
    panel = context.store.panel(settings)
    with build(settings, context.engine, panel) as job:
        if not any(job.method.uploads(n + 1) for n in range(settings.training.rounds)):
            job.loop.run()
            return Found(error_of(job), None)
    audit, seen = audited(settings, context.engine, panel, context.train)
    assert seen.job is not None
    return Found(error_of(seen.job), audit)


def error_of(job: Job) -> float:
    """The mean MSE of the clients' personal models."""
    first, last = job.dataset.split.part("test")
    part = "test" if last > first else "val"
    parts = job.site.models(job.loop.final_download())
    return float(np.nanmean(score(job.dataset, part, job.site.forecast(parts, part)).mse))


# -- what is shown -----------------------------------------------------------------------------


def table(done: Mapping[str, Found]) -> Table:
    base = done["fuels"].error if "fuels" in done else None
    headings = (
        "variant | numbers a client sends | informed (R2) | blind (R2) | distances (R2)"
        " | half of the clients (R2) | chance (R2) | days recognised (AUC) | epsilon at least"
        " | clients linked (%) | MSE (z-scored) | change (%)"
    )
    rows = [row(name, found, base) for name, found in done.items()]
    return Table(columns(headings), rows, "Audits")


def row(name: str, found: Found, base: float | None) -> list[Cell]:
    change = None if base is None else f"{100 * (found.error / base - 1):+.1f}"
    cost: list[Cell] = [found.error, change]
    audit = found.audit
    if audit is None:
        return [VARIANTS[name].name, 0, *[None] * 8, *cost]
    half = f"{max(colluders(audit.clients))} clients"
    reached = [audit.of(attacker) for attacker in ("informed", "blind", "distances", half)]
    return [
        VARIANTS[name].name,
        round(audit.numbers),
        *(None if each is None else share(each.best) for each in reached),
        share(audit.chance),
        share(audit.membership.auc),
        share(audit.membership.epsilon),
        round(100 * audit.linked),
        *cost,
    ]


def sums_table(dataset: Dataset, names: Sequence[str]) -> Table:
    """What an attacker who knows everything but one client reads from sums over all clients."""
    rows: list[list[Cell]] = []
    for name in names:
        privacy = SUMS[name]
        if privacy is None:
            reached = sums.reconstruction(dataset, len(dataset.ids) - 1)
            rows.append(["without noise", None, share(reached), share(1.0), share(1.0)])
            continue
        found = noised_sums.revealed(dataset, privacy)
        title = f"epsilon {privacy.epsilon:g} for one {privacy.unit}"
        figures = share(found.reached), share(found.hour), share(found.day)
        rows.append([title, found.numbers, *figures])
    headings = (
        "sums | numbers a client adds | mean day (R2) | an hour recognised (AUC)"
        " | a day recognised (AUC)"
    )
    title = "Sums, to an attacker who knows all other clients"
    return Table(columns(headings), rows, title, SUMS_REMARKS)


SUMS_REMARKS = (
    "The attacker knows the contributions of all other clients, and, for the AUCs, everything about"
    " this client too except whether the hour or day took part; the test is then the best one."
    " Who does not know the others' contributions reads nothing of one client beyond the typical"
    " day. A guarantee for one hour is one for the mean day, or for a whole day, only as far as"
    " this table shows: choose the unit by what must be deniable.",
)


def alone(audit: Audit) -> float:
    """The best R2 of the attackers without accomplices."""
    return max(r.best for r in audit.reached if not r.attacker.endswith("clients"))


def remarks(done: Mapping[str, Found]) -> list[str]:
    titles = [
        VARIANTS[name].name
        for name, found in done.items()
        if found.audit is not None and alone(found.audit) <= LIMIT
    ]
    return [
        f"Variants whose R2 is at most {LIMIT:g} for every attacker without accomplices:"
        f" {'; '.join(titles) or 'none'}.",
        "R2: how much of the clients' deviations from the typical day an attacker reads from the"
        " uploads of a whole run, or of its most telling round if that is more, at the scale and"
        " the penalty that suit the attacker best; chance: the same if the days are dealt to the"
        " clients at random. informed: knows settings and seed, and trains clients of its own in"
        " the same way. blind: the first principal component of a prototype. distances: only which"
        " uploads are close to each other, and which way the main patterns point. half of the"
        " clients: knows the days of half, and reads those of the others.",
        "The attackers of models try linear regressions on their weights only: better attacks may"
        " find more. No figure is a guarantee.",
        "secret: initial model and order of the numbers are drawn from a secret that the server"
        " does not know; accomplices among the clients know it. The initial model differs with"
        " the secret, which by itself moves the MSE a little.",
    ]


def picture(context: Context, done: Mapping[str, Found]) -> style.Figure:
    """The best R2 without accomplices against the error."""
    drawn, [[axis]] = style.figure(
        title="What prototypes and models reveal, and what protection costs",
        subtitle="Best R2 of an attacker without accomplices, against the MSE; dashed: R2 of 0.2",
        footer=f"{context.clients} clients, {context.rounds} rounds",
        height=4.6,
    )
    for name, found in done.items():
        height = 0.0 if found.audit is None else alone(found.audit)
        axis.plot(found.error, height, "o", color=style.METHOD)
        axis.annotate(
            VARIANTS[name].name, (found.error, height), (5, 4), textcoords="offset points", size=8
        )
    axis.axhline(LIMIT, linestyle="--", linewidth=1.0, color=style.QUIET)
    axis.set_ylim(-0.03, 1.05)
    axis.margins(x=0.25)
    axis.set_xlabel("MSE of the personal models (z-scored)")
    axis.set_ylabel("R2")
    return drawn


EXPERIMENT = Experiment(
    name="audit",
    title="What uploads reveal, and the price of revealing less",
    run=run,
    quick=Budget(clients=12, rounds=6),
    paper=Budget(clients=60, rounds=40),
    methods=("fuels", "fedavg", "fedrep"),
    options={"variants": "all", "sums": "all"},
    one_source=True,
    one_seed=True,
)
