"""`fuels monitor`: past forecasts compared with what happened."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from fuels.cli import options as opt
from fuels.errors import FuelsError

FAILED = 3  # exit code of --fail-on: not an error of the command
FAIL_ON = ("drift", "retrain", "flags")


def monitor_command(
    run: Path = opt.argument("RUN", "Run folder, or a folder written by Forecaster.save."),
    fail_on: str | None = opt.option(
        "|".join(FAIL_ON),
        "Exit with 3 if all clients together have drifted (drift), if training again is advised now"
        " or soon (retrain), or if there is any flag (flags).",
    ),
    json_: bool = opt.flag("Print everything as JSON.", name="--json"),
) -> None:
    """Compare past forecasts with what happened since, and say when to train again.

    Uses the forecasts that fuels forecast and fuels serve have issued; the run folder keeps those
    of the last 14 periods. Shows errors and coverage of the last day and week next to those of the
    run's test part and of naive forecasts, drift, and whether to train again, with the evidence.
    Changes nothing.

    Example: fuels monitor first --fail-on drift
    """
    from fuels.monitoring.monitor import monitor
    from fuels.report.monitor import print_monitor

    if fail_on is not None and fail_on not in FAIL_ON:
        raise FuelsError(f"--fail-on must be one of {', '.join(FAIL_ON)}, not {fail_on}")
    found = monitor(run)
    if json_:
        typer.echo(json.dumps(found, indent=2))
    else:
        print_monitor(found)
    kinds = {flag["kind"] for flag in found["flags"]}
    failed = {
        "drift": "drift" in kinds,
        "retrain": found["retrain"]["advice"] in ("yes", "soon"),
        "flags": bool(kinds),
    }
    if fail_on is not None and failed[fail_on]:
        raise typer.Exit(FAILED)
