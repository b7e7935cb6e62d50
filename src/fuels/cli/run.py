"""`fuels run`: train one method on one dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fuels.cli import options as opt
from fuels.cli.settings import (
    assemble,
    check_options,
    given,
    private_preset,
    source_name,
)
from fuels.config import ENGINES, PRESETS, SCALES, merge_engine
from fuels.errors import FuelsError, InterruptedRunError

if TYPE_CHECKING:
    from fuels.federation.loop import Loop
    from fuels.report.display import Progress

METHOD, OUTPUT, COMPUTE = opt.METHOD, opt.RESULTS, opt.COMPUTE


@opt.with_read_options()
def run_command(
    data: str | None = opt.DATA_SOURCE,
    clients: int | None = opt.CLIENTS,
    read: opt.ReadOptions = opt.ReadOptions(),
    period: int | None = opt.PERIOD,
    split: str | None = opt.SPLIT,
    method: str | None = opt.METHOD_NAME,
    preset: str | None = opt.option(
        "|".join(PRESETS),
        "Base settings: best (richer inputs, a mixture of local experts, intervals), private (only"
        " noised sums are shared) or paper (the settings of the paper). Default: best.",
        METHOD,
    ),
    privacy: str | None = opt.option(
        "epsilon=N,...",
        "Preset private, with this budget: only noised sums are shared, and the personal models are"
        " trained alone. More parts: delta=, unit=hour|day|client, relation=removed|replaced,"
        " scale=FILE, ledger=FILE, groups=N; see fuels privacy plan.",
        METHOD,
    ),
    horizon: int | None = opt.option(
        "STEPS", "Steps ahead to forecast, each with its own output head. Default: 1.", METHOD
    ),
    holidays: str | None = opt.option(
        "DATES|COUNTRY",
        "Public holidays: comma-separated dates, or a country code such as IT (needs"
        " the extra calendar).",
        METHOD,
    ),
    implausible: str | None = opt.IMPLAUSIBLE,
    at_least: str | None = opt.AT_LEAST,
    at_most: str | None = opt.AT_MOST,
    scale: str | None = opt.option(
        "|".join(SCALES),
        "Size of the run: quick (24 clients, 30 rounds) or paper (100 clients, 200"
        " rounds). Default: quick for the synthetic data; for your own data, all clients and"
        " the preset's number of rounds.",
        METHOD,
    ),
    rounds: int | None = opt.option(
        "N",
        "Training rounds. Default: 40 with preset best, 200 with paper, or the value of --scale.",
        METHOD,
    ),
    seed: int | None = opt.option(
        "N", "Random seed; the same seed gives the same result. Default: 0.", METHOD
    ),
    keep: str | None = opt.option(
        "best|last",
        "Model to keep for each client: the best on the validation part, or the last."
        " Default: best.",
        METHOD,
    ),
    patience: int | None = opt.option(
        "N",
        "Stop after this many rounds without a lower validation error. Default: train for"
        " all rounds.",
        METHOD,
    ),
    warm_start: Path | None = opt.option(
        "RUN", "Start from the models in this run folder.", METHOD
    ),
    settings_: list[str] | None = opt.option(
        "KEY=VALUE",
        "Any other setting by its name in config.toml, e.g. options.tau=0.05 or"
        " model.hidden=64. Can be repeated.",
        METHOD,
        name="--set",
    ),
    out: Path | None = opt.NEW_FOLDER,
    config: Path | None = opt.option(
        "FILE",
        "Read the settings from a file such as a run's config.toml; other options override it.",
        OUTPUT,
    ),
    resume: Path | None = opt.option("DIR", "Continue the interrupted run in this folder.", OUTPUT),
    json_: bool = opt.SUMMARY,
    plots: bool = opt.flag("Draw plots and write report.html.", OUTPUT, default=True),
    track: list[str] | None = opt.option(
        "tensorboard|mlflow",
        "Also show the run in this tool (an extra of the same name). Can be repeated.",
        OUTPUT,
    ),
    profile: bool = opt.flag("Show the time taken by each stage.", COMPUTE, name="--profile"),
    threads: int | None = opt.THREADS,
    device: str | None = opt.option("cpu|cuda", "Device to compute on. Default: cpu.", COMPUTE),
    engine_: str | None = opt.option(
        "|".join(ENGINES),
        "local (one site in this process) or ray (sites as Ray actors). Default: local.",
        COMPUTE,
        name="--engine",
    ),
    sites: int | None = opt.option(
        "N", "Number of sites for --engine ray; they share the clients and threads.", COMPUTE
    ),
    address: str | None = opt.option(
        "HOST:PORT", "Ray cluster to use. Default: start Ray on this machine for the run.", COMPUTE
    ),
) -> None:
    """Train personal forecasters and compare them with simple references.

    Without options it trains FUELS on built-in synthetic data in a minute or two. A run writes
    everything to one folder: forecasts, models, errors, plots, and the settings that reproduce it.
    Continue an interrupted run with --resume.

    Example: fuels run --data traffic.csv --clients 50 --rounds 80 --out first
    """
    from rich.console import Console

    from fuels.report.display import loop_progress, working
    from fuels.report.tables import print_outcome, print_profile
    from fuels.report.terminal import say
    from fuels.runs.run import run
    from fuels.runs.settings import resolve
    from fuels.storage.run_folder import RunFolder, free_folder
    from fuels.tracking.trackers import opened

    changes = given(
        {
            "seed": seed,
            "method": method,
            "data": {"source": data, "clients": clients, "implausible": implausible}
            | read.changes(),
            "windows": {"period": period, "split": split, "horizon": horizon, "holidays": holidays},
            "mixture": {"at_least": at_least, "at_most": at_most},
            "training": {
                "rounds": rounds,
                "keep": keep,
                "patience": patience,
                "warm_start": warm_start,
            },
        }
    )
    compute = {"threads": threads, "device": device, "sites": sites, "address": address}
    compute = given({**compute, "transport": engine_})
    if resume is not None:
        if changes or config or out or settings_ or preset or privacy or scale:
            raise FuelsError("--resume continues a run with its own settings; give no others")
        folder, settings, engine = RunFolder.reopen(resume)
        check_options(settings.method, settings.options, str(folder.config))
        folder.refuse_finished()
        notes: list[str] = []
    else:
        if privacy is not None:
            preset, changes["privacy"] = private_preset(preset, privacy)
        settings, engine, notes = assemble(changes, preset, scale, config, settings_ or [])
        name = f"{settings.method}-{source_name(settings)}-seed{settings.seed}"
        folder = RunFolder(out or free_folder(Path("runs"), name))
    engine, resolved = merge_engine(engine, compute, "command line"), resolve(settings)
    if resume is None:
        folder.refuse_used()
    console = Console(stderr=True)

    def watch(loop: Loop) -> Progress:
        for note in () if json_ else notes:  # only now is it certain that the run can start
            say(console, note, "yellow")
        return loop_progress(loop, console, loop.method.title)

    try:
        with opened(track or [], settings, folder.path) as trackers:
            outcome = run(
                resolved,
                engine,
                folder,
                resume=resume is not None,
                watch=watch,
                trackers=trackers,
                plots=plots,
                announce=working(console),
            )
            for tracker in trackers:
                tracker.finish(outcome.summary, folder.path)
    except KeyboardInterrupt:
        if not folder.config.exists():
            raise InterruptedRunError(
                "interrupted before the first round; nothing was written"
            ) from None
        again = f"continue with: fuels run --resume {folder.path}"
        raise InterruptedRunError(f"interrupted; {again}") from None
    if json_:
        typer.echo(json.dumps(outcome.summary, indent=2))
        return
    print_outcome(outcome.summary, folder.path)
    if profile:
        print_profile(folder.seconds())
