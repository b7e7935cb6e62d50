"""`fuels data`: describe and convert data, and generate synthetic data."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fuels.cli import options as opt
from fuels.errors import FuelsError

if TYPE_CHECKING:
    from fuels.data.panel import Panel

data_app = typer.Typer(
    help="Describe data, convert data, or generate synthetic data.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

SOURCE = opt.argument(
    "PATH...",
    "A CSV, Parquet, Excel, npz or HDF5 (METR-LA) file; several tables, a pattern such as"
    " 'daily/*.csv' or a folder of tables; or raw Telecom Italia records: one file"
    " sms-call-internet-*.txt or a folder of them.",
)
OUT = opt.option("", "File to write: .parquet, .csv or .npz.", default=..., show_default=False)
LAYOUT = opt.option(
    "long|wide",
    "long: one row per client and time; wide: one row per time, one column per client.",
    default="long",
)
OVERWRITE = opt.flag("Replace the output file if it exists.", name="--overwrite")


@data_app.command("describe")
@opt.with_read_options("inputs", "inputs_file")
def describe_command(
    paths: list[str] = SOURCE,
    read: opt.ReadOptions = opt.ReadOptions(),
    json_: bool = opt.JSON,
) -> None:
    """Describe a file: clients, time span, step, missing values, dead clients and the period.

    Example: fuels data describe traffic.csv --resample 1h --how sum
    """
    from rich.console import Console

    from fuels.data.describe import describe
    from fuels.report.terminal import plain

    found = describe(read.read(paths))
    if json_:
        typer.echo(json.dumps(found.to_dict(), indent=2))
    else:
        console = Console()
        shown = found.render(ascii_only=console.options.ascii_only)
        if console.is_terminal:
            console.print(shown)
        else:
            console.out(plain(shown), end="", highlight=False)


@data_app.command("convert")
@opt.with_read_options("activity", "inputs", "inputs_file")
def convert_command(
    paths: list[str] = SOURCE,
    out: Path = OUT,
    read: opt.ReadOptions = opt.ReadOptions(),
    layout: str = LAYOUT,
    overwrite: bool = OVERWRITE,
    activity: str | None = opt.option(
        "net|sms|call|all",
        "Activity to read from raw Telecom Italia records; all writes three files, with"
        " _net, _sms and _call in their names. Default: net.",
        opt.DATA,
    ),
    json_: bool = opt.JSON,
) -> None:
    """Convert any supported format to a panel file, which every command reads quickly.

    Raw records are summed to the hour (or to --resample) as they are read, in bounded memory
    regardless of the number of files.

    Example: fuels data convert raw --out net.parquet --coordinates cells.csv
    """
    from fuels.data.clock import zone_id
    from fuels.data.readers import is_raw, read_activities
    from fuels.data.sources import find_files
    from fuels.data.telecom_file import ACTIVITIES
    from fuels.data.writers import check_format

    files = find_files(paths)
    if len(files) > 1 or not is_raw(files[0]):
        if activity == "all":
            name = files[0].name
            raise FuelsError(f"{name}: --activity=all is for raw Telecom Italia records only")
        check_format(out, layout, overwrite)
        panel = replace(read, activity=activity).read(paths)
        _print_notes(_write(panel, out, layout, overwrite, json_))
        return
    path = files[0]
    targets = {activity or "net": out}
    if activity == "all":
        targets = {name: out.with_stem(f"{out.stem}_{name}") for name in ACTIVITIES}
    for target in targets.values():
        check_format(target, layout, overwrite)
    notes: list[str] = []
    reading = read.reading()
    reading.check()
    zone = None if reading.timezone is None else zone_id(reading.timezone)
    reading = replace(reading, timezone=zone)
    with _progress(path) as progress:
        # Temporary files go next to the output, which needs space there in any case.
        found = read_activities(path, tuple(targets), reading, progress, out.parent)
        for name, panel in found:
            notes += _write(panel, targets[name], layout, overwrite, json_)
    _print_notes(notes)


@data_app.command("synth")
def synth_command(
    out: Path = OUT,
    activity: str = opt.option("net|sms|call", "Activity to generate.", default="net"),
    clients: int = opt.option("", "Number of clients.", default=100, min=1),
    days: int = opt.option("", "Number of days, in hourly steps.", default=62, min=1),
    seed: int = opt.option(
        "", "Random seed; the same seed gives the same bytes.", default=0, min=0
    ),
    layout: str = LAYOUT,
    overwrite: bool = OVERWRITE,
    json_: bool = opt.JSON,
) -> None:
    """Generate a synthetic federation: mobile traffic that resembles real traffic.

    Example: fuels data synth --out toy.csv --clients 20 --days 30
    """
    from fuels.data.synthetic import synthesise
    from fuels.data.writers import check_format

    check_format(out, layout, overwrite)
    panel = synthesise(activity, clients=clients, days=days, seed=seed)
    _print_notes(_write(panel, out, layout, overwrite, json_))


def _write(panel: Panel, out: Path, layout: str, overwrite: bool, json_: bool) -> Sequence[str]:
    """Write a panel and print a summary; returns the notes that were not printed."""
    from fuels.data.clock import format_step
    from fuels.data.writers import write_panel

    notes = (*panel.notes, *write_panel(panel, out, layout=layout, overwrite=overwrite))
    about = {
        "out": str(out),
        "clients": len(panel.ids),
        "steps": panel.length,
        "step": format_step(panel.step),
        "timezone": panel.timezone,
        "unit": panel.unit,
        "synthetic": panel.synthetic,
        "notes": notes,
    }
    if json_:
        typer.echo(json.dumps(about))
        return ()
    kind = f"{'synthetic ' * panel.synthetic}client{'s' * (len(panel.ids) != 1)}"
    typer.echo(
        f"{out}: {about['clients']} {kind}, {about['steps']} steps of {about['step']} {panel.span}"
    )
    return notes


def _print_notes(notes: Sequence[str]) -> None:
    for note in dict.fromkeys(notes):
        typer.echo(f"note: {note}", err=True)


@contextmanager
def _progress(path: Path) -> Iterator[Callable[[int], None] | None]:
    """A progress bar over the bytes of raw files, if standard error is a terminal."""
    if not sys.stderr.isatty() or not path.exists():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    files = path.rglob("*") if path.is_dir() else [path]
    total = sum(file.stat().st_size for file in files if file.is_file())
    columns = ("reading", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=total)
        yield lambda size: bar.advance(task, size)
