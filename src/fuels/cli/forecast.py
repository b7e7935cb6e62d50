"""`fuels forecast`: the next values of every client from the newest data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fuels.cli import options as opt
from fuels.errors import FuelsError


def forecast_command(
    run: Annotated[Path, typer.Argument(help="Run folder, or its models.safetensors.")],
    data: Annotated[
        Path | None,
        typer.Option(help="File with the newest values. Without it: the data of the run."),
    ] = None,
    horizon: Annotated[
        int,
        typer.Option(help="Steps ahead; beyond the first, forecasts feed on forecasts.", min=1),
    ] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Write .parquet or .csv here instead of printing.")
    ] = None,
    ids: opt.Ids = None,
    resample: opt.Resample = None,
    how: opt.How = None,
    start: opt.From = None,
    end: opt.To = None,
    client_column: opt.ClientColumn = None,
    time_column: opt.TimeColumn = None,
    value_column: opt.ValueColumn = None,
    timezone: opt.Timezone = None,
    missing: opt.Missing = None,
    activity: opt.Activity = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the output file if it exists.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Forecast the next value, or several, for every client that has a model.

    Works where the models are, alone: no server and no other site is needed.
    """
    from dataclasses import replace

    from fuels.build import load_panel
    from fuels.config import Settings, read_config
    from fuels.forecast import forecast
    from fuels.forecast_table import forecast_table, write_table
    from fuels.models import load_models

    if out is not None and out.exists() and not overwrite:
        raise FuelsError(f"{out} exists; choose another name or give --overwrite")
    if out is not None and out.suffix not in (".parquet", ".csv"):
        raise FuelsError(f"{out}: forecasts are written as .parquet or .csv")
    if not run.exists():
        raise FuelsError(f"{run}: there is no such run")
    if (run / "config.toml").is_file() and not (run / "models.safetensors").is_file():
        raise FuelsError(f"{run}: this run is not finished; continue it: fuels run --resume {run}")
    models = load_models(run / "models.safetensors" if run.is_dir() else run)
    config = (run if run.is_dir() else run.parent) / "config.toml"
    settings = read_config(config)[0] if config.is_file() else Settings()
    given: dict[str, Any] = {
        "source": None if data is None else str(data),
        "ids": opt.parse_ids(ids),
        "resample": resample,
        "how": how,
        "start": start,
        "end": end,
        "client_column": client_column,
        "time_column": time_column,
        "value_column": value_column,
        "timezone": timezone,
        "missing": missing,
        "activity": activity,
    }
    changes = {key: value for key, value in given.items() if value is not None}
    if data is not None:  # new data come as they are: the run's span and clients do not limit them
        fresh = {"start": "", "end": "", "ids": (), "activity": "", "coordinates": ""}
        changes = {**fresh, **changes}
    panel = load_panel(replace(settings, data=replace(settings.data, **changes)))
    result = forecast(models, panel, horizon)
    strangers, silent = result.unknown, set(models.ids) - set(result.ids)
    if data is not None and strangers:
        typer.echo(f"note: no model for {listed(strangers)} of the data", err=True)
    if data is not None and silent:
        typer.echo(f"note: no data for the models of {listed(sorted(silent))}", err=True)
    table = forecast_table(result)
    if out is not None:
        write_table(table, out)
        typer.echo(f"{len(table)} forecasts in {out}", err=True)
    elif json_:
        typer.echo(json.dumps(table.to_dicts(), default=str, indent=2))
    else:
        typer.echo(table.write_csv(), nl=False)


def listed(clients: Sequence[str]) -> str:
    """`3 clients (a, b, c)`, the first few by name."""
    more = ", ..." if len(clients) > 5 else ""
    return f"{len(clients)} clients ({', '.join(clients[:5])}{more})"
