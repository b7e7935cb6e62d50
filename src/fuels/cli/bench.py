"""`fuels bench`: how fast this machine trains, compared with common simulators."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from fuels.cli import options as opt
from fuels.errors import FuelsError


def bench_command(
    threads: int | None = opt.THREADS,
    turns: int = opt.option("", "Maximum number of turns.", default=7),
    seconds: float = opt.option(
        "",
        "Time limit; a turn that would exceed it is not started. At least one turn runs.",
        default=150.0,
    ),
    clients: int = opt.option(
        "", "Clients per turn; the other simulators train ten of them.", default=100
    ),
    skip: str = opt.option(
        "A,B,...", "Contenders to skip: eager, flower, pfl, floor, jsd.", default=""
    ),
    out: Path | None = opt.option("", "Also write the JSON to this file."),
    json_: bool = opt.JSON,
) -> None:
    """Compare training speed with eager PyTorch, Flower's simulation, pfl and the hardware limit.

    All contenders take turns at the same work, on the same synthetic data and with the same number
    of threads. Close other programs first. Flower and pfl take part if they are installed; the
    extra `bench` installs both.
    """

    from fuels.report.tables import show
    from fuels.research.bench.figures import notes, tables, to_json
    from fuels.research.bench.machine import describe_machine
    from fuels.research.bench.measure import race
    from fuels.research.bench.work import Sizes

    if out is not None and not out.parent.is_dir():
        raise FuelsError(f"--out {out}: the folder {out.parent} does not exist")
    machine = describe_machine()
    busy = machine["load"] or 0.0
    if busy > 0.5:
        typer.echo(
            f"note: other programs use {busy:.1f} cores; the figures will be rough", err=True
        )
    done = race(
        Sizes(clients=clients, sample=min(Sizes.sample, clients)),
        threads or 0,
        turns=turns,
        seconds=seconds,
        skip=[word.strip() for word in skip.split(",") if word.strip()],
        say=lambda line: typer.echo(line, err=True),
    )
    text = json.dumps(to_json(done, machine), indent=2)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")
    if json_:
        typer.echo(text)
        return
    machine_used = f"{machine['cpu']}, {machine['cores']} cores; {done.seconds:.0f} seconds"
    show(tables(done), [*notes(done), machine_used])
