"""report.html of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fuels.data.files import write_text
from fuels.report.facts import count_of
from fuels.report.page.shell import NAME
from fuels.report.study import Bars, Part, study_page
from fuels.report.style import number
from fuels.report.tables import Table
from fuels.research.study.compare import Comparison


def write_report(
    folder: Path,
    found: Mapping[str, Comparison],
    tables: Mapping[str, Table],
    command: str,
) -> Path:
    """The page of a comparison, or of its stretches of the test part by their names."""
    parts = [Part(name, table, bars(found[name])) for name, table in tables.items()]
    first = next(iter(found.values()))
    count, seeds = len(first.methods), len(first.rows[0].records)
    subtitle = f"{count_of(count, 'method')}, {count_of(seeds, 'seed')}"
    title = f"Comparison on {first.record.data_name}"
    page = study_page(title, subtitle, command, parts, lead=lead(first))
    return write_text(folder / NAME, page)


def bars(comparison: Comparison) -> Bars:
    """The mean MSE of every row, with its spread over seeds."""
    rows = comparison.rows
    return Bars(
        "Mean squared error on the test part (z-scored, shorter is better)",
        {row.name: row.mean() for row in rows},
        {row.name: row.spread() for row in rows},
        [row.name for row in comparison.methods],
    )


def lead(comparison: Comparison) -> str:
    """The comparison in two sentences."""
    record, best = comparison.record, comparison.ranking[0]
    said = (
        f"This study compares {count_of(len(comparison.methods), 'way')} of training personal"
        f" forecasters for {count_of(len(record.clients), 'client')} of {record.data_name}."
        f" On the test days, which training never saw, {best.name} was the most accurate with a"
        f" mean squared error of {number(best.mean())} (z-scored)"
    )
    references = [row for row in comparison.rows if not row.is_method]
    if not references:
        return f"{said}."
    rival = min(references, key=lambda row: row.mean())
    better = f"{best.improves(rival):.0f} % of the clients"
    return (
        f"{said}; the best simple reference, {rival.name}, has {number(rival.mean())}, and"
        f" {best.name} is better for {better}."
    )
