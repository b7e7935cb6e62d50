"""The paper's published figures, for comparison with ours.

Liu et al., "Personalized Federated Learning for Spatio-Temporal Forecasting: A Dual Semantic
Alignment-Based Contrastive Approach": test errors, on a scale that it does not name, for 100 cells
of Trentino (SMS, Call, Net). Those data were not available, so the size of our errors cannot be
compared with these; the order of the methods and the numbers sent can.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fuels.report import style
from fuels.report.tables import Cell, Column, Table
from fuels.research.experiments.base import Result

HEADINGS = [
    f"{data} {error}" for data in ("SMS", "Call", "Net", "average") for error in ("MSE", "MAE")
]
TABLES: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
UNDER_THRESHOLD = {"FUELS": 87, "FedRep": 72, "pFedMe": 80, "PerFedAvg": 81}  # %, Net, MSE < 1.5

NOT_COMPARABLE = (
    "The paper's errors are for 100 cells of Trentino, whose data were not available: only the"
    " order of the rows and the numbers sent can be compared with ours, not the size of the errors."
)


def with_paper_errors(ours: Table, printed: Mapping[str, Sequence[float]], name: str = "") -> Table:
    """Our table with the paper's MSE and MAE after our errors; empty where it shows none."""
    heading = f"paper {name}".rstrip()
    rows: list[list[Cell]] = []
    for row in ours.rows:
        errors = printed.get(str(row[0]), ())
        rows.append([*row[:5], *([f"{error:.3f}" for error in errors] or ["", ""]), *row[5:]])
    papers = [Column(f"{heading} {measure}", "as printed") for measure in ("MSE", "MAE")]
    return Table([*ours.columns[:5], *papers, *ours.columns[5:]], rows, ours.title)


def beside(name: str, ours: Table, figure: style.Figure, text: Sequence[str]) -> Result:
    """The result of the experiment `name`: our table next to the paper's, and a figure."""
    tables = {name: ours, f"{name}-paper": table(name, ours.columns[0].name)}
    return Result(tables, {name: figure}, [*text, NOT_COMPARABLE])


def table(name: str, first: str = "method") -> Table:
    """A table of the paper, digit for digit."""
    found = TABLES[name]
    errors: Mapping[str, Sequence[float]] = found["errors"]
    given = HEADINGS[: len(next(iter(errors.values())))]
    columns = [Column(first), *(Column(heading, "as printed") for heading in given)]
    rows: list[list[Cell]] = [[n, *(f"{e:.3f}" for e in own)] for n, own in errors.items()]
    if sent := found.get("sent"):
        columns.append(Column("sent", "numbers up per client and round"))
        rows = [[*row, sent.get(row[0])] for row in rows]
    return Table(columns, rows, f"The paper's figures, Trentino ({found['table']})")
