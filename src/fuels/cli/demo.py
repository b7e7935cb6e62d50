"""`fuels federation demo`: a whole federation on one machine."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import typer

from fuels.cli import options as opt
from fuels.errors import FuelsError
from fuels.methods.registry import METHODS


def demo_command(
    sites: int = opt.option("N", "Sites, 1 to 8, with four clients each.", default=3, min=1, max=8),
    rounds: int = opt.option("N", "Rounds to train.", default=5, min=1),
    method: str = opt.option(
        "NAME", f"Method to train: {', '.join(METHODS)}.", default="fuels", choices=METHODS
    ),
    keep: Path | None = opt.option(
        "DIR", "Keep all folders, logs and results in this new folder. Default: keep nothing."
    ),
    json_: bool = opt.flag("Print the errors and timings as JSON.", name="--json"),
) -> None:
    """Run a whole federation on this machine and compare it with the local engine.

    Starts a server and sites on 127.0.0.1, with TLS, keys and embedded data. At the end it stops
    every process that it started and prints the total time. With three or more sites, they also
    exchange masked sums (the live mean and the shared statistics) for a mixture of experts, and one
    step of the live mean after training. With methods such as fedavg, for which the server needs
    only the mean of the uploads, the uploads are masked too.

    Example: fuels federation demo --sites 3 --rounds 5
    """
    from fuels.federation.flower.demo import demo_settings, run_demo
    from fuels.report.display import progress

    settings = demo_settings(method, rounds, sites)
    if keep is not None and keep.exists():
        raise FuelsError(f"--keep {keep}: this folder exists; name a new one")
    root = keep or Path(tempfile.mkdtemp(prefix="fuels-demo-")) / "demo"
    typer.echo(
        "training in one process for comparison, then with a server and"
        f" {sites} site{'s' * (sites != 1)} on 127.0.0.1, with TLS and keys",
        err=True,
    )
    try:
        with progress(rounds, title="federation") as watcher:
            found = run_demo(root, settings, sites, watcher)
    except FuelsError as error:
        raise FuelsError(f"{error}; the folders and logs of the demo are in {root}") from None
    except KeyboardInterrupt:
        _clear(root, keep)
        raise
    _clear(root, keep)
    if json_:
        facts = {"method": method, "sites": sites, "rounds": rounds}
        typer.echo(json.dumps({**facts, **found}, indent=2))
        return
    _print(found)
    where = f"; see {root}" if keep else ""
    typer.echo(f"finished in {found['seconds']:.0f} s; all processes have ended{where}")


def _clear(root: Path, keep: Path | None) -> None:
    if keep is None:
        shutil.rmtree(root.parent, ignore_errors=True)


def _print(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from fuels.federation.flower.status import masked_line, step_line, sums_line

    table = Table("", "federation", "one machine", "difference")
    for name, key in (("validation MSE", "val_mse"), ("test MSE", "test_mse")):
        here, there = found[key], found[f"local_{key}"]
        table.add_row(name, f"{here:.5f}", f"{there:.5f}", f"{(here - there) / there:+.3%}")
    Console().print(table)
    if sums := found.get("sums"):
        typer.echo(sums_line(sums))
    if masked := found.get("masked"):
        typer.echo(masked_line(masked).replace("masked", "masked uploads", 1))
    if live := found.get("live"):
        typer.echo(f"live step {step_line(live)}")
