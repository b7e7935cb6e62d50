"""`fuels backtest`: how good forecasts would have been, from several origins in the past."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from fuels.cli import options as opt
from fuels.cli.compare import resumable
from fuels.cli.settings import assemble, given, source_name
from fuels.config import PRESETS, merge_engine
from fuels.errors import FuelsError

BACKTEST, METHOD, OUTPUT = "Backtest", opt.METHOD, opt.RESULTS


@opt.with_read_options()
def backtest_command(
    data: str | None = opt.DATA_SOURCE,
    clients: int | None = opt.option(
        "N|all",
        "Number of clients to draw at random. Default: all.",
        opt.DATA,
        parser=opt.count("--clients"),
    ),
    read: opt.ReadOptions = opt.ReadOptions(),
    period: int | None = opt.PERIOD,
    horizon: int = opt.option(
        "STEPS", "Steps ahead to forecast from each origin.", BACKTEST, default=24
    ),
    windows: int = opt.option(
        "N", "Number of windows; the last one ends with the data.", BACKTEST, default=7
    ),
    step: int | None = opt.option(
        "STEPS", "Steps from one origin to the next. Default: --horizon.", BACKTEST
    ),
    refit: int = opt.option(
        "N",
        "Train again for every Nth window. 0: train once, on the data before the first window; the"
        " experts still learn from each value as it arrives.",
        BACKTEST,
        default=0,
    ),
    method: str | None = opt.METHOD_NAME,
    preset: str | None = opt.option("|".join(PRESETS), "Base settings. Default: best.", METHOD),
    rounds: int | None = opt.option(
        "N", "Rounds of each training. Default: those of the preset.", METHOD
    ),
    seed: int | None = opt.option("N", "Random seed. Default: 0.", METHOD),
    at_least: str | None = opt.AT_LEAST,
    at_most: str | None = opt.AT_MOST,
    settings_: list[str] | None = opt.option(
        "KEY=VALUE",
        "Any other setting by its name in config.toml, e.g. model.hidden=64. Can be repeated.",
        METHOD,
        name="--set",
    ),
    out: Path | None = opt.NEW_FOLDER,
    resume: Path | None = opt.option(
        "DIR", "Continue the interrupted backtest in this folder.", OUTPUT
    ),
    json_: bool = opt.SUMMARY,
    threads: int | None = opt.THREADS,
) -> None:
    """Measure how good forecasts would have been, from several origins in the past.

    Trains on the data before the first origin, forecasts, moves on by --step, and so on, always
    with what was known at the time. Errors are on the data's own scale, next to those of naive
    forecasts.

    Example: fuels backtest --data traffic.csv --horizon 24 --windows 7 --out backtest
    """
    from rich.console import Console

    from fuels.data.loading import load_panel
    from fuels.forecasting.backtest import Plan
    from fuels.forecasting.backtest_folder import BacktestFolder, forecaster_for
    from fuels.report.backtest import print_backtest
    from fuels.report.display import loop_progress
    from fuels.report.terminal import say
    from fuels.storage.run_folder import free_folder

    console = Console(stderr=True)
    changes = given(
        {
            "seed": seed,
            "method": method,
            "data": {"source": data, "clients": clients, **read.changes()},
            "windows": {"period": period},
            "mixture": {"at_least": at_least, "at_most": at_most},
            "training": {"rounds": rounds},
        }
    )
    if resume is not None:
        if changes or out or settings_ or preset:
            raise FuelsError("--resume continues a backtest with its own settings; give no others")
        folder, settings, engine, plan = BacktestFolder.reopen(resume)
        notes: list[str] = []
    else:
        settings, engine, notes = assemble(changes, preset, None, None, settings_ or [])
        plan = Plan(horizon, windows, horizon if step is None else step, refit)
        name = f"backtest-{settings.method}-{source_name(settings)}-seed{settings.seed}"
        folder = BacktestFolder(out or free_folder(Path("runs"), name))
    engine = merge_engine(engine, given({"threads": threads}), "command line")
    forecaster = forecaster_for(settings, engine, plan)
    panel = load_panel(settings)
    plan.check(panel)
    if resume is None:
        folder.begin(settings, engine, plan, panel)
    for note in () if json_ else notes:
        say(console, note, "yellow")

    def begun(number: int) -> None:
        say(console, f"window {number} of {plan.windows}")

    with resumable(f"continue with: fuels backtest --resume {folder.path}"):
        summary = folder.run(
            forecaster,
            panel,
            plan,
            lambda loop: loop_progress(loop, console, loop.method.title),
            begun,
        )
    if json_:
        typer.echo(json.dumps(summary, indent=2))
        return
    print_backtest(summary, folder.path)
