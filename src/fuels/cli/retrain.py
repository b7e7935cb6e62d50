"""`fuels retrain`: train again with a run's settings on everything it remembers."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from fuels.cli import options as opt
from fuels.cli.forecast import read_inputs, read_new
from fuels.config import merge_engine
from fuels.errors import FuelsError


@opt.with_read_options("coordinates", "inputs")
def retrain_command(
    run: Path = opt.argument("RUN", "Finished run folder, or a folder written by Forecaster.save."),
    data: str | None = opt.option(
        "PATH",
        "File with newer values, or several files: separated by commas, a pattern or a folder."
        " Default: only what the run remembers.",
    ),
    out: Path | None = opt.option(
        "DIR", "Folder of the new run, new or empty. Default: a new one next to RUN."
    ),
    read: opt.ReadOptions = opt.ReadOptions(),
    json_: bool = opt.flag("Print summary.json instead of tables.", name="--json"),
    plots: bool = opt.flag("Draw plots.", default=True),
    threads: int | None = opt.THREADS,
) -> None:
    """Train again with the settings of a run, on everything it remembers.

    Trains on the data of the run, the values given to later forecasts (as far back as they are
    kept) and those of --data. All additional periods go to the training part; validation and test
    keep their length. RUN is not changed: use the new folder for forecasts once you are satisfied
    with its errors.

    Example: fuels retrain first --data newest.csv --out second
    """
    from rich.console import Console

    from fuels.forecasting.folder import CONFIG, MODELS
    from fuels.forecasting.memory import held
    from fuels.forecasting.retrain import next_folder, prepare, remembered
    from fuels.forecasting.saved_run import SavedRun
    from fuels.report.display import loop_progress, working
    from fuels.report.tables import print_outcome
    from fuels.runs.run import run as train
    from fuels.runs.settings import resolve
    from fuels.storage.config_file import read_config
    from fuels.storage.run_folder import RunFolder

    with held(run / MODELS if run.is_dir() else run, lambda text: typer.echo(text, err=True)):
        saved = SavedRun.load(run)
        config = saved.folder / CONFIG
        if not config.is_file():
            raise FuelsError(f"{config} is missing: the settings to train with are unknown")
        new = read_new(saved, data, read)
        panel, notes = remembered(saved, new, read_inputs(saved, new, read))
    folder = out or next_folder(run)
    settings, split = prepare(saved, panel, folder)
    for note in (*notes, split, f"the settings of {config}; the new run is in {folder}"):
        typer.echo(f"note: {note}", err=True)
    compute = {} if threads is None else {"threads": threads}
    engine = merge_engine(read_config(config)[1], compute, "command line")
    console = Console(stderr=True)
    outcome = train(
        resolve(settings),
        engine,
        RunFolder(folder),
        watch=lambda loop: loop_progress(loop, console, loop.method.title),
        plots=plots,
        announce=working(console),
    )
    if json_:
        typer.echo(json.dumps(outcome.summary, indent=2))
    else:
        print_outcome(outcome.summary, folder)
    typer.echo(f"forecast from the new run with: fuels forecast {folder}", err=True)
