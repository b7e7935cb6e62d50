"""Variants of a method on several datasets: the form most experiments share, table and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import nan
from typing import Any, TypeVar

import numpy as np

from fuels.report import style
from fuels.report.tables import Cell, Column, Table
from fuels.research.experiments.base import Context, source_name
from fuels.research.study.compare import Comparison, Row, compare, spread
from fuels.research.study.periods import divide, parse_lengths, stretches
from fuels.research.study.record import Record

T = TypeVar("T")
TITLES = {"synthetic:sms": "SMS", "synthetic:call": "Call", "synthetic:net": "Net"}
WIDE_RANGE = 12  # an axis is logarithmic from this ratio of largest to smallest error
FAR = 1.5  # references this many times worse than the worst method are a number at the edge


@dataclass(frozen=True)
class Variant:
    """A row of a table: a method and the settings that differ."""

    name: str
    method: str = "fuels"
    changes: Mapping[str, Any] = field(default_factory=dict)  # by section, as in config.toml


ALONE = Variant("Solo", "solo")  # nothing is shared: shows what federation is worth


def study(context: Context, variants: Sequence[Variant]) -> dict[str, Comparison]:
    """All variants on all sources with all seeds, in one series of runs; by source.

    The option divide=11,11 of an experiment that has it gives a comparison for each stretch of the
    test part instead, by source and stretch.
    """
    lengths = parse_lengths(context.options.get("divide", ""), "--option divide")
    wanted = [
        context.settings(variant.method, source=source, seed=seed, **variant.changes)
        for source in context.sources
        for variant in variants
        for seed in context.seeds
    ]
    stretches(lengths, context.dataset(wanted[0]))  # refused before anything is trained
    records = iter(run.record for run in context.runs(wanted, by_period=bool(lengths)))
    names, seeds = [variant.name for variant in variants], len(context.seeds)
    found: dict[str, Comparison] = {}
    for i, source in enumerate(context.sources):
        rows = [[next(records) for _ in context.seeds] for _ in variants]
        if not lengths:
            found[source] = compare(rows, names)
            continue
        first = i * len(variants) * seeds
        datasets = [context.dataset(settings) for settings in wanted[first : first + seeds]]
        for stretch, comparison in divide(rows, datasets, lengths, names).items():
            found[f"{title_of(source)}, {stretch}"] = comparison
    return found


def title_of(source: str) -> str:
    """The title of a source, or of a stretch of its test part, which is one already."""
    if ", test periods " in source:
        return source
    return TITLES.get(source, source_name(source).rsplit(".", 1)[0])


def name_panel(axis: style.Axes, source: str, panels: int) -> None:
    """The source as the title of its panel, cut to the room there is."""
    axis.set_title(style.short(title_of(source), 80 // panels), loc="left", size=10, pad=6)


def by_source(name: str, sources: Collection[str]) -> dict[str, str]:
    """A file name for each source; with several, they end in the title of the source."""
    if len(sources) == 1:
        return dict.fromkeys(sources, name)
    return {source: f"{name}-{title_of(source).lower()}" for source in sources}


def each_source(found: Mapping[str, T], sentences: Callable[[T], Sequence[str]]) -> list[str]:
    """The sentences about every source, each opened by its title."""
    return [f"{title_of(s)}: {line}" for s, each in found.items() for line in sentences(each)]


def wide_table(found: Mapping[str, Comparison], title: str, *, first: str = "method") -> Table:
    """MSE and MAE of every row on every source, their average, and the numbers sent up."""
    comparisons = list(found.values())
    rows, several = comparisons[0].rows, len(found) > 1
    seeds = len(rows[0].records) > 1
    titles = [*map(title_of, found), *["average"] * several]
    headings = [f"{each} {measure}" for each in titles for measure in ("MSE", "MAE")]
    columns = [Column(first), *(Column(name, "z-scored", "lowest") for name in headings)]
    if seeds:
        columns.append(Column(f"{'average ' if several else ''}MSE ±", "sd over seeds"))
    columns.append(Column("sent", "numbers up per client and round"))
    lines: list[list[Cell]] = []
    for row in rows:
        own = [c.row(row.name) for c in comparisons]
        errors = [[nan if r is None else r.mean(m) for m in ("mse", "mae")] for r in own]
        if several:
            errors.append(np.mean(errors, axis=0).tolist())
        cells: list[Cell] = [row.name, *chain(*errors)]
        if seeds:
            # Of the average: what one seed does to all sources does not cancel out.
            cells.append(spread(np.mean([r.means("mse") for r in own if r is not None], axis=0)))
        lines.append([*cells, round(row.sent("numbers_up")) if row.is_method else None])
    return Table(columns, lines, title)


# -- figures -----------------------------------------------------------------------------------


def footer(*records: Record) -> str:
    """The footer of a figure about runs on these data."""
    synthetic = {str(record.data["name"]): bool(record.data["synthetic"]) for record in records}
    return style.footer(synthetic, len(records[0].clients), records[0].rounds)


def common_footer(found: Mapping[str, Comparison]) -> str:
    return footer(*(comparison.record for comparison in found.values()))


def dots(
    found: Mapping[str, Comparison],
    title: str,
    *,
    blue: str = "FUELS",
    diamonds: str = "references",
    highlight: str = "FUELS",
) -> style.Figure:
    """MSE of every row as a dot with its spread over seeds, one panel per source.

    A reference far behind all methods would squeeze them together: it is a number at the edge.
    """
    comparisons = list(found.values())
    names = [row.name for row in comparisons[0].rows]
    several = len(comparisons[0].rows[0].records) > 1
    picture, [axes] = style.figure(
        columns=len(found),
        title=title,
        subtitle=f"MSE, mean over the clients; blue: {blue}, orange: the best method, diamonds:"
        f" {diamonds}. Further left is better.",
        footer=common_footer(found) + several * " · whiskers: sd over seeds",
        height=0.3 * len(names) + 0.4,
        gap=0.3,
    )
    ends = [FAR * max(row.mean() for row in comparison.methods) for comparison in comparisons]
    spans = [
        [row.mean() for row in comparison.rows if row.is_method or row.mean() <= end]
        for comparison, end in zip(comparisons, ends, strict=True)
    ]
    wide = any(max(means) > WIDE_RANGE * min(means) for means in spans)
    place = {name: -i for i, name in enumerate(names)}
    for (source, comparison), axis, end, means in zip(
        found.items(), axes, ends, spans, strict=True
    ):
        best = comparison.ranking[0].name
        for row in comparison.rows:
            colour = style.RIVAL if row.name == best else style.QUIET
            if row.name in highlight:
                colour = style.METHOD
            far = not row.is_method and row.mean() > end
            (_number_at_the_edge if far else _dot)(axis, row, place[row.name], colour)
        style.log_scale(axis, "x", means, 0 if wide else math.inf, narrow=len(found) > 1)
        axis.set_xlabel(f"MSE (z-scored{', log scale' if wide else ''})")
        name_panel(axis, source, len(found))
        axis.margins(x=0.22)
        if len(found) > 1:  # a narrow panel needs more of its width for the numbers at the right
            low, high = axis.get_xlim()
            axis.set_xlim(low, high * (high / low) ** 0.2 if wide else high + 0.2 * (high - low))
    axes[0].set_yticks(list(place.values()), list(place))
    for axis in axes:
        axis.set_ylim(-len(names) + 0.4, 0.6)
    # Names are left of the axis.
    room = (0.3 + 0.075 * max(len(name) for name in names)) / style.WIDTH
    for axis in axes:
        spec: Any = axis.get_subplotspec()
        spec.get_gridspec().left = room
        axis.set_position(spec.get_position(picture))
    return picture


def _dot(axis: style.Axes, row: Row, place: float, colour: str) -> None:
    """A dot with its spread over seeds, and its number to the right of it."""
    mean, whisker = row.mean(), row.spread()
    shape, size, inside = ("o", 6.5, colour) if row.is_method else ("D", 5, "white")
    look: dict[str, Any] = {"fmt": shape, "markersize": size, "markerfacecolor": inside}
    axis.errorbar(mean, place, xerr=whisker, capsize=2.5, color=colour, **look)
    text, end = f" {style.number(mean, 3)}", (mean + (whisker or 0.0), place)
    axis.annotate(text, end, (7, -3), textcoords="offset points", size=8, color=colour)


def _number_at_the_edge(axis: style.Axes, row: Row, place: float, colour: str) -> None:
    look: dict[str, Any] = {"ha": "right", "va": "center", "size": 8, "color": colour}
    edge = axis.get_yaxis_transform()
    axis.text(1.0, place, f"{style.number(row.mean(), 3)} →", transform=edge, **look)


def sweep(
    found: Mapping[str, Comparison],
    panels: Mapping[str, Mapping[str, float]],
    title: str,
    subtitle: str,
) -> style.Figure:
    """MSE against the value of a setting; a panel per setting, from its row names to its values."""
    looks = (
        {"color": style.METHOD},
        {"color": style.RIVAL, "linestyle": (0, (5, 2))},
        {"color": style.QUIET, "linestyle": (0, (1, 1.4))},
    )
    labels = [title_of(source) for source in found]
    picture, [axes] = style.figure(
        labels,
        columns=len(panels),
        title=title,
        subtitle=subtitle,
        footer=common_footer(found),
        height=3.2,
    )
    for (setting, values), axis in zip(panels.items(), axes, strict=True):
        for i, (source, comparison) in enumerate(found.items()):
            rows = {name: comparison.row(name) for name in values}
            there = {name: row for name, row in rows.items() if row is not None}
            whiskers = [s for s in (row.spread() for row in there.values()) if s is not None]
            x, y = [values[name] for name in there], [row.mean() for row in there.values()]
            look: Any = {"marker": "o", "markersize": 4.5, "capsize": 2.5, **looks[i % len(looks)]}
            axis.errorbar(x, y, yerr=whiskers or None, label=title_of(source), **look)
        axis.set_xlabel(setting)
        if min(values.values()) > 0:
            style.log_scale(axis, "x", list(values.values()), WIDE_RANGE)
    means = [row.mean() for comparison in found.values() for row in comparison.methods]
    wide = style.log_scale(axes[0], "y", means, WIDE_RANGE)
    axes[0].set_ylabel(f"MSE (z-scored{', log scale' if wide else ''})")
    style.legend(picture, axes[0])
    return picture
