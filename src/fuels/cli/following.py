"""The progress of a federation's run on the console, until it ends."""

from __future__ import annotations

import json

import typer

from fuels.errors import FuelsError
from fuels.federation.flower.folders import ServerFolder


def follow_run(server: ServerFolder, run: str, rounds: int, as_json: bool) -> None:
    """Show a run until it ends, then its results; an error if a site did not save its models."""
    from fuels.federation.flower.server import undelivered
    from fuels.federation.flower.status import follow
    from fuels.report.display import progress
    from fuels.storage.run_folder import RunFolder

    try:
        with progress(rounds) as watcher:
            unconfirmed = follow(server, run, rounds, watcher)
    except KeyboardInterrupt:
        typer.echo(
            f"run {run} continues; stop it with fuels federation stop {server.path}", err=True
        )
        raise
    store = RunFolder(server.runs / run)
    if as_json:
        summary = json.loads(store.summary.read_text(encoding="utf-8"))
        typer.echo(json.dumps({"run": run, "folder": str(store.path), **summary}, indent=2))
    else:
        typer.echo(f"run {run} is finished; the server's results are in {store.path}")
    if unconfirmed:
        raise FuelsError(undelivered(unconfirmed, server))
