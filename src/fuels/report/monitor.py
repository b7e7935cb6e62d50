"""What `fuels monitor` prints: errors and coverage next to the test part's, flags and advice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuels.report.facts import count_of, percentage, unit_name
from fuels.report.style import number
from fuels.report.tables import Cell, Column, Table, columns, show

Found = Mapping[str, Any]  # what monitoring/monitor.py found

SPANS = ("last day", "last week", "test part")


def print_monitor(found: Found) -> None:
    """Tables and sentences on stdout."""
    show(tables(found), sentences(found))


def tables(found: Found) -> list[Table]:
    """Errors against naive forecasts; with several steps ahead, errors by step."""
    several = [by_step(found)] if len(found["steps_ahead"]) > 1 else []
    return [errors(found), *several]


def errors(found: Found) -> Table:
    """Errors one step ahead and coverage, by span of time and forecast."""
    unit = unit_name(found, "data's unit")
    windows, title = found["windows"], found["title"]
    levels = list(windows["last week"]["coverage"])
    rows: list[list[Cell]] = []
    for span in SPANS:
        for name, row in windows.get(span, {"errors": {}})["errors"].items():
            covered = windows[span]["coverage"] if name == title else {}
            cells: list[Cell] = [span, name, row["mae"], percentage(row["wape"]), row["mase"]]
            rows.append([*cells, *(percentage(covered.get(level)) for level in levels)])
    inside = (Column(f"in {level} %", "%") for level in levels)
    return Table(
        [*columns(f"span | forecast | MAE ({unit}) | WAPE (%) | MASE"), *inside],
        rows,
        f"Errors one step ahead, {count_of(found['clients'], 'client')}, newest value"
        f" {found['forecasts']['newest_value']}",
    )


def by_step(found: Found) -> Table:
    """MAE over the last week by how far ahead the forecasts were made."""
    rows: list[list[Cell]] = [
        [str(row["steps"]), row["mae"], row["values"]] for row in found["steps_ahead"]
    ]
    return Table(
        columns("steps ahead | MAE | values"), rows, "Errors over the last week by steps ahead"
    )


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
    evidence = [text for text in advice["evidence"] if text not in advice["text"]]
    said += [f"Evidence: {text}." for text in evidence]
    return said
