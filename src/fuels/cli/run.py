"""`fuels run`: train one method on one dataset."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fuels.cli import options as opt
from fuels.config import (
    PRESETS,
    SCALES,
    Engine,
    Settings,
    assignment,
    merge,
    merge_engine,
    nearest,
    read_config,
)
from fuels.errors import FuelsError, InterruptedRunError

if TYPE_CHECKING:
    from fuels.report.folder import RunFolder

METHOD, OUTPUT, COMPUTE = "Method and training", "Results", "Computation"


def run_command(
    data: Annotated[
        str,
        typer.Option(
            help="A CSV, Parquet, npz or HDF5 file, raw telecom records (file or folder), or"
            " synthetic:net, synthetic:call, synthetic:sms. Without it: synthetic:net.",
            rich_help_panel=opt.DATA,
        ),
    ] = "",
    clients: opt.Clients = None,
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
    coordinates: opt.Coordinates = None,
    period: Annotated[
        int | None,
        typer.Option(help="Steps in a period: 24 for hourly data.", rich_help_panel=opt.DATA),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Whole periods for train/validation/test, e.g. 40/11/11. Without it: in this"
            " proportion.",
            rich_help_panel=opt.DATA,
        ),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Method to train.", rich_help_panel=METHOD)
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Where the settings start: paper (every setting of the paper).",
            rich_help_panel=METHOD,
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            help="quick (24 clients, 30 rounds) or paper (100 clients, 200 rounds). Without data:"
            " quick.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Training rounds.", rich_help_panel=METHOD)
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Everything random follows from it.", rich_help_panel=METHOD),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            help="Model kept per client: best (on the validation part) or last.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            help="Stop after this many rounds without a better validation error.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    warm_start: Annotated[
        Path | None,
        typer.Option(help="Start from the models of this run folder.", rich_help_panel=METHOD),
    ] = None,
    settings_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any other setting by its name in config.toml, e.g. options.tau=0.05 or"
            " model.hidden=64. May be given several times.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results; new or empty.", rich_help_panel=OUTPUT),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Settings from a config.toml; other options still change them.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Continue the interrupted run in this folder.", rich_help_panel=OUTPUT),
    ] = None,
    json_: Annotated[
        bool,
        typer.Option(
            "--json", help="Print summary.json instead of tables.", rich_help_panel=OUTPUT
        ),
    ] = False,
    plots: Annotated[bool, typer.Option(help="Draw the pictures.", rich_help_panel=OUTPUT)] = True,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Show where the time went.", rich_help_panel=COMPUTE),
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(
            help="Worker threads. Without it: all cores this process may use.",
            rich_help_panel=COMPUTE,
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda.", rich_help_panel=COMPUTE)
    ] = None,
    engine_: Annotated[
        str | None,
        typer.Option(
            "--engine",
            help="local (one site in this process) or ray (sites as Ray actors).",
            rich_help_panel=COMPUTE,
        ),
    ] = None,
    sites: Annotated[
        int | None,
        typer.Option(
            help="Sites of --engine ray; they share clients and threads.", rich_help_panel=COMPUTE
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Ray cluster to use. Without it Ray is started on this machine and ended after.",
            rich_help_panel=COMPUTE,
        ),
    ] = None,
) -> None:
    """Train personal forecasters and compare them with simple references.

    Without options: FUELS on an embedded synthetic federation, small enough for a minute or two.
    Results lie in a run folder (runs/... unless --out is given): forecasts, models, pictures,
    figures, and the config that reproduces the run. An interrupted run goes on with --resume.
    """
    from fuels.report.folder import RunFolder, free_folder

    changes: dict[str, Any] = {
        "seed": seed,
        "method": method,
        "data": {
            "source": data or None,
            "clients": clients,
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
            "coordinates": coordinates,
        },
        "windows": {"period": period, "split": split},
        "training": {
            "rounds": rounds,
            "keep": keep,
            "patience": patience,
            "warm_start": warm_start,
        },
    }
    changes = given(changes)
    compute = given(
        {
            "threads": threads,
            "device": device,
            "transport": engine_,
            "sites": sites,
            "address": address,
        }
    )
    if resume is not None:
        if changes or config or out or settings_ or preset or scale:
            raise FuelsError("--resume continues a run as it was begun; it takes no other settings")
        folder, settings, engine = RunFolder.reopen(resume)
        if folder.finished:
            raise FuelsError(f"{resume}: this run is finished, there is nothing to continue")
        notes: list[str] = []
    else:
        settings, engine, notes = assemble(changes, preset, scale, config, settings_ or [])
        name = f"{settings.method}-{source_name(settings)}-seed{settings.seed}"
        folder = RunFolder(out or free_folder(Path("runs"), name))
    engine = merge_engine(engine, compute, "command line")
    train(settings, engine, folder, notes, resume is not None, json_, plots, profile)


def given(changes: dict[str, Any]) -> dict[str, Any]:
    """Only what was given on the command line; paths as text."""
    kept: dict[str, Any] = {}
    for key, value in changes.items():
        inner = given(value) if isinstance(value, dict) else value
        if inner is None or inner == {}:
            continue
        kept[key] = str(inner) if isinstance(inner, Path) else inner
    return kept


def assemble(
    changes: dict[str, Any],
    preset: str | None,
    scale: str | None,
    config: Path | None,
    assignments: list[str],
) -> tuple[Settings, Engine, list[str]]:
    """Config file, then preset, then scale, then options, then --set: the later one wins."""
    settings, engine = (Settings(), Engine()) if config is None else read_config(config)
    notes: list[str] = []
    if preset is not None:
        if preset not in PRESETS:
            raise FuelsError(f"--preset {preset} is unknown{nearest(preset, PRESETS)}")
        settings = merge(settings, {"preset": preset, **PRESETS[preset]}, f"--preset {preset}")
    embedded = config is None and "source" not in changes.get("data", {})
    if scale is None and embedded:
        scale = "quick"
    if scale is not None:
        if scale not in SCALES:
            raise FuelsError(f"--scale {scale} is unknown{nearest(scale, SCALES)}")
        settings = merge(settings, SCALES[scale], f"--scale {scale}")
    settings = merge(settings, changes, "command line")
    for text in assignments:
        change = assignment(text)
        engine = merge_engine(engine, change.pop("engine", {}), f"--set {text}")
        settings = merge(settings, change, f"--set {text}")
    settings = located(settings)
    if scale == "quick":
        notes.append(
            f"--scale quick: {settings.data.clients} clients, {settings.training.rounds} rounds;"
            " the paper's size is --scale paper (100 clients, 200 rounds)"
        )
    return settings, engine, notes


def located(settings: Settings) -> Settings:
    """The settings with whole paths, so that the run can be used from any folder."""

    def whole(path: str) -> str:
        return path if not path or path.startswith("synthetic:") else str(Path(path).resolve())

    data = replace(
        settings.data,
        source=whole(settings.data.source),
        coordinates=whole(settings.data.coordinates),
    )
    training = replace(settings.training, warm_start=whole(settings.training.warm_start))
    return replace(settings, data=data, training=training)


def source_name(settings: Settings) -> str:
    source = settings.data.source
    return source.replace(":", "-") if source.startswith("synthetic:") else Path(source).stem


def train(
    settings: Settings,
    engine: Engine,
    folder: RunFolder,
    notes: list[str],
    resuming: bool,
    as_json: bool,
    plots: bool,
    profile: bool,
) -> None:
    """Run with the display, then print the results."""
    from rich.console import Console

    from fuels.methods import complete
    from fuels.report.display import progress
    from fuels.report.tables import print_outcome, print_profile
    from fuels.run import run

    settings = complete(settings)  # so that config.toml shows every number that was used
    console = Console(stderr=True)
    if not as_json:
        for note in notes:
            console.print(note, style="yellow", highlight=False)
    if not resuming:
        folder.refuse_used()
    try:
        outcome = run(
            settings,
            engine,
            folder,
            resume=resuming,
            watch=lambda loop: progress(
                loop.training.rounds,
                loop.round,
                console,
                title=loop.method.title,
                best_score=loop.best_score,
                best_round=loop.best_round,
            ),
            plots=plots,
        )
    except KeyboardInterrupt:
        if not folder.config.exists():
            raise InterruptedRunError(
                "interrupted before the first round; nothing was written"
            ) from None
        again = f"continue with: fuels run --resume {folder.path}"
        raise InterruptedRunError(f"interrupted; {again}") from None
    if as_json:
        typer.echo(json.dumps(outcome.summary, indent=2))
        return
    print_outcome(outcome, folder.path, notes)
    if profile:
        print_profile(folder.seconds())
