"""Tables: one helper that writes a table for people and programs, and the table that ends a run."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import rich.table
from rich.console import Console, Group, RenderableType
from rich.text import Text

from fuels.evaluation.outcome import Outcome, best_reference
from fuels.report.style import number, short
from fuels.report.terminal import Fitted, Strip

Cell = str | float | None
Best = Literal["", "lowest", "highest"]

BEATEN = "Note"  # label of the sentence that a reference does better


@dataclass(frozen=True)
class Column:
    """A heading, what its numbers are measured in, and which of them is the best one."""

    name: str
    unit: str = ""
    best: Best = ""

    @property
    def heading(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers, shown with four digits and the best of a column marked."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    title: str = ""

    def to_markdown(self) -> str:
        """A pipe table, best values in bold."""
        bold = self._shown("**{}**")
        numeric = [self._is_numeric(i) for i in range(len(self.columns))]
        lines = [
            [column.heading for column in self.columns],
            ["---:" if right else "---" for right in numeric],
            *[[text.replace("|", "\\|") for text in row] for row in bold],
        ]
        head = [f"**{self.title}**", ""] if self.title else []
        return "\n".join([*head, *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"

    def to_csv(self) -> str:
        """Every digit and no marks; empty where there is no value."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.heading for column in self.columns])
        for row in self.rows:
            writer.writerow(["" if _absent(cell) else cell for cell in row])
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
            Strip(column.name, column.unit, *self._body(cells, i), self._winners(i))
            for i, column in enumerate(self.columns)
        ]
        shown = Fitted(strips)
        return Group(Text(self.title, "bold"), "", shown) if self.title else shown

    # -- inside --------------------------------------------------------------------------------

    def _is_numeric(self, column: int) -> bool:
        return not any(isinstance(row[column], str) for row in self.rows)

    def _winners(self, column: int) -> set[int]:
        """Rows that hold the best value of a column; those that look equal share the honour."""
        best = self.columns[column].best
        found = {i: row[column] for i, row in enumerate(self.rows)}
        values = {i: v for i, v in found.items() if not isinstance(v, str) and not _absent(v)}
        if not best or len(self.rows) < 2 or not values:
            return set()
        chosen = (min if best == "lowest" else max)(v for v in values.values() if v is not None)
        return {i for i, value in values.items() if number(value) == number(chosen)}

    def _shown(self, mark: str) -> list[list[str]]:
        """Cells as text, [row][column], the best ones put into `mark`."""
        winners = [self._winners(i) for i in range(len(self.columns))]
        return [
            [
                mark.format(_text(cell)) if place in winners[i] else _text(cell)
                for i, cell in enumerate(row)
            ]
            for place, row in enumerate(self.rows)
        ]

    def _aligned(self, mark: str) -> list[list[str]]:
        """Headings, units and rows padded so that decimal points stand in one line."""
        cells = self._shown(mark)
        columns = []
        for i, column in enumerate(self.columns):
            body, numeric = self._body(cells, i)
            lines = [column.name, column.unit, *body]
            width = max(len(line) for line in lines)
            columns.append([line.rjust(width) if numeric else line.ljust(width) for line in lines])
        return [list(line) for line in zip(*columns, strict=True)]

    def _body(self, cells: Sequence[Sequence[str]], column: int) -> tuple[list[str], bool]:
        """The cells of a column, and whether they are numbers: then with blanks behind the point,
        so that they only have to be put to the right."""
        body, numeric = [row[column] for row in cells], self._is_numeric(column)
        if numeric:
            tails = [len(text) - len(_whole(text)) for text in body]
            body = [text.ljust(len(_whole(text)) + max(tails)) for text in body]
        return body, numeric


def _absent(cell: Cell) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else number(cell)


def _whole(text: str) -> str:
    """What stands before the decimal point, or before a mark."""
    return text.rstrip("*").partition(".")[0]


# -- the end of a run --------------------------------------------------------------------------


