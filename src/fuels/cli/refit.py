"""`fuels federation refit`: the next run with the settings of the last one."""

from __future__ import annotations

from pathlib import Path

import typer

from fuels.cli import options as opt
from fuels.cli.following import follow_run
from fuels.cli.parties import SERVER
from fuels.cli.settings import assignment, given
from fuels.config import merge
from fuels.errors import FuelsError
from fuels.federation.flower import runs
from fuels.federation.flower.folders import ServerFolder
from fuels.federation.flower.runs import ACTIVE, CONFIG, Current
from fuels.storage.config_file import read_config


def refit_command(
    folder: Path = SERVER,
    rounds: int | None = opt.option(
        "N", "Training rounds; with 1, little more than the sums is exchanged. Default: as before."
    ),
    settings: list[str] | None = opt.option(
        "KEY=VALUE",
        "Any other setting to change, e.g. windows.split=47/0/11. Can be repeated.",
        name="--set",
    ),
) -> None:
    """Train again with the settings of the last run, on the sites' data as they are now.

    Sites and clients that have joined since the last run contribute to the sums of this one. A live
    series in progress stops and continues with the new run, or with the former one if the new run
    fails. Run it regularly, for instance once a week.

    Example: fuels federation refit metro/server
    """
    server = ServerFolder(folder)
    found = runs.current_run(server)
    former = str(found.get("run", ""))
    if not former:
        raise FuelsError(f"{folder}: there is no run yet: start one with fuels federation run")
    active, live = found.get("state") in ACTIVE, bool(found.get("live"))
    if active and not live:
        raise FuelsError(f"run {former} is in progress; refit when it has finished")
    chosen, _ = read_config(server.runs / former / CONFIG)
    chosen = merge(chosen, given({"training": {"rounds": rounds}}), "command line")
    for text in settings or []:
        chosen = merge(chosen, assignment(text), f"--set {text}")
    runs.need_server(server)
    if active:
        runs.stop(server, "stopped by fuels federation refit")
    run = runs.new_run(server, chosen)
    typer.echo(f"run {run}, with the settings of {former}", err=True)
    try:
        runs.start(server)
        follow_run(server, run, chosen.training.rounds, as_json=False)
    finally:
        state = Current(server).read().get("state")
        if active and state == "failed":
            known = {"unconfirmed": found.get("unconfirmed", []), "reason": ""}
            Current(server).write(run=former, state="finished", **known)
        if active and state in ("failed", "finished"):
            typer.echo(f"the live series continues with run {runs.start_live(server)}", err=True)
