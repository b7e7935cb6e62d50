"""`fuels forecast`: forecasts for every client from the newest data."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fuels.cli import options as opt
from fuels.cli.settings import refuse_idle
from fuels.config import MISSING, Data, Mixture
from fuels.data.merging import listed
from fuels.errors import FuelsError

if TYPE_CHECKING:
    from fuels.data.panel import Panel
    from fuels.forecasting.saved_run import SavedRun

PATIENCE = 10.0  # seconds between lines without a terminal


@opt.with_read_options("coordinates", "unit", "inputs")
def forecast_command(
    run: Path = opt.argument(
        "RUN",
        "Run folder, its models.safetensors, a folder written by Forecaster.save, or a site's"
        " folder, for the site's newest run.",
    ),
    data: str | None = opt.option(
        "PATH",
        "File with the newest values, or several files: separated by commas, a pattern or a folder."
        " Default: only the values that the run remembers.",
    ),
    horizon: int = opt.option(
        "STEPS",
        "Steps ahead. Beyond the horizon that the run was trained for, the personal models"
        " forecast recursively, and the first call fits the experts for these steps.",
        default=1,
        min=1,
    ),
    out: Path | None = opt.option(
        "FILE", "Write the forecasts to this .parquet or .csv file instead of printing them."
    ),
    read: opt.ReadOptions = opt.ReadOptions(),
    implausible: str | None = opt.IMPLAUSIBLE,
    anomalies: Path | None = opt.option(
        "FILE",
        "Write every new value with its anomaly score, a flag and the range of plausible values to"
        " this .parquet or .csv file. Default without new data: the values of the last period.",
    ),
    at_least: str | None = opt.AT_LEAST,
    at_most: str | None = opt.AT_MOST,
    wait: float = opt.option(
        "SECONDS",
        "In a live federation: after storing the new values, wait up to this long for the live"
        " mean of the newest step; then forecast with or without it.",
        default=0.0,
        min=0.0,
    ),
    overwrite: bool = opt.flag("Replace the output file if it exists.", name="--overwrite"),
    forget: bool = opt.flag(
        "Discard past forecasts, the values given to them, and what was learned from these values.",
        name="--forget",
    ),
    json_: bool = opt.flag("Print as JSON.", name="--json"),
) -> None:
    """Forecast the next value, or several, for each client that has a model.

    Prints the forecasts as CSV or writes them to --out: client, time, forecast, and intervals if
    the run has a mixture of experts. The run remembers its own values and those of earlier
    forecasts, so the file may hold just the newest hour, even of one client. The mixture learns
    from values that are up to seven days late. Everything is stored in the run folder. No server or
    other site is needed.

    Example: fuels forecast first --data today.csv --horizon 24 --out next.csv
    """
    from fuels.config import Engine
    from fuels.data.files import check_target
    from fuels.data.screening import drops_implausible
    from fuels.experts.table import forecast_table
    from fuels.forecasting.folder import MODELS, newest_run
    from fuels.forecasting.issued import record
    from fuels.forecasting.memory import held
    from fuels.forecasting.saved_run import SavedRun
    from fuels.storage.tables import screened_table, write_table
    from fuels.training.runtime import set_up

    set_up(Engine())
    run = newest_run(run)
    for target in (out, anomalies):
        if target is not None:
            check_target(target, (".parquet", ".csv"), overwrite)
    if implausible is not None:
        drops_implausible(implausible, mixed=True)
    with held(run / MODELS if run.is_dir() else run, lambda text: typer.echo(text, err=True)):
        saved = SavedRun.load(run, forget=forget)
        adjusted(saved, implausible, at_least, at_most)
        panel = read_new(saved, data, read)
        inputs = read_inputs(saved, panel, read)
        ids = opt.parse_ids(read.ids)
        until = read.end if data is None else None
        with step_counter(horizon) as progress:
            result, notes = saved.forecast(
                panel, horizon, progress=progress, ids=ids, until=until, wait=wait, inputs=inputs
            )
        if until is None:
            record(saved, result)
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    given = set() if panel is None else set(panel.ids)
    if strangers := [client for client in result.unknown if client in given]:
        typer.echo(f"note: no model for {listed(strangers)} in the data", err=True)
    if anomalies is not None and saved.screened is not None:
        write_table(screened_table(saved.screened), anomalies)
    table = forecast_table(result)
    made = len(table) - table["forecast"].null_count()
    if not made:
        raise FuelsError(
            f"{run}: the newest values, which a forecast needs, are missing for every client"
        )
    if out is not None:
        write_table(table, out)
        without = len(table) - made
        empty = f", {without} row{'s' * (without != 1)} without a forecast" if without else ""
        typer.echo(f"{made} forecast{'s' * (made != 1)} in {out}{empty}", err=True)
    elif json_:
        typer.echo(json.dumps(table.to_dicts(), default=str, indent=2))
    else:
        typer.echo(table.write_csv(), nl=False)
    if saved.unsaved:
        raise FuelsError(saved.unsaved)


def adjusted(
    saved: SavedRun, implausible: str | None, at_least: str | None, at_most: str | None
) -> None:
    """Let a run forecast as the options say, where they are given."""
    if at_least is not None or at_most is not None:
        saved.confine(Mixture(at_least=at_least or "", at_most=at_most or ""))
    if implausible == MISSING and saved.settings.privacy.epsilon:
        raise FuelsError(
            "--implausible missing: the guarantee of this run needs --implausible keep, because"
            " whether a value counts as missing depends on others"
        )
    if implausible is not None:
        data = replace(saved.settings.data, implausible=implausible)
        saved.settings = replace(saved.settings, data=data)


def read_new(saved: SavedRun, data: str | None, read: opt.ReadOptions) -> Panel | None:
    """The panel of a file with new values, read as the run's data were; None without a file."""
    from fuels.data.loading import for_new_values, load_panel
    from fuels.data.readers import is_raw
    from fuels.data.sources import find_files

    changes = {key: value for key, value in read.changes().items() if value is not None}
    if data is None:
        if idle := set(changes) - {"ids", "end", "inputs_file"}:
            option = "from" if "start" in idle else sorted(idle)[0].replace("_", "-")
            raise FuelsError(f"--{option} says how a file is read: give the file with --data")
        if not saved.knows_values:
            raise FuelsError(
                f"{saved.folder}: without config.toml, the data of the run are unknown; give the"
                " newest data with --data"
            )
        return None
    raw = any(is_raw(file) for file in find_files(data))
    changes = {"activity": saved.settings.data.activity if raw else "", **changes, "source": data}
    if read.inputs_file is not None:
        changes["inputs_file"] = str(read.inputs_file)
    refuse_idle(Data(**changes))
    settings = replace(saved.settings, data=replace(for_new_values(saved.settings.data), **changes))
    return load_panel(settings, saved.models.step_seconds, strict=False)