def results(outcome: Outcome) -> Table:
    """The method first, then the references, with their errors on the test part."""
    panel = outcome.dataset.panel
    unit = "data's unit" if panel.unit == "value" else panel.unit
    rows: list[list[Cell]] = []
    for name, scores in outcome.scores.items():
        means = scores.means()
        rows.append([name, *(means[key] for key in ("mse", "mae", "mse_unit", "mae_unit"))])
    clients = len(outcome.dataset.ids)
    data = f"{panel.name}{' (synthetic data)' if panel.synthetic else ''}"
    return Table(
        columns=[
            Column("forecast"),
            Column("MSE", "z-scored", "lowest"),
            Column("MAE", "z-scored", "lowest"),
            Column("MSE", f"{unit}²", "lowest"),
            Column("MAE", unit, "lowest"),
        ],
        rows=rows,
        title=f"One-step errors on the test part of {data}, {_count(clients, 'client')}",
    )


def print_outcome(
    outcome: Outcome,
    folder: Path | None = None,
    console: Console | None = None,
) -> None:
    """The results on stdout or the console given: in colour on a terminal, plain elsewhere."""
    console = console or Console()
    known = facts(outcome, folder)
    if not console.is_terminal:
        console.out(to_plain(outcome, folder), end="", highlight=False)
        return
    for table in _tables(outcome):
        console.print("", table.to_rich(), "", sep="\n")
    lines = rich.table.Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(style="dim", no_wrap=True)
    lines.add_column(overflow="fold")
    for label, text in known.items():
        lines.add_row(label, Text(text, "yellow" if label == BEATEN else ""))
    console.print(lines)


def to_plain(outcome: Outcome, folder: Path | None = None) -> str:
    """Tables and facts as text."""
    first, *more = [table.to_plain() for table in _tables(outcome)] or [""]
    table = "\n".join([f"{first}* lowest of its column\n" if first else "", *more, ""])
    known = facts(outcome, folder)
    width = max(len(label) for label in known)
    lines = [f"{label.ljust(width)}  {text}" for label, text in known.items()]
    return table + "\n".join(lines) + "\n"


def _tables(outcome: Outcome) -> list[Table]:
    """The tables of a run, the errors first; none where nothing could be compared."""
    ahead = steps_ahead(outcome)
    return [results(outcome), *([ahead] if ahead else [])] if outcome.scores else []


def print_profile(seconds: Mapping[str, float], console: Console | None = None) -> None:
    """Where the time of a training went, by stage."""
    console = console or Console()
    total = sum(seconds.values())
    shares = {stage: 100 * spent / total if total else 0.0 for stage, spent in seconds.items()}
    table = Table(
        columns=[Column("stage"), Column("time", "s"), Column("share", "%")],
        rows=[[stage, float(spent), shares[stage]] for stage, spent in seconds.items()],
        title=f"Time by stage, {number(total)} s in all",
    )
    if console.is_terminal:
        console.print("", table.to_rich(), sep="\n")
    else:
        console.out("\n" + table.to_plain(), end="", highlight=False)


# -- what the table does not say ---------------------------------------------------------------


def facts(outcome: Outcome, folder: Path | None = None) -> dict[str, str]:
    """What a reader of the table should know besides, by label."""
    dataset, history = outcome.dataset, outcome.history
    found: dict[str, str] = {}
    if outcome.scores:
        found |= _against_references(outcome)
        found |= _mixture(outcome)
    else:
        found["No errors"] = "the test part holds no observed value, so there is nothing to compare"
    if history:
        last = history[-1]
        up, down = (number(round(last[key])) for key in ("numbers_up", "numbers_down"))
        rounds = _count(len(history), "round")
        found["Sent"] = f"{up} numbers up and {down} down per client and round; {rounds}"
    found["Model kept"] = kept_model(outcome)
    failures = [text for line in history for text in line.get("failures") or ()]
    if failures:
        found["Failures"] = f"{_count(len(failures), 'upload')} missing or refused, {failures[0]}"
    if dataset.left_out:
        found["Left out"] = _left_out(dataset.left_out)
    if dataset.filled:
        found["Filled"] = f"{_count(dataset.filled, 'missing value')}, none of them a target"
    if dataset.panel.synthetic:
        found["Synthetic data"] = "the errors say nothing about a real network"
    if folder is not None:
        found["Results"] = str(folder)
    return found


