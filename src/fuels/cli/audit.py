"""`fuels audit`: how much of the clients' data a run's uploads reveal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fuels.cli import options as opt
from fuels.data.files import need_writable, write_text
from fuels.errors import FuelsError

if TYPE_CHECKING:
    from fuels.runs.build import Job


def audit_command(
    run: Path = opt.argument("RUN", "Folder of a run, finished or not, with its data."),
    clients: int = opt.option("", "Maximum number of clients to train.", default=60, min=8),
    rounds: int = opt.option("", "Maximum number of rounds to train.", default=20, min=1),
    data: str | None = opt.option(
        "PATH", "The data of the run, if they have moved. Default: as in its config.toml."
    ),
    out: Path | None = opt.option(
        "DIR", "Folder for audit.md, .csv, .json and .png. Default: RUN/audit."
    ),
    json_: bool = opt.flag("Print audit.json instead of the table.", name="--json"),
    threads: int | None = opt.THREADS,
) -> None:
    """Attack a run as a curious server or colluding clients would, and report what they find.

    A run does not keep its uploads, so the audit reproduces them: it trains the run twice, once as
    it was and once with some days missing. The attacker trains as many clients of its own.
    --clients and --rounds limit the size, so that an audit takes minutes.

    Example: fuels audit first --clients 30
    """
    from rich.console import Console

    from fuels.config import Engine, merge
    from fuels.report.display import loop_progress
    from fuels.report.style import save
    from fuels.report.tables import show
    from fuels.report.terminal import say
    from fuels.research.audit import audit as work
    from fuels.storage.config_file import read_config

    config = run / "config.toml"
    if not config.is_file():
        raise FuelsError(f"{run}: not the folder of a run, config.toml is missing")
    settings, _ = read_config(config)
    if data is not None:
        settings = merge(settings, {"data": {"source": data}}, "--data")
    small = work.reduced(settings, clients, rounds)
    folder = out or run / "audit"
    need_writable(folder)
    console = Console(stderr=True)

    def train(job: Job) -> None:
        with loop_progress(job.loop, console, f"audit of {job.method.title}") as shown:
            job.loop.run([shown])

    if small != settings:
        say(
            console,
            f"audited with {small.data.clients or 'all'} clients and {small.training.rounds}"
            " rounds; --clients and --rounds allow more",
            "yellow",
        )
    done = work.audit(small, Engine(threads=threads or 0), train=train)
    found, notes = work.table(done), work.sentences(done)
    content = json.dumps(done.to_dict(), indent=2) + "\n"
    write_text(folder / "audit.json", content)
    write_text(folder / "audit.csv", found.to_csv())
    page = [found.to_markdown(), *(f"- {note}" for note in notes), "", "![R2](audit.png)"]
    write_text(folder / "audit.md", "\n".join(page) + "\n")
    save(work.picture(done), folder / "audit.png")
    if json_:
        typer.echo(content, nl=False)
        return
    show([found], [*notes, f"Written to {folder}."])
