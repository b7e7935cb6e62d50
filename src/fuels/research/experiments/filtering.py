"""Hard negative filtering during training (Section 5.5, second case study).

W_n decides which augmented rows count as negatives of a row: those with a positive entry (Eq. 4-5).
The figure shows W_n of one client after training; the curve follows the share of positive entries
on the diagonal (where an entry is a positive pair, and ideally filtered out) and off it over the
rounds, as means over all clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats, Floats32
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.federation.loop import Round
from fuels.report import style
from fuels.report.tables import Cell, Table, columns
from fuels.research.experiments.base import Budget, Context, Experiment, Result, source_name
from fuels.research.experiments.inside import follow
from fuels.runs.build import Job

PINK, PURPLE = "#ef6fae", "#5b2a86"  # positive and not, as in the paper's figure
SHOWN = (0, 1, 2, 5, 10, 20, 30, 50, 80, 120, 200)  # rounds in the table


@dataclass
class FilterWatcher:
    """The share of positive entries in every client's W_n, round by round."""

    job: Job
    rounds: list[int] = field(default_factory=list)
    diagonal: list[Floats] = field(default_factory=list)  # [round][client]
    others: list[Floats] = field(default_factory=list)

    def __post_init__(self) -> None:
        options = self.job.method.options
        if "filter" not in self.job.site.parts or not (options.intra and options.filter):
            raise FuelsError(
                "experiment filtering inspects W_n, which options.intra = false or options.filter ="
                " false remove from training; do not set them"
            )
        self.start = self.weights()
        self.look(0)

    def weights(self) -> Floats32:
        """W_n of every client now, [client, row, row]."""
        period = self.job.dataset.period
        values: Floats32 = self.job.site.parts["filter"].cpu().numpy()
        return values.reshape(-1, period, period).copy()

    def on_round(self, done: Round) -> None:
        self.look(done.number)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "start": self.start,
            "rounds": np.array(self.rounds),
            "diagonal": np.stack(self.diagonal),
            "others": np.stack(self.others),
        }

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.start, self.rounds = arrays["start"], arrays["rounds"].tolist()
        self.diagonal, self.others = list(arrays["diagonal"]), list(arrays["others"])

    def look(self, number: int) -> None:
        on, off = shares(self.weights())
        self.rounds.append(number)
        self.diagonal.append(on)
        self.others.append(off)


def shares(W: Floats32) -> tuple[Floats, Floats]:
    """Share of positive entries on the diagonal and off it, [client] each, of W [client, B, B]."""
    rows = W.shape[1]
    on = (np.diagonal(W, axis1=1, axis2=2) > 0).sum(axis=1)
    off = (W > 0).sum(axis=(1, 2)) - on
    return on / rows, off / (rows * (rows - 1))


def check(context: Context) -> None:
    _named(context.options["client"], context.dataset(context.settings("fuels")))


def run(context: Context) -> Result:
    settings = context.settings("fuels")
    named = _named(context.options["client"], context.dataset(settings))
    job, seen = follow(context, "filtering", settings, FilterWatcher)
    W = seen.weights()
    client = _middle(seen) if named is None else named
    last = seen.rounds[-1]
    rows: list[list[Cell]] = [
        [number, *_share_cells(seen.diagonal[i]), *_share_cells(seen.others[i])]
        for i, number in enumerate(seen.rounds)
        if number in SHOWN or number == last
    ]
    headings = "round"
    for entries in ("diagonal", "others"):
        headings += f" | {entries} (% positive, mean)"
        headings += "".join(f" | {entries}, {n}th (percentile of clients)" for n in (10, 90))
    title = f"Positive entries of W over the rounds, {source_name(context.sources[0])}"
    figures = {
        "filtering-weights": draw_weights(job.dataset, client, W[client], last),
        "filtering-shares": draw_shares(job.dataset, seen),
    }
    table = Table(columns(headings), rows, title)
    return Result({"filtering": table}, figures, sentences(seen.start, W, last))


def sentences(start: Floats32, W: Floats32, rounds: int) -> list[str]:
    """What the table does not show."""
    inactive = start <= 0
    kept = 100 * float((W[inactive] == start[inactive]).mean())
    on, off = shares(W)
    turned = 100 * float((W[~inactive] <= 0).mean())
    drawn = 100 * float(inactive[W <= 0].mean()) if (W <= 0).any() else 0.0
    return [
        f"After {rounds} rounds {100 * on.mean():.1f} % of the diagonal entries and"
        f" {100 * off.mean():.1f} % of the others are positive. The paper's figure of one client"
        " shows almost no positive entries on the diagonal, without numbers.",
        f"Of the entries that started at or below zero, {kept:.1f} % keep their initial value to"
        " the last bit, because ReLU passes no gradient there. Of those that started above zero,"
        f" {turned:.1f} % were pushed to zero or below, so that {drawn:.1f} % of what is filtered"
        " out at the end was decided by the random start.",
        "Training can only switch entries off: L_intra grows with every positive entry of W, for"
        " any pair, so its gradient pushes all of them down, those of similar pairs fastest.",
    ]


