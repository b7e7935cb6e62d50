"""`fuels federation`, `fuels server` and `fuels site`: organisations that train together."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from fuels.cli.settings import given
from fuels.config import PRESETS, Settings, assignment, merge, nearest
from fuels.errors import FuelsError

federation_app = typer.Typer(help="Found, run and watch a federation.", no_args_is_help=True)
server_app = typer.Typer(help="The server of a federation.", no_args_is_help=True)
site_app = typer.Typer(help="A site of a federation.", no_args_is_help=True)


@federation_app.callback()
@server_app.callback()
@site_app.callback()
def need_flower() -> None:
    """Flower and its keys come with an extra of this package."""
    if "--help" in sys.argv or "-h" in sys.argv:
        return
    if not all(importlib.util.find_spec(name) for name in ("flwr", "cryptography")):
        raise FuelsError("Flower is not installed here; install it: pip install 'fuels[flower]'")


Show = Annotated[bool, typer.Option("--show", help="Print Flower's own commands and do nothing.")]
ServerDir = Annotated[Path, typer.Argument(help="The server's folder, or the one `init` made.")]


@federation_app.command("init")
def init_command(
    name: Annotated[str, typer.Option(help="Name of the federation.")],
    sites: Annotated[str, typer.Option(help="Names of the sites: north,south,east.")],
    server: Annotated[str, typer.Option(help="Host name or address at which sites reach it.")],
    port: Annotated[int, typer.Option(help="Port of the server.")] = 9092,
    listen: Annotated[
        str, typer.Option(help="Interface the server listens on. Without it: all, or loopback.")
    ] = "",
    methods: Annotated[
        str, typer.Option(help="Methods the sites consent to; each can change its own config.")
    ] = "fuels",
    out: Annotated[Path | None, typer.Option(help="Folder to make. Without it: the name.")] = None,
) -> None:
    """Make one folder per party: certificates, keys and config files."""
    from fuels.federation.flower.found import found

    path = out or Path(name)
    found(path, name, _names(sites), server, port, listen=listen, methods=_names(methods))
    typer.echo(f"{path}/ is ready; {path}/README.md says who gets which folder.")


@federation_app.command("add-site")
def add_site_command(
    folder: Annotated[Path, typer.Argument(help="The folder `init` made.")],
    name: Annotated[str, typer.Argument(help="Name of the new site.")],
    methods: Annotated[str, typer.Option(help="Methods the site consents to.")] = "fuels",
) -> None:
    """Make the folder of one more site and let the server know its key."""
    from fuels.federation.flower.found import new_site

    new_site(folder, name, _names(methods))
    typer.echo(f"{folder}/sites/{name}/ is ready; a server that runs knows its key in a moment.")


@federation_app.command("renew")
def renew_command(
    folder: Annotated[Path, typer.Argument(help="The folder `init` made, with authority/.")],
) -> None:
    """Sign a new certificate for the server."""
    from fuels.federation.flower.found import renew

    renew(folder)
    typer.echo("the server has a new certificate; restart it, the sites need nothing")


@server_app.command("start")
def server_start(folder: ServerDir, show: Show = False) -> None:
    """Start the server: Flower's SuperLink with TLS, authentication and a database."""
    from fuels.federation.flower import commands, launch
    from fuels.federation.flower.parties import ServerFolder

    server = ServerFolder(folder)
    if show:
        extra = commands.server_environment(server)
        typer.echo(commands.shown(commands.superlink(server), extra))
        typer.echo(commands.shown(commands.door(server), extra))
        for name in server.config.sites:
            key = server.keys / f"{name}.pub"
            typer.echo(commands.shown(commands.register(key, name), extra))
        return
    launch.become_server(server)


@site_app.command("start")
def site_start(
    folder: Annotated[Path, typer.Argument(help="The site's folder.")],
    data: Annotated[
        str, typer.Option(help="The site's data file; without it data.source of site.toml.")
    ] = "",
    show: Show = False,
) -> None:
    """Start a site: Flower's SuperNode with this site's key and data."""
    from fuels.federation.flower import commands, launch
    from fuels.federation.flower.parties import SiteFolder, set_up_log

    site = SiteFolder(folder)
    if show:
        supernode = commands.supernode(site, launch.site_data(site, data), 9094)
        for command in (commands.clerk(site), supernode):
            typer.echo(commands.shown(command, commands.site_environment(site)))
        return
    set_up_log()
    launch.keep_site(site, data)


