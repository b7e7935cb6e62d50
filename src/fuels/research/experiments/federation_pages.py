"""Tables, figure and sentences of `fuels experiment federation`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fuels.report import style
from fuels.report.tables import Cell, Column, Table, columns
from fuels.research.experiments.federation_changes import LEVEL, Change, Found
from fuels.research.experiments.grid import name_panel, title_of

Rows = Mapping[str, Mapping[str, Change | None]]  # of a table: its changes by row and column


@dataclass(frozen=True)
class Part:
    """One question: the changes, and the conclusion below their table."""

    title: str
    rows: Rows
    said: Sequence[str]
    more: Rows = field(default_factory=dict)  # changes that are not in the table
    first: str = "data"
    base: str = ""  # names a column with the MSE that the changes of a row refer to, if all do

    @property
    def names(self) -> list[str]:
        """The columns."""
        return list(dict.fromkeys(name for changes in self.rows.values() for name in changes))

    @property
    def table(self) -> Table:
        """Changes of MSE; one that is not significant is in brackets."""
        cells: list[list[Cell]] = []
        for name, changes in self.rows.items():
            known = [change for change in changes.values() if change is not None]
            bases = [known[0].base if known else None] if self.base else []
            cells.append([name, *bases, *(cell(changes.get(column)) for column in self.names)])
        heads = [Column(self.first), *([Column(self.base, "MSE")] if self.base else [])]
        return Table([*heads, *map(Column, self.names)], cells, self.title, self.said)


def average(rows: Rows) -> float:
    """The mean change in percent."""
    found = [c.percent for changes in rows.values() for c in changes.values() if c is not None]
    return float(np.mean(found))


def cell(change: Change | None) -> str:
    if change is None:
        return "–"
    if change.mse == change.base:
        return "0"
    text = f"{change.percent:+.1f} %"
    return text if change.significant else f"({text})"


def details(parts: Mapping[str, Part]) -> Table:
    """Every change of every table, with its tests."""
    cells: list[list[Cell]] = [
        [
            *(name, row, column, change.base, change.mse, change.percent, 100 * change.better),
            *(change.clients, change.p_clients, change.days, change.p_days),
        ]
        for name, part in parts.items()
        for row, changes in {**part.rows, **part.more}.items()
        for column, change in changes.items()
        if change is not None
    ]
    heads = (
        "table | row | column | MSE without | MSE with | change (%) | lower for (% of clients)"
        " | clients | p over clients | days | p over days"
    )
    return Table(columns(heads), cells)


def conclusion(what: str, rows: Rows) -> str:
    """Where something helps, whether the tests confirm it, and the best and the worst place."""
    changes = {
        f"{row}, {column}" if len(columns) > 1 else row: change
        for row, columns in rows.items()
        for column, change in columns.items()
        if change is not None
    }
    lower = [change for change in changes.values() if change.percent < 0]
    higher = [change for change in changes.values() if change.percent > 0]
    best, worst = (
        choose(changes, key=lambda place: changes[place].percent) for choose in (min, max)
    )
    found = changes[best]
    return (
        f"With {what} the MSE is lower in {len(lower)} of {len(changes)} comparisons, significantly"
        f" in {_sure(lower)}, and higher in {len(higher)}, significantly in {_sure(higher)}. Best:"
        f" {found.percent:+.1f} % ({best}; lower for {100 * found.better:.0f} % of the clients,"
        f" {_p(found.p_clients)} over {found.clients} clients, {_p(found.p_days)} over {found.days}"
        f" days). Worst: {changes[worst].percent:+.1f} % ({worst})."
    )


def _sure(changes: Sequence[Change]) -> int:
    return sum(change.significant for change in changes)


def _p(value: float | None) -> str:
    return "no difference" if value is None else f"p = {style.number(value, 2)}"


def column(rows: Rows, name: str) -> Rows:
    """One column of a table."""
    return {row: {name: changes.get(name)} for row, changes in rows.items()}


def how_to_read(found: Found, unit: str) -> list[str]:
    """How the figures were made."""
    seeds = ", ".join(str(seed) for seed in found.seeds)
    said = [
        "A change is that of the mean MSE over the clients, then over seeds"
        f" {seeds}, against nothing shared; below zero is better. It is in brackets unless two"
        f" paired Wilcoxon tests, over clients and over {unit}, both find it significant at"
        f" {100 * LEVEL:g} %. The tests are not corrected for their number."
        " federation-changes.csv has every figure.",
        "Nothing shared: the same clients, values, scale and inputs with local experts only; where"
        " personal models are compared, with local experts and a model trained alone (Solo).",
        f"Newcomers are {100 * found.share:g} % of the clients, drawn with the seed; the others"
        " have the whole history. Only newcomers are compared, in standard deviations of their"
        " whole training part.",
    ]
    if found.lost:
        said.append(
            f"{found.lost} newcomers are left out: they cannot take part with the shortest history."
        )
    sizes = {title_of(source): len(dataset.ids) for source, dataset in found.datasets.items()}
    most = max(sizes.values())
    said += [f"{name} has {size} clients." for name, size in sizes.items() if size < most]
    if any(dataset.panel.synthetic for dataset in found.datasets.values()):
        said.append("Synthetic data: the errors say nothing about a real network.")
    return said


# -- the figure --------------------------------------------------------------------------------


def picture(found: Found, part: Part, unit: str) -> style.Figure:
    """How much lower the newcomers' MSE is, by their history: a panel per source."""
    datasets = found.datasets
    most = max(len(windows) for windows in found.windows.values())
    labels = ["first days of the test", "last days of the test"][:most] if most > 1 else []
    picture, [axes] = style.figure(
        labels,
        columns=len(datasets),
        title="What sharing adds, by the history a client has",
        subtitle="How much lower the mean squared error is with shared sums; higher is better."
        " Pale bars: not significant.",
        footer=style.footer(
            {title_of(source): dataset.panel.synthetic for source, dataset in datasets.items()},
            max(len(dataset.ids) for dataset in datasets.values()),
        ),
        height=3.2,
        gap=0.3,
    )
    colours = (style.METHOD, style.RIVAL)
    for (source, windows), axis in zip(found.windows.items(), axes, strict=True):
        width = 0.8 / len(windows)
        for i, window in enumerate(windows):
            changes = part.rows[f"{title_of(source)}, {window.name}"]
            for x, name in enumerate(part.names):
                change = changes.get(name)
                if change is None:
                    continue
                place = x + (i - (len(windows) - 1) / 2) * width
                alpha = 1.0 if change.significant else 0.3
                axis.bar(place, -change.percent, width, color=colours[i], alpha=alpha, zorder=3)
        axis.axhline(0, color=style.QUIET, linewidth=0.8, zorder=4)
        axis.set_xticks(range(len(part.names)), [name.split()[0] for name in part.names])
        axis.set_xlabel(f"{unit} of history")
        name_panel(axis, source, len(axes))
    axes[0].set_ylabel("MSE lower by (%)")
    for label, colour in zip(labels, colours, strict=False):
        axes[0].bar(0, 0, color=colour, label=label)  # an entry of the legend in full colour
    if labels:
        style.legend(picture, axes[0])
    return picture
