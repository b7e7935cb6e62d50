"""`fuels federation live`: keep the live mean of a finished run going."""

from __future__ import annotations

from pathlib import Path

import typer

from fuels.cli import options as opt
from fuels.cli.parties import SERVER, SHOW
from fuels.federation.flower import commands, runs
from fuels.federation.flower.folders import ServerFolder


def live_command(
    folder: Path = SERVER,
    detach: bool = opt.flag("Start the series and return without following it.", name="--detach"),
    show: bool = SHOW,
) -> None:
    """Keep the live mean of the finished run going, step by step, and show each step.

    It continues until fuels federation stop, even after this command has ended or the server has
    been restarted. A site takes part if its site.toml has consent.live_mean and the founder's
    roster names it; its values come from fuels forecast RUN --data FILE, which can wait for the
    mean of the newest step (--wait).

    Example: fuels federation live metro/server
    """
    from fuels.federation.flower import status

    server = ServerFolder(folder)
    if show:
        run = str(runs.Current(server).read().get("run", "RUN"))
        command = commands.start_run(server, str(server.runs / run / "flower.toml"))
        typer.echo(commands.shown(command, commands.server_environment(server)))
        return
    runs.need_server(server)
    run = runs.start_live(server)
    typer.echo(f"live series of run {run}", err=True)
    if detach:
        return
    try:
        status.follow_live(server, run, typer.echo)
    except KeyboardInterrupt:
        typer.echo(
            f"the live series of run {run} continues; stop it with fuels federation stop"
            f" {server.path}",
            err=True,
        )
        raise
