"""What `fuels monitor` prints: errors and coverage next to the test part's, flags and advice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from fuels.report.facts import count_of
from fuels.report.style import number
from fuels.report.tables import Cell, Column, Table
from fuels.report.terminal import say

Found = Mapping[str, Any]  # what monitoring/monitor.py found

SPANS = ("last day", "last week", "test part")


def print_monitor(found: Found, console: Console | None = None) -> None:
    """Tables and sentences on stdout or the given console."""
    console = console or Console()
    for table in tables(found):
        if console.is_terminal:
            console.print("", table.to_rich(), "", sep="\n")
        else:
            console.out(table.to_plain(), highlight=False)
    for sentence in sentences(found):
        say(console, sentence)


def tables(found: Found) -> list[Table]:
    """Errors against naive forecasts; with several steps ahead, errors by step."""
    several = [by_step(found)] if len(found["steps_ahead"]) > 1 else []
    return [errors(found), *several]


def errors(found: Found) -> Table:
    """Errors one step ahead and coverage, by span of time and forecast."""
    unit = "data's unit" if found["unit"] == "value" else found["unit"]
    windows, title = found["windows"], found["title"]
    levels = list(windows["last week"]["coverage"])
    columns = [
        Column("span"),
        Column("forecast"),
        Column("MAE", unit),
        Column("WAPE", "%"),
        Column("MASE"),
        *(Column(f"in {level} %", "%") for level in levels),
    ]
    rows: list[list[Cell]] = []
    for span in SPANS:
        for name, row in windows.get(span, {"errors": {}})["errors"].items():
            inside = windows[span]["coverage"] if name == title else {}
            cells: list[Cell] = [span, name, row["mae"], _percent(row["wape"]), row["mase"]]
            rows.append([*cells, *(_percent(inside.get(level)) for level in levels)])
    return Table(
        columns,
        rows,
        f"Errors one step ahead, {count_of(found['clients'], 'client')}, newest value"
        f" {found['forecasts']['newest_value']}",
    )


def by_step(found: Found) -> Table:
    """MAE over the last week by how far ahead the forecasts were made."""
    rows: list[list[Cell]] = [
        [str(row["steps"]), row["mae"], row["values"]] for row in found["steps_ahead"]
    ]
    columns = [Column("steps ahead"), Column("MAE"), Column("values")]
    return Table(columns, rows, "Errors over the last week by steps ahead")


def sentences(found: Found) -> list[str]:
    """What the figures say."""
    counts = found["forecasts"]
    said = [
        f"{count_of(counts['origins'], 'past forecast')} kept; {number(counts['steps_forecast'])}"
        f" of {count_of(counts['steps'], 'step')} since {counts['first']} have one, one step ahead."
    ]
    for span in SPANS[:2]:
        about = found["windows"][span].get("errors_of_test")
        if about is not None and about["ratio"] is not None:
            usual = ""
            if about["low"] is not None:
                usual = f" (99 % range {number(about['low'], 3)} to {number(about['high'], 3)})"
            said.append(
                f"Errors of the {span}: {number(about['ratio'], 3)} times those of the test part"
                f"{usual}."
            )
    needed = {"errors": "a test part of three periods", "values": "the run's own data"}
    said += [
        f"Drift of {what} is not watched: that needs {source} in the run folder."
        for what, source in needed.items()
        if what not in found["drift"]
    ]
    said += [f"Flag: {flag['text']}." for flag in found["flags"]] or ["No flags."]
    advice = found["retrain"]
    said.append(f"Advice: {advice['text']}.")
    said += [f"Evidence: {text}." for text in advice["evidence"]]
    return said


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
