"""report.html of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fuels.report.page.shell import NAME, write_page
from fuels.report.study import Bars, Part, study_page
from fuels.report.tables import Table
from fuels.research.study.compare import Comparison


def write_report(
    folder: Path,
    found: Mapping[str, Comparison],
    tables: Mapping[str, Table],
    notes: Mapping[str, Sequence[str]],
    command: str,
) -> Path:
    """The page of a comparison, or of its stretches of the test part by their names."""
    parts = [Part(name, table, notes[name], bars(found[name])) for name, table in tables.items()]
    title, subtitle = headline(next(iter(found.values())))
    return write_page(folder / NAME, study_page(title, subtitle, command, parts))


def bars(comparison: Comparison) -> Bars:
    """The mean MSE of every row, with its spread over seeds."""
    rows = comparison.rows
    return Bars(
        "Mean squared error on the test part (z-scored, shorter is better)",
        {row.name: row.mean() for row in rows},
        {row.name: row.spread() for row in rows},
        [row.name for row in comparison.methods],
    )


def headline(comparison: Comparison) -> tuple[str, str]:
    """Title and subtitle of the report."""
    record, seeds = comparison.record, len(comparison.rows[0].records)
    title = f"Comparison on {record.data_name}"
    made = ", synthetic data" if record.data["synthetic"] else ""
    return title, f"{len(comparison.methods)} methods, {seeds} seed{'s' * (seeds != 1)}{made}"