def _share_cells(values: Floats) -> list[float]:
    low, high = np.percentile(100 * values, (10, 90))
    return [float(100 * values.mean()), float(low), float(high)]


def _middle(seen: FilterWatcher) -> int:
    """The median client by its share of positive entries."""
    order = np.argsort(seen.others[-1], kind="stable")
    return int(order[(len(order) - 1) // 2])


def _named(wanted: str, dataset: Dataset) -> int | None:
    """The client given, if any; one that does not take part is refused before training."""
    if not wanted:
        return None
    if wanted not in dataset.ids:
        raise FuelsError(
            f"experiment filtering: client {wanted} does not take part (there are"
            f" {len(dataset.ids)} clients, e.g. {', '.join(dataset.ids[:3])})"
        )
    return dataset.ids.index(wanted)


# -- figures -----------------------------------------------------------------------------------


def draw_weights(dataset: Dataset, client: int, W: Floats32, rounds: int) -> style.Figure:
    """A circle for every entry: its area shows the size, its colour the sign."""
    labels = ["positive: a true negative", "not positive: filtered out"]
    picture, [[axis]] = style.figure(
        labels,
        title=f"W of client {style.short(dataset.ids[client])} after {rounds} rounds",
        subtitle="Row: a sample. Column: the augmented sample it is compared with. The area of a"
        " circle is the size of the entry.",
        footer=style.origin(dataset),
        height=7.2,
    )
    period = len(W)
    row, column = np.divmod(np.arange(period * period), period)
    values = W.ravel()
    space = 7.0 * 72 / period  # points between neighbours
    area = (0.9 * space) ** 2 * np.abs(values) / max(float(np.abs(values).max()), 1e-12)
    for sign, colour, label in zip((values > 0, values <= 0), (PINK, PURPLE), labels, strict=True):
        look: style.Look = {"color": colour, "linewidth": 0, "label": label, "zorder": 3}
        axis.scatter(column[sign], row[sign], s=area[sign], **look)
    axis.plot([-0.5, period - 0.5], [-0.5, period - 0.5], color=style.GRID, linewidth=9, zorder=1)
    axis.grid(False)
    axis.set_aspect("equal")
    axis.set_xlim(-0.6, period - 0.4)
    axis.set_ylim(period - 0.4, -0.6)
    axis.set_xlabel("augmented sample, by phase of the period")
    axis.set_ylabel("sample, by phase of the period")
    style.legend(picture, axis)
    for handle in picture.legends[0].legend_handles:
        if handle is not None:
            handle.set_sizes([60.0])  # type: ignore[attr-defined]
    return picture


def draw_shares(dataset: Dataset, seen: FilterWatcher) -> style.Figure:
    labels = ("diagonal: positive pairs", "others: candidate negatives")
    picture, [[axis]] = style.figure(
        labels,
        title="Positive entries of W over the rounds",
        subtitle="Mean over the clients; the band covers the middle 80 % of them. W starts from"
        " N(0, 1), with half of its entries positive.",
        footer=style.origin(dataset),
        height=3.6,
    )
    for values, colour, label in zip(
        (seen.diagonal, seen.others), (style.METHOD, style.RIVAL), labels, strict=True
    ):
        share = 100 * np.stack(values)  # [round, client]
        low, high = np.percentile(share, (10, 90), axis=1)
        axis.fill_between(seen.rounds, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.plot(seen.rounds, share.mean(axis=1), color=colour, linewidth=2, label=label)
    axis.set_ylim(0, None)
    axis.set_xlim(0, max(1, seen.rounds[-1]))
    axis.set_xlabel("round")
    style.whole_numbers(axis, "x")
    axis.set_ylabel("share of positive entries (%)")
    axis.tick_params(axis="x", labelcolor=style.INK)
    style.legend(picture, axis)
    return picture


EXPERIMENT = Experiment(
    name="filtering",
    title="Hard negative filtering: W during and after training",
    run=run,
    quick=Budget(clients=24, rounds=30),
    options={"client": ""},
    one_source=True,
    one_seed=True,
    check=check,
)
