"""`fuels run`: train one method on one dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fuels.cli import options as opt
from fuels.cli.settings import assemble, check_options, given, source_name
from fuels.config import ENGINES, PRESETS, SCALES, Engine, merge_engine
from fuels.errors import FuelsError, InterruptedRunError
from fuels.methods.registry import METHODS

if TYPE_CHECKING:
    from fuels.federation.loop import Loop
    from fuels.report.display import Progress
    from fuels.runs.settings import ResolvedSettings
    from fuels.storage.run_folder import RunFolder

METHOD, OUTPUT, COMPUTE = "Method and training", "Results", opt.COMPUTE


@opt.with_read_options()
def run_command(
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|synthetic:NAME",
            help="A CSV, Parquet, npz or HDF5 file, raw Telecom Italia records (a file or a folder"
            " of them), or built-in synthetic data: synthetic:net, synthetic:sms, synthetic:call."
            " Default: synthetic:net.",
            rich_help_panel=opt.DATA,
        ),
    ] = None,
    clients: opt.Clients = None,
    read: opt.ReadOptions = opt.ReadOptions(),  # noqa: B008
    period: opt.Period = None,
    split: opt.Split = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Method to train: {', '.join(METHODS)}. Default: fuels.",
            autocompletion=opt.complete(METHODS),
            rich_help_panel=METHOD,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(PRESETS),
            help="Base settings: best (richer inputs, a mixture of local experts, intervals) or"
            " paper (the settings of the paper). Default: best.",
            autocompletion=opt.complete(PRESETS),
            rich_help_panel=METHOD,
        ),
    ] = None,
    horizon: Annotated[
        int | None,
        typer.Option(
            metavar="STEPS",
            help="Steps ahead to forecast, each with its own output head. Default: 1.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    holidays: Annotated[
        str | None,
        typer.Option(
            metavar="DATES|COUNTRY",
            help="Public holidays: comma-separated dates, or a country code such as IT (needs"
            " the extra calendar).",
            rich_help_panel=METHOD,
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(SCALES),
            help="Size of the run: quick (24 clients, 30 rounds) or paper (100 clients, 200"
            " rounds). Default: quick for the synthetic data; for your own data, all clients and"
            " the preset's number of rounds.",
            autocompletion=opt.complete(SCALES),
            rich_help_panel=METHOD,
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Training rounds. Default: 40 with preset best, 200 with paper, or the value of"
            " --scale.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Random seed; the same seed gives the same result. Default: 0.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="best|last",
            help="Model to keep for each client: the best on the validation part, or the last."
            " Default: best.",
            autocompletion=opt.complete(("best", "last")),
            rich_help_panel=METHOD,
        ),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Stop after this many rounds without a lower validation error. Default: train for"
            " all rounds.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    warm_start: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Start from the models in this run folder.", rich_help_panel=METHOD
        ),
    ] = None,
    settings_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any other setting by its name in config.toml, e.g. options.tau=0.05 or"
            " model.hidden=64. Can be repeated.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Results folder, new or empty. Default: a new one in runs/.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Read the settings from a file such as a run's config.toml; other options"
            " override it.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Continue the interrupted run in this folder.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    json_: Annotated[
        bool,
        typer.Option(
            "--json", help="Print summary.json instead of tables.", rich_help_panel=OUTPUT
        ),
    ] = False,
    plots: Annotated[bool, typer.Option(help="Draw plots.", rich_help_panel=OUTPUT)] = True,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Show the time taken by each stage.", rich_help_panel=COMPUTE
        ),
    ] = False,
    threads: opt.Threads = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="cpu|cuda",
            help="Device to compute on. Default: cpu.",
            autocompletion=opt.complete(("cpu", "cuda")),
            rich_help_panel=COMPUTE,
        ),
    ] = None,
    engine_: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="|".join(ENGINES),
            help="local (one site in this process) or ray (sites as Ray actors). Default: local.",
            autocompletion=opt.complete(ENGINES),
            rich_help_panel=COMPUTE,
        ),
    ] = None,
    sites: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of sites for --engine ray; they share the clients and threads.",
            rich_help_panel=COMPUTE,
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Ray cluster to use. Default: start Ray on this machine for the run.",
            rich_help_panel=COMPUTE,
        ),
    ] = None,
) -> None:
    """Train personal forecasters and compare them with simple references.

    Without options it trains FUELS on built-in synthetic data in a minute or two. A run writes
    everything to one folder: forecasts, models, errors, plots, and the settings that reproduce it.
    Continue an interrupted run with --resume.

    Example: fuels run --data traffic.csv --clients 50 --rounds 80 --out first
    """
    from fuels.runs.settings import resolve
    from fuels.storage.run_folder import RunFolder, free_folder

    changes: dict[str, Any] = {
        "seed": seed,
        "method": method,
        "data": {
            "source": data,
            "clients": clients,
            **read.changes(),
        },
        "windows": {"period": period, "split": split, "horizon": horizon, "holidays": holidays},
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
            raise FuelsError("--resume continues a run with its own settings; give no others")
        folder, settings, engine = RunFolder.reopen(resume)
        check_options(settings.method, settings.options, str(folder.config))
        if folder.finished:
            raise FuelsError(f"{resume}: this run is finished; there is nothing to resume")
        notes: list[str] = []
    else:
        settings, engine, notes = assemble(changes, preset, scale, config, settings_ or [])
        name = f"{settings.method}-{source_name(settings)}-seed{settings.seed}"
        folder = RunFolder(out or free_folder(Path("runs"), name))
    engine = merge_engine(engine, compute, "command line")
    train(resolve(settings), engine, folder, notes, resume is not None, json_, plots, profile)


def train(
    settings: ResolvedSettings,
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

    from fuels.report.display import progress, working
    from fuels.report.tables import print_outcome, print_profile
    from fuels.report.terminal import say
    from fuels.runs.run import run

    console = Console(stderr=True)

    def watch(loop: Loop) -> Progress:
        for note in () if as_json else notes:  # only now is it certain that the run can start
            say(console, note, "yellow")
        return progress(
            loop.training.rounds,
            loop.round,
            console,
            title=loop.method.title,
            best_score=loop.best_score,
            best_round=loop.best_round,
        )

    if not resuming:
        folder.refuse_used()
    try:
        outcome = run(
            settings,
            engine,
            folder,
            resume=resuming,
            watch=watch,
            plots=plots,
            announce=working(console),
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
    print_outcome(outcome.summary, folder.path)
    if profile:
        print_profile(folder.seconds())
