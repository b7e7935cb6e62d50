"""report.html of a study: its tables, charts, figures and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuels.report.page.elements import Html, bullets, el, picture, table
from fuels.report.page.shell import Section, code, page, section
from fuels.report.page.svg import Figures
from fuels.report.style import number
from fuels.report.tables import Table
from fuels.version import __version__


@dataclass(frozen=True)
class Bars:
    """A bar chart: names with values, standard deviations if known, and which are methods."""

    title: str
    values: Mapping[str, float]
    spread: Mapping[str, float | None]
    methods: Sequence[str]


@dataclass(frozen=True)
class Part:
    """A table with the sentences below it and, where it helps, a chart above it."""

    name: str
    table: Table
    bars: Bars | None = None


def study_page(
    title: str,
    subtitle: str,
    command: str,
    parts: Sequence[Part],
    notes: Sequence[str] = (),
    figures: Mapping[str, Path] | None = None,
    lead: str = "",
) -> str:
    """A page with a summary, a section for each table, the figures, the notes and the command."""
    drawn, sections = Figures(), []
    if lead:
        sections.append(Section("summary", "Summary", el("p", lead, class_="lead")))
    for place, part in enumerate(parts, 1):
        name = part.name or "Results"
        bars = None if part.bars is None else chart(part.bars, drawn)
        title_ = part.table.title or name
        content = (bars, table(part.table), bullets(part.table.notes))
        sections.append(section(f"table-{place}", title_, name, *content))
    if figures:
        shown: list[Html] = []
        for name, path in figures.items():
            shown += [el("h3", name)] if len(figures) > 1 else []
            shown.append(picture(path, f"{title}: {name}"))
        sections.append(section("figures", "Figures", "", *shown))
    if notes:
        sections.append(Section("notes", "Notes", bullets(notes)))
    again = "Run this command to compute it again; finished runs are reused."
    settings = ("settings", "To reproduce this study", "Reproduce")
    sections.append(section(*settings, code(command), el("p", again)))
    return page(title, subtitle, sections, f"Made by fuels {__version__}.")


def chart(bars: Bars, figures: Figures) -> Html:
    """Methods and references, the best method in colour."""
    order = sorted(bars.values, key=lambda name: bars.values[name])
    best = next((name for name in order if name in bars.methods), None)
    rows, spread = [], []
    for name in order:
        kind = "method" if name == best else "rest" if name in bars.methods else "rival"
        wide = bars.spread.get(name)
        text = number(bars.values[name]) + (f" ± {number(wide, 2)}" if wide else "")
        rows.append((name, bars.values[name], text, f"fill {kind}"))
        spread.append(wide)
    keys = [("box method", "best method"), ("box rest", "other methods")]
    if any(name not in bars.methods for name in order):
        keys.append(("box rival", "simple references"))
    caption = "Whiskers: standard deviation over seeds." if any(spread) else None
    return figures.bars(rows, bars.title, keys=keys, spread=spread, caption=caption)
