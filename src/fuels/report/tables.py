"""Tables for people and programs, and the tables and facts printed at the end of a run.

Everything printed about a run is read from its summary, the content of summary.json, so that no
sentence can contradict the file.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import rich.table
from rich.console import Console, Group, RenderableType
from rich.text import Text

from fuels.report.facts import BEATEN, Summary, count_of, facts, percentage, unit_name
from fuels.report.style import number
from fuels.report.terminal import Fitted, Strip, say

Cell = str | float | None
Best = Literal["", "lowest", "highest"]

BETTER: dict[str, Best] = {"↓": "lowest", "↑": "highest"}  # marks in headings


@dataclass(frozen=True)
class Column:
    """A heading, the unit of its numbers, and which of them is best."""

    name: str
    unit: str = ""
    best: Best = ""

    @property
    def heading(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name


def columns(headings: str) -> list[Column]:
    """Columns from text such as "method | MSE (z-scored) ↓": names, units in brackets, and ↓ or ↑
    where the lowest or the highest value is marked as the best."""
    found = []
    for heading in headings.split(" | "):
        text = heading.rstrip(" ↓↑")
        name, _, unit = text.removesuffix(")").partition(" (")
        found.append(Column(name, unit, BETTER.get(heading[-1], "")))
    return found


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers, shown with four digits and the best value of a column marked."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    notes: Sequence[str] = ()  # sentences right below it

    @classmethod
    def of(cls, values: Mapping[Column, Sequence[Cell]], title: str) -> Table:
        """From the values of each column."""
        return cls(list(values), list(zip(*values.values(), strict=True)), title)

    def to_markdown(self) -> str:
        """A pipe table, best values in bold."""
        bold = self._shown("**{}**")
        numeric = [self.is_numeric(i) for i in range(len(self.columns))]
        lines = [
            [column.heading for column in self.columns],
            ["---:" if right else "---" for right in numeric],
            *[[text.replace("|", "\\|") for text in row] for row in bold],
        ]
        head = [f"**{self.title}**", ""] if self.title else []
        return "\n".join([*head, *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"

    def to_csv(self) -> str:
        """All digits and no marks; empty where there is no value."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.heading for column in self.columns])
        for row in self.rows:
            writer.writerow(["" if absent(cell) else cell for cell in row])
        return text.getvalue()

    def to_plain(self) -> str:
        """Aligned text for logs and pipes, best values with a star."""
        names, units, *rows = self._aligned("{}*")
        rule = ["-" * len(name) for name in names]
        lines = [names, *([units] if any(unit.strip() for unit in units) else []), rule, *rows]
        head = [self.title, ""] if self.title else []
        return "\n".join([*head, *("  ".join(line).rstrip() for line in lines)]) + "\n"

    def to_rich(self) -> RenderableType:
        """For a terminal of any width, best values bold and green."""
        cells = self._shown("{}")
        strips = [
            Strip(column.name, column.unit, *self._body(cells, i), self.winners(i))
            for i, column in enumerate(self.columns)
        ]
        shown = Fitted(strips)
        return Group(Text(self.title, "bold"), "", shown) if self.title else shown

    # -- inside --------------------------------------------------------------------------------

    def is_numeric(self, column: int) -> bool:
        return not any(isinstance(row[column], str) for row in self.rows)

    def winners(self, column: int) -> set[int]:
        """Rows with the best value of a column; several if they look equal."""
        best = self.columns[column].best
        found = {i: row[column] for i, row in enumerate(self.rows)}
        values = {i: v for i, v in found.items() if not isinstance(v, str) and not absent(v)}
        if not best or len(self.rows) < 2 or not values:
            return set()
        chosen = (min if best == "lowest" else max)(v for v in values.values() if v is not None)
        return {i for i, value in values.items() if number(value) == number(chosen)}

    def _shown(self, mark: str) -> list[list[str]]:
        """Cells as text, [row][column], the best ones formatted with `mark`."""
        winners = [self.winners(i) for i in range(len(self.columns))]
        return [
            [
                mark.format(_text(cell)) if place in winners[i] else _text(cell)
                for i, cell in enumerate(row)
            ]
            for place, row in enumerate(self.rows)
        ]

    def _aligned(self, mark: str) -> list[list[str]]:
        """Headings, units and rows, padded so that decimal points line up."""
        cells = self._shown(mark)
        columns = []
        for i, column in enumerate(self.columns):
            body, numeric = self._body(cells, i)
            lines = [column.name, column.unit, *body]
            width = max(len(line) for line in lines)
            columns.append([line.rjust(width) if numeric else line.ljust(width) for line in lines])
        return [list(line) for line in zip(*columns, strict=True)]

    def _body(self, cells: Sequence[Sequence[str]], column: int) -> tuple[list[str], bool]:
        """The cells of a column, and whether they are numbers. Numbers get trailing blanks, so that
        right-aligning them lines up the decimal points."""
        body, numeric = [row[column] for row in cells], self.is_numeric(column)
        if numeric:
            tails = [len(text) - len(_whole(text)) for text in body]
            body = [text.ljust(len(_whole(text)) + max(tails)) for text in body]
        return body, numeric