def read_inputs(
    saved: SavedRun, new: Panel | None, read: opt.ReadOptions
) -> Callable[[Panel], Panel] | None:
    """What adds the inputs that came with new values, or those of --inputs-file, to a panel."""
    from fuels.data.inputs import with_inputs
    from fuels.data.loading import load_inputs

    if new is not None and new.inputs:
        return lambda panel: with_inputs(panel, new.inputs)
    if read.inputs_file is None:
        return None
    if not saved.settings.data.inputs:
        raise FuelsError(
            f"--inputs-file: {saved.folder} was trained without external inputs; train with them:"
            " fuels run --inputs NAMES"
        )
    own = replace(saved.settings.data, inputs_file=str(read.inputs_file))
    return lambda panel: load_inputs(panel, own)


@contextmanager
def step_counter(horizon: int) -> Iterator[Callable[[int], None]]:
    """Show on stderr for how many steps ahead forecasts are done, and the time left."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("steps ahead", total=horizon)
        begun = shown = time.monotonic()
        done = 0

        def progress(steps: int) -> None:
            nonlocal begun, shown, done
            if steps <= done:  # a second pass: forecasting follows fitting
                begun = shown = time.monotonic()
            done = steps
            bar.update(task, completed=steps)
            if not console.is_terminal and time.monotonic() - shown > PATIENCE:
                shown = time.monotonic()
                left = (shown - begun) / steps * (horizon - steps)
                typer.echo(f"{steps} of {horizon} steps ahead, about {left:.0f} s left", err=True)

        yield progress
