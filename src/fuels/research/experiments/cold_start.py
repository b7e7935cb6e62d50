"""Cold start: clients with only a few days of history join a federation of established ones.

A share of the clients are newcomers: they have only the last 3, 7, 14 or 28 periods of the training
part (data.newcomers); the others have all of it. All train together, and the newcomers' errors on
the same test days are compared for every method and reference. Windows look back only one period,
so that three periods leave two to learn from. A validation part would be additional history, so
there is none, and the last model is kept. Errors are in standard deviations of a client's whole
training part, because the scale a newcomer trains on depends on its history.

FUELS also runs with a lent start (methods/fuels_start.py) and as preset best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fuels.data.newcomers import newcomers
from fuels.data.sample import parse_lags
from fuels.errors import FuelsError
from fuels.evaluation.outcome import method_rows
from fuels.methods.registry import METHODS, find_method
from fuels.report.style import METHOD, QUIET, RIVAL, figure, legend, log_scale, number
from fuels.report.tables import Cell, Column, Table
from fuels.research.experiments.base import Budget, Context, Experiment, Result
from fuels.research.experiments.grid import Variant, by_source, each_source, footer
from fuels.research.experiments.skill import layered, preset_changes
from fuels.research.study.compare import Comparison, Floats, Row, own_ways
from fuels.research.study.record import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENT, BEST, BEST_LENT = "FUELS, lent start", "FUELS, preset best", "FUELS, preset best, lent start"
UNDER_BEST = {
    BEST: "fuels",
    BEST_LENT: "fuels-start",
    "FedAvg, preset best": "fedavg",
    "FedRep, preset best": "fedrep",
}
SENDERS = ("FedAvg", "FedProx", "FedRep", "PerFedAvg", "pFedMe", "FedDA")  # of models
WINDOWS = {"closeness": 3, "periodicity": 1}
WARM_RATE = 0.01  # of FedDA: its default, 0.1, diverges on sets that miss most weeks
DAY = 86400


@dataclass(frozen=True)
class Line:
    """Mean MSE of the newcomers for one forecast."""

    name: str
    errors: Floats  # [seed, history]; the last history is the whole one
    is_method: bool
    megabytes: float = float("nan")  # sent and received by a client, with the shortest history

    @property
    def mse(self) -> Floats:
        return np.asarray(self.errors.mean(axis=0))


@dataclass(frozen=True)
class Study:
    """All lines on one source."""

    lines: list[Line]
    days: tuple[int, ...]
    unit: str  # days, or periods
    record: Record  # of one of the runs
    ways: list[str]
    new: int  # newcomers of one seed
    lost: int  # newcomers left out because some history is too short for them, over the seeds

    def line(self, name: str) -> Line:
        return next(line for line in self.lines if line.name == name)

    def best(self, at: int, names: Sequence[str] = ()) -> Line:
        """The line with the lowest error for a history, of all lines or of those named."""
        lines = [line for line in self.lines if not names or line.name in names]
        return min(lines, key=lambda line: line.mse[at])


def run(context: Context) -> Result:
    days, share = read_options(context)
    found = {source: study(context, source, days, share) for source in context.sources}
    names = by_source("cold-start", found)
    text = [*each_source(found, verdicts), *remarks(context, next(iter(found.values())), share)]
    return Result(
        {names[source]: table(one) for source, one in found.items()},
        {names[source]: picture(one) for source, one in found.items()},
        text,
    )


def read_options(context: Context) -> tuple[tuple[int, ...], float]:
    days, [share, *more] = context.numbers("days", whole=True), context.numbers("share")
    if more or not 0 < share < 1:
        raise FuelsError(f"--option share={context.options['share']}: one number between 0 and 1")
    return tuple(sorted(int(day) for day in days)), share


# -- runs --------------------------------------------------------------------------------------


def variants(context: Context, split: str, period: int) -> list[Variant]:
    """Every method on short windows, FUELS with a lent start, and both under preset best."""
    short = layered({"windows": {**WINDOWS, "split": split}}, context.changes)
    rows = []
    for name in METHODS:
        options = {"warm_rate": WARM_RATE} if name == "fedda" else {}
        changes = {**short, "options": unless_given(context, options)}
        rows.append(Variant(find_method(name).title, name, changes))
    lent = {**short, "options": unless_given(context, lending(context.rounds))}
    rows.insert(1, Variant(LENT, "fuels-start", lent))
    for title, name in UNDER_BEST.items():
        preset = preset_changes(context, "best", name)
        lags = within_a_period(preset["windows"]["lags"], period)
        own = layered(preset_sections(preset), {"windows": {"lags": lags, "split": split}})
        changes = {"preset": "best", **layered(own, context.changes)}
        if name == "fuels-start":
            rounds = int(changes["training"]["rounds"])
            changes["options"] = unless_given(context, lending(rounds))
        rows.append(Variant(title, name, changes))
    return rows


def within_a_period(lags: str, period: int) -> str:
    """The lags that look back at most one period, in steps."""
    near = ([lag for lag in branch if lag <= period] for branch in parse_lags(lags, period))
    return "/".join(",".join(map(str, branch)) for branch in near if branch)


def preset_sections(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {section: values for section, values in changes.items() if section != "preset"}


def unless_given(context: Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a method, except those given on the command line."""
    return {key: v for key, v in options.items() if key not in context.method_options}


