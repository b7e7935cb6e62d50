"""What `fuels backtest` prints: errors by model, and by steps ahead."""

from __future__ import annotations

from pathlib import Path

from fuels.report.facts import Summary, count_of, percentage, unit_name
from fuels.report.style import number
from fuels.report.tables import Cell, Column, Table, columns, show


def print_backtest(summary: Summary, folder: Path) -> None:
    """Tables and sentences on stdout."""
    tables = [errors(summary), *([by_step(summary)] if summary["horizon"] > 1 else [])]
    where = f"Forecasts, errors by client and settings are in {folder}."
    show(tables, [*sentences(summary), where])


def errors(summary: Summary) -> Table:
    """Errors by model on the data's own scale, means over the clients."""
    data, rows = summary["data"], summary["errors"]
    unit = unit_name(data, "data's unit")
    levels = [name for name in rows[0] if name.startswith("coverage-")]
    headings = f"forecast | MSE ({unit}²) ↓ | MAE ({unit}) ↓ | WAPE (%) ↓ | MASE ↓ | bias ({unit})"
    if levels:
        headings += f" | pinball loss ({unit}) ↓"
    table: list[list[Cell]] = []
    for row in rows:
        cells: list[Cell] = [row["model"], row["mse"], row["mae"], percentage(row["wape"])]
        cells += [row["mase"], row["bias"]]
        cells += [row.get("pinball")] if levels else []
        table.append([*cells, *(percentage(row.get(name)) for name in levels)])
    windows = count_of(summary["windows"], "window")
    synthetic = " (synthetic data)" if data["synthetic"] else ""
    inside = (Column(f"in {name.removeprefix('coverage-')} %", "%") for name in levels)
    return Table(
        [*columns(headings), *inside],
        table,
        f"Errors on {data['name']}{synthetic}: {windows} of {count_of(summary['horizon'], 'step')},"
        f" {count_of(rows[0]['clients'], 'client')}",
    )


def by_step(summary: Summary) -> Table:
    """MAE by model and steps ahead."""
    steps = sorted({row["steps_ahead"] for row in summary["by_step"]})
    found = {(row["model"], row["steps_ahead"]): row["mae"] for row in summary["by_step"]}
    models = [row["model"] for row in summary["errors"]]
    return Table(
        [Column("steps ahead"), *(Column(model, "MAE") for model in models)],
        [[str(step), *(found.get((model, step)) for model in models)] for step in steps],
        "MAE by steps ahead",
    )


def sentences(summary: Summary) -> list[str]:
    """What the tables say."""
    found = {row["model"]: row for row in summary["errors"]}
    best, own = summary["lower_for"], found[summary["method"]]
    said = [f"The windows reach from {summary['from']} to {summary['to']}."]
    other = found[best["reference"]]["mae"]
    if other:
        change = 100 * (own["mae"] / other - 1)
        side = "below" if change < 0 else "above"
        said.append(
            f"The MAE of {summary['method']} is {number(abs(change), 3)} % {side} that of the best"
            f" naive forecast ({best['reference']}), and lower for {best['clients']} of"
            f" {count_of(best['of'], 'client')}."
        )
    return said