def absent(cell: Cell) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else number(cell)


def _whole(text: str) -> str:
    """The part before the decimal point or a mark."""
    return text.rstrip("*").partition(".")[0]


def show(
    tables: Iterable[Table], notes: Iterable[str] = (), console: Console | None = None
) -> None:
    """Tables and sentences on stdout or the given console: in colour on a terminal, plain
    elsewhere."""
    console = console or Console()
    for table in tables:
        if console.is_terminal:
            console.print("", table.to_rich(), "", sep="\n")
        else:
            marks = "* best in its column\n" if any(column.best for column in table.columns) else ""
            console.out("\n" + table.to_plain() + marks, highlight=False)
    for note in notes:
        say(console, note)


# -- the end of a run --------------------------------------------------------------------------


def results(summary: Summary) -> Table:
    """Errors on the test part: the method first, then the references."""
    data = summary["data"]
    unit = unit_name(data, "data's unit")
    rows: list[list[Cell]] = [
        [name, *(means[key] for key in ("mse", "mae", "mse_unit", "mae_unit"))]
        for name, means in summary["scores"].items()
    ]
    name = f"{data['name']}{' (synthetic data)' if data['synthetic'] else ''}"
    scored, clients = data["clients_scored"], count_of(data["clients"], "client")
    return Table(
        columns(
            f"forecast | MSE (z-scored) ↓ | MAE (z-scored) ↓ | MSE ({unit}²) ↓ | MAE ({unit}) ↓"
        ),
        rows,
        f"One-step errors on the test part of {name},"
        f" {clients if scored == data['clients'] else f'{number(scored)} of {clients}'}",
    )


def print_outcome(
    summary: Summary, folder: Path | None = None, console: Console | None = None
) -> None:
    """The results on stdout or the given console: in colour on a terminal, plain elsewhere."""
    console = console or Console()
    known = facts(summary, folder)
    if not console.is_terminal:
        console.out(to_plain(summary, folder), end="", highlight=False)
        return
    show(_tables(summary), console=console)
    lines = rich.table.Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(style="dim", no_wrap=True)
    lines.add_column(overflow="fold")
    for label, text in known.items():
        lines.add_row(label, Text(text, "yellow" if label == BEATEN else ""))
    console.print(lines)


def to_plain(summary: Summary, folder: Path | None = None) -> str:
    """Tables and facts as text."""
    first, *more = [table.to_plain() for table in _tables(summary)] or [""]
    table = "\n".join([f"{first}* lowest in its column\n" if first else "", *more, ""])
    known = facts(summary, folder)
    width = max(len(label) for label in known)
    lines = [f"{label.ljust(width)}  {text}" for label, text in known.items()]
    return table + "\n".join(lines) + "\n"


def _tables(summary: Summary) -> list[Table]:
    """The tables of a run, the errors first; none if nothing could be compared."""
    ahead = steps_ahead(summary)
    return [results(summary), *([ahead] if ahead else [])] if summary["scores"] else []


def print_profile(seconds: Mapping[str, float], console: Console | None = None) -> None:
    """How the training time is spread over the stages."""
    total = sum(seconds.values())
    shares = {stage: 100 * spent / total if total else 0.0 for stage, spent in seconds.items()}
    rows: list[list[Cell]] = [
        [stage, float(spent), shares[stage]] for stage, spent in seconds.items()
    ]
    title = f"Time by stage, {number(total)} s in total"
    show([Table(columns("stage | time (s) | share (%)"), rows, title)], console=console)


def steps_ahead(summary: Summary) -> Table | None:
    """Errors by steps ahead, if the run forecasts several."""
    ahead = summary.get("steps_ahead")
    if ahead is None:
        return None
    levels = list(summary["mixture"]["intervals"]) if ahead["coverage"] else []
    heads = [Column("steps ahead"), *(Column(name, "MSE") for name in ahead["mse"])]
    for level in levels:
        heads += [Column(f"in {level} %", "%"), Column(f"width {level} %", "z-scored")]
    pinball = ahead.get("pinball") if levels else None
    if pinball is not None:
        heads.append(Column("pinball loss", "z-scored"))
    rows: list[list[Cell]] = []
    for h in range(len(next(iter(ahead["mse"].values())))):
        row: list[Cell] = [str(h + 1), *(values[h] for values in ahead["mse"].values())]
        for level in range(len(levels)):
            row += [percentage(ahead["coverage"][h][level]), ahead["width"][h][level]]
        rows.append(row if pinball is None else [*row, pinball[h]])
    return Table(heads, rows, "Errors (z-scored) by steps ahead on the test part")