def lending(rounds: int) -> dict[str, Any]:
    """Models are lent after nine tenths of the rounds.

    On days before any test day (Milan, days 30-40) later was better: what the lenders have learned
    by then is worth more than additional rounds of the newcomer.
    """
    return {"lend": max(1, rounds - max(1, rounds // 10))}


def study(context: Context, source: str, days: tuple[int, ...], share: float) -> Study:
    """All variants with every history, the whole one last."""
    plain = context.dataset(context.settings(source=source))
    train, test = (len(range(*plain.split.part(part))) for part in ("train", "test"))
    period = plain.period
    if days[-1] * period > train:
        raise FuelsError(
            f"--option days: {days[-1]} is more than the {train // period} periods of training"
        )
    rows = variants(context, f"{train // period}/0/{-(-test // period)}", period)
    histories = [*(f"{share}@{day}" for day in days), ""]
    wanted = [
        context.settings(
            row.method,
            source=source,
            seed=seed,
            **{**row.changes, "data": {**row.changes.get("data", {}), "newcomers": history}},
        )
        for row in rows
        for seed in context.seeds
        for history in histories
    ]
    records = iter(result.record for result in context.runs(wanted))
    done = {row.name: [[next(records) for _ in histories] for _ in context.seeds] for row in rows}
    unit = "days" if period * plain.panel.step_seconds == DAY else "periods"
    return evaluate(done, share, days, unit)


def evaluate(
    done: Mapping[str, Sequence[Sequence[Record]]], share: float, days: tuple[int, ...], unit: str
) -> Study:
    """Lines from records [seed][history] of every variant."""
    first = next(iter(done.values()))
    seeds = [records[-1].settings["seed"] for records in first]
    whole = [records[-1].clients for records in first]
    new = [set(newcomers(ids, share, seed)) for ids, seed in zip(whole, seeds, strict=True)]
    # A client may be constant in a short history and then left out: it is left out everywhere.
    compared = [
        sorted(who.intersection(*(record.clients for record in records)))
        for who, records in zip(new, first, strict=True)
    ]
    if not all(compared):
        raise FuelsError(
            "no newcomer can take part with the shortest history: remove it from --option days, or"
            " take more clients"
        )

    def line(name: str, runs: Sequence[Sequence[Record]], forecast: str, is_method: bool) -> Line:
        errors = [
            [newcomer_error(record, records[-1], forecast, who) for record in records]
            for records, who in zip(runs, compared, strict=True)
        ]
        shortest = tuple(records[0] for records in runs)
        sent = Row(name, shortest, forecast, True).megabytes() if is_method else float("nan")
        return Line(name, np.array(errors), is_method, sent)

    lines = []
    for name, runs in done.items():
        title = runs[0][0].title
        lines.append(line(name, runs, title, True))
        if name == BEST:
            lines.append(line(f"{BEST}, model alone", runs, method_rows(title)[1], True))
    lines += [line(name, first, name, False) for name in first[0][0].references]
    shown = [Row(name, tuple(runs[0]), runs[0][0].title, True) for name, runs in done.items()]
    return Study(
        lines=lines,
        days=days,
        unit=unit,
        record=first[0][0],
        ways=own_ways(Comparison(tuple(row for row in shown if row.name in SENDERS))),
        new=len(new[0]),
        lost=sum(map(len, new)) - sum(map(len, compared)),
    )


def newcomer_error(record: Record, whole: Record, forecast: str, who: Sequence[str]) -> float:
    """Mean MSE of some clients in standard deviations of their whole training part."""
    here, there = ([ids.index(client) for client in who] for ids in (record.clients, whole.clients))
    scale = record.std[here] / whole.std[there]
    return float(np.nanmean(record.mse[forecast][here] * scale**2))


# -- table and figure --------------------------------------------------------------------------


def table(found: Study) -> Table:
    record = found.record
    columns = [
        Column("forecast"),
        *(Column(f"{day} {found.unit}", "MSE", "lowest") for day in found.days),
        Column("all", "MSE", "lowest"),
        Column("in all", "MB/client"),
    ]
    rows: list[list[Cell]] = [
        [line.name, *(float(mse) for mse in line.mse), line.megabytes] for line in found.lines
    ]
    clients = len(record.clients)
    title = f"Errors of {found.new} newcomers among {clients} clients, by their history, on"
    return Table(columns, rows, f"{title} {record.data_name}")


def picture(found: Study) -> Figure:
    """Error of the newcomers against the length of their history."""
    sender = found.best(0, SENDERS).name
    reference = found.best(0, [line.name for line in found.lines if not line.is_method]).name
    dashed, dotted = (0, (5, 2)), (0, (1, 1.4))
    named: dict[str, dict[str, Any]] = {
        "FUELS": {"color": METHOD},
        LENT: {"color": METHOD, "linestyle": dashed},
        BEST: {"color": METHOD, "linestyle": dotted},
        sender: {"color": RIVAL},
        "Solo": {"color": QUIET},
        reference: {"color": QUIET, "linestyle": dashed},
    }
    picture, [[axis]] = figure(
        1,
        1,
        [*named, "other methods and references"],
        title="Newcomers: error against the history they have",
        subtitle="MSE of the newcomers on the same test days; lower is better. On the right: the"
        " whole history.",
        footer=footer(found.record),
    )
    train = found.record.data["periods"][0]
    x = [*found.days, train]
    others = [line for line in found.lines if line.name not in named]
    for i, line in enumerate(others):
        label = "other methods and references" if i == 0 else None
        axis.plot(x, line.mse, color="#c4c4c4", linewidth=1, zorder=2, label=label)
    for name, look in named.items():
        axis.plot(x, found.line(name).mse, marker="o", markersize=4.5, zorder=4, label=name, **look)
    axis.set_xscale("log")
    axis.set_xticks(x, [*(str(day) for day in found.days), f"{train} (all)"])
    axis.set_xticks([], minor=True)
    wide = log_scale(axis, "y", [float(v) for line in found.lines for v in line.mse], 6)
    axis.set_xlabel(f"{found.unit} of history")
    axis.set_ylabel(f"MSE (z-scored{', log scale' if wide else ''})")
    legend(picture, axis)
    return picture


# -- sentences ---------------------------------------------------------------------------------


def verdicts(found: Study) -> list[str]:
    """Who wins for each history, whether sending models wins, and what a lent start gains."""
    said = []
    fuels, solo = found.line("FUELS"), found.line("Solo")
    references = [line.name for line in found.lines if not line.is_method]
    for at, day in enumerate(found.days):
        first, reference = found.best(at), found.best(at, references)
        said.append(
            f"with {day} {found.unit} the lowest MSE is that of {first.name}"
            f" ({number(float(first.mse[at]))}); FUELS {number(float(fuels.mse[at]))}, Solo"
            f" {number(float(solo.mse[at]))}, best reference {reference.name}"
            f" {number(float(reference.mse[at]))}."
        )
    ahead = [at for at in range(len(found.days)) if found.best(at, SENDERS).mse[at] < fuels.mse[at]]
    if ahead:
        which = ", ".join(
            f"{found.days[at]} ({found.best(at, SENDERS).name},"
            f" {change(found.best(at, SENDERS), fuels, at)})"
            for at in ahead
        )
        said.append(f"a method that sends models beats FUELS for newcomers with {which}.")
    else:
        said.append("no method that sends models beats FUELS for newcomers.")
    for lent, plain in ((LENT, "FUELS"), (BEST_LENT, BEST)):
        pair = found.line(lent), found.line(plain)
        changes = ", ".join(f"{change(*pair, at)} with {day}" for at, day in enumerate(found.days))
        more = pair[0].megabytes - pair[1].megabytes
        said.append(
            f"a lent start changes the newcomers' MSE under {plain} by {changes}, for"
            f" {number(more)} MB more per client."
        )
    return said


def change(line: Line, other: Line, at: int) -> str:
    return f"{100 * (line.mse[at] / other.mse[at] - 1):+.1f} %"


def remarks(context: Context, found: Study, share: float) -> list[str]:
    """How the figures were made."""
    record = found.record
    train, val, test = record.data["periods"]
    seeds = ", ".join(str(seed) for seed in context.seeds)
    kept = (
        "the last model is kept"
        if not val
        else f"models are chosen on {val} validation periods, which are additional history"
    )
    said = [
        f"Newcomers are {100 * share:g} % of the clients, drawn with the seed (means over {seeds});"
        f" the others have all {train} periods. Tested on the next {test} periods; {kept}.",
        "MSE in standard deviations of each client's whole training part, the same for every"
        " history. References and experts are fitted on the newcomers' short history.",
        f"All windows look back one period: the last {WINDOWS['closeness']} values and one period"
        " ago; under preset best, the lags within a period. The experts keep their own lags.",
        "In all: sent and received by a client over the whole training, with the shortest history.",
        "A lent start: every client sends its model once, after nine tenths of the rounds, and"
        " newcomers continue from the mean of the three most similar ones. It is a separate method,"
        " fuels-start, to which the owners must agree.",
        *found.ways,
        f"FedDA's warm-up model is trained at a rate of {WARM_RATE:g}, a tenth of the default,"
        " which can diverge: a newcomer's missing weeks are zeros in its augmented set.",
    ]
    if found.lost:
        said.append(
            f"{found.lost} newcomers are left out of every figure: they are constant in the"
            " shortest history and cannot take part."
        )
    if record.data["synthetic"]:
        said.append("Synthetic data: the errors say nothing about a real network.")
    return said


EXPERIMENT = Experiment(
    name="cold-start",
    title="Newcomers with a few days of history",
    run=run,
    quick=Budget(clients=8, rounds=6),
    paper=Budget(clients=100, rounds=60),
    methods=(*METHODS, "fuels-start"),
    options={"days": "3,7,14,28", "share": "0.5"},
    setting="windows and rates as described below",
)