@federation_app.command("run")
def run_command(
    folder: ServerDir,
    method: Annotated[str, typer.Option(help="The method to train with.")] = "fuels",
    rounds: Annotated[int | None, typer.Option(help="Rounds to train.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    preset: Annotated[
        str,
        typer.Option(
            help="paper, as published; or best, the default of fuels run: more windows and the"
            " calendar in the model, and at each site its own mixture of experts."
        ),
    ] = "paper",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting: section.key=value.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the current run.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the end.")] = False,
    show: Show = False,
) -> None:
    """Train: hand a run to the server and show its progress."""
    from fuels.federation.flower import commands, launch
    from fuels.federation.flower.follow import follow
    from fuels.federation.flower.parties import Current, ServerFolder
    from fuels.federation.flower.serving import undelivered
    from fuels.report.display import progress

    server = ServerFolder(folder)
    changes = given({"method": method, "seed": seed, "training": {"rounds": rounds}})
    chosen = _settings(preset, changes, settings or [])
    if show:
        config = server.runs / "RUN" / "flower.toml"
        typer.echo(
            commands.shown(commands.start_run(server, config), commands.server_environment(server))
        )
        return
    if resume:
        run = str(Current(server).read().get("run", ""))
        if not run:
            raise FuelsError(f"{server.path}: there is no run to go on with")
        from fuels.config import read_config

        chosen, _ = read_config(server.runs / run / "config.toml")
    else:
        run = launch.new_run(server, chosen)
    launch.start(server)
    typer.echo(f"run {run}", err=True)
    if detach:
        return
    total = chosen.training.rounds
    try:
        with progress(total) as watcher:
            follow(server, run, total, watcher)
    except KeyboardInterrupt:
        typer.echo(f"run {run} goes on; fuels federation stop {folder} ends it", err=True)
        raise
    typer.echo(f"run {run} is finished; results of the server: {server.runs / run}")
    unconfirmed = Current(server).read().get("unconfirmed", [])
    if unconfirmed:
        typer.echo(undelivered(unconfirmed), err=True)


@federation_app.command("status")
def status_command(
    folder: ServerDir,
    form: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
    show: Show = False,
) -> None:
    """Where the current run stands and who is connected."""
    from fuels.federation.flower import commands
    from fuels.federation.flower.parties import ServerFolder
    from fuels.federation.flower.serving import undelivered
    from fuels.federation.flower.state import status

    server = ServerFolder(folder)
    if show:
        typer.echo(commands.shown(commands.list_nodes(), commands.server_environment(server)))
        return
    found = status(server)
    if form == "json":
        typer.echo(json.dumps(found, indent=2))
        return
    typer.echo(f"server    {'answers' if found['listening'] else 'does not answer'}")
    typer.echo(f"run       {found['run'] or 'none yet'} ({found['state'] or 'nothing started'})")
    if found["reason"]:
        typer.echo(f"reason    {found['reason']}")
    if found["unconfirmed"]:
        typer.echo(f"models    {undelivered(found['unconfirmed'])}")
    if found["rounds"]:
        typer.echo(f"round     {found['round']} of {found['rounds']}")
    for site, state in found["sites"].items():
        typer.echo(f"site      {site}: {state}")
    for text in found["failures"]:
        typer.echo(f"failure   {text}")


@federation_app.command("stop")
def stop_command(folder: ServerDir, show: Show = False) -> None:
    """Stop the current run; server and sites stay up."""
    from fuels.federation.flower import commands
    from fuels.federation.flower.parties import Current, ServerFolder
    from fuels.federation.flower.steward import is_busy

    server = ServerFolder(folder)
    current = Current(server)
    found = current.read()
    command = commands.stop_run(str(found.get("flower_run", "")) or "RUN_ID")
    if show:
        typer.echo(commands.shown(command, commands.server_environment(server)))
        return
    if found.get("state") not in ("running", "submitted"):
        raise FuelsError(f"{server.path}: no run is in progress")
    current.write(state="stopped", reason="stopped by fuels federation stop")
    answer = commands.call(command, commands.server_environment(server))
    if not answer.get("success") and is_busy(server):  # it may have ended by itself meanwhile
        raise FuelsError(f"Flower did not stop the run: {answer.get('error-message', '')}")
    typer.echo(f"run {found['run']} is stopped; --resume takes it up after its last round")


@federation_app.command("demo")
def demo_command(
    sites: Annotated[int, typer.Option(help="How many sites.", min=1, max=8)] = 3,
    rounds: Annotated[int, typer.Option(help="Rounds to train.", min=1)] = 5,
    method: Annotated[str, typer.Option(help="The method to train with.")] = "fuels",
    keep: Annotated[Path | None, typer.Option(help="Keep everything in this new folder.")] = None,
) -> None:
    """A whole federation on this machine, compared with the local engine."""
    from rich.console import Console
    from rich.table import Table

    from fuels.federation.flower.demo import demo_settings, run_demo
    from fuels.report.display import progress

    settings = demo_settings(method, rounds)
    if keep is not None and keep.exists():
        raise FuelsError(f"--keep {keep}: it exists; name a new folder")
    root = keep or Path(tempfile.mkdtemp(prefix="fuels-demo-")) / "demo"
    typer.echo(
        f"training on one machine to compare with, then a server and {sites} sites on 127.0.0.1,"
        " with TLS and keys",
        err=True,
    )
    stays = keep is not None
    try:
        with progress(rounds, title="federation") as watcher:
            found = run_demo(root, settings, sites, watcher)
    except Exception:
        stays = True
        typer.echo(f"the demo failed; its folders and logs stay in {root}", err=True)
        raise
    finally:
        if not stays:
            shutil.rmtree(root.parent, ignore_errors=True)
    table = Table("", "federation", "one machine", "difference")
    for name, key in (("validation MSE", "val_mse"), ("test MSE", "test_mse")):
        here, there = found[key], found[f"local_{key}"]
        table.add_row(name, f"{here:.5f}", f"{there:.5f}", f"{(here - there) / there:+.3%}")
    Console().print(table)
    typer.echo("all processes have ended" + (f"; see {root}" if keep else ""))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _settings(preset: str, changes: dict[str, Any], assignments: list[str]) -> Settings:
    """Preset, then options, then --set: the later one wins, as in `fuels run`."""
    from fuels.federation.flower.serving import federated

    if preset not in PRESETS:
        raise FuelsError(f"--preset {preset} is unknown{nearest(preset, PRESETS)}")
    settings = merge(Settings(), {"preset": preset, **PRESETS[preset]}, f"--preset {preset}")
    settings = merge(settings, changes, "command line")
    for text in assignments:
        settings = merge(settings, assignment(text), f"--set {text}")
    return federated(settings, "--set")