def _against_references(outcome: Outcome) -> dict[str, str]:
    """How the method stands against the best reference, in one sentence each."""
    best, title = best_reference(outcome), outcome.title
    if best is None:
        return {}
    own, other = outcome.scores[title], outcome.scores[best]
    both = np.isfinite(own.mse) & np.isfinite(other.mse)
    better, of = int((own.mse[both] < other.mse[both]).sum()), int(both.sum())
    share = f"{better / of:.0%} of the clients ({better} of {of})"
    found = {"Comparison": f"{title} beats {best}, the best reference, for {share}"}
    mine = own.means()["mse"]
    ahead = [name for name, scores in outcome.scores.items() if scores.means()["mse"] < mine]
    if ahead:
        names = ahead[0] if len(ahead) == 1 else f"{', '.join(ahead[:-1])} and {ahead[-1]}"
        verb = "has" if len(ahead) == 1 else "have"
        found[BEATEN] = f"{names} {verb} a lower mean MSE than {title} on these data"
    return found


def _mixture(outcome: Outcome) -> dict[str, str]:
    """How the experts did, who was trusted, and what the intervals hold."""
    mixture = outcome.mixture
    if mixture is None:
        return {}
    mse = number(mixture.scores[mixture.best].means()["mse"])
    bands = zip(mixture.bands.levels, mixture.coverage, mixture.bands.width(), strict=True)
    said = (
        f"{level:g} % hold {100 * covered:.1f} % (mean width {number(float(width))})"
        for level, covered, width in bands
    )
    return {
        "Experts": f"{outcome.title} mixes {len(mixture.names)} local experts, of which alone the"
        f" best is {mixture.best} (MSE {mse}); the personal model led in {mixture.led:.0%} of all"
        " steps",
        "Intervals": f"{', '.join(said)}",
    }


def steps_ahead(outcome: Outcome) -> Table | None:
    """Errors by steps ahead, where the run forecasts several."""
    ahead = outcome.steps_ahead
    if ahead is None:
        return None
    levels = () if outcome.mixture is None or not ahead.coverage else outcome.mixture.bands.levels
    rows: list[list[Cell]] = []
    for h in range(len(next(iter(ahead.mse.values())))):
        row: list[Cell] = [str(h + 1), *(values[h] for values in ahead.mse.values())]
        for level in range(len(levels)):
            row += [100 * ahead.coverage[h][level], ahead.width[h][level]]
        rows.append(row)
    intervals = [
        column
        for level in levels
        for column in (Column(f"in {level:g} %", "%"), Column(f"width {level:g} %", "z-scored"))
    ]
    return Table(
        columns=[Column("steps ahead"), *(Column(name, "MSE") for name in ahead.mse), *intervals],
        rows=rows,
        title="Errors (z-scored) by steps ahead on the test part",
    )


def kept_model(outcome: Outcome) -> str:
    """Which model of the training the errors belong to."""
    first, last = outcome.dataset.split.part("val")
    if outcome.settings.training.keep == "last":
        return "the last one, as asked for"
    if last == first:
        return "the last one, because there is no validation part"
    return "the best one on the validation part"


def _left_out(reasons: Mapping[str, str], shown: int = 3) -> str:
    named = [f"{short(client)} ({reason})" for client, reason in list(reasons.items())[:shown]]
    more = len(reasons) - len(named)
    end = f" and {more} more" if more else ""
    return f"{_count(len(reasons), 'client')}: {', '.join(named)}{end}"


def _count(count: int, thing: str) -> str:
    return f"{number(count)} {thing}{'' if count == 1 else 's'}"
