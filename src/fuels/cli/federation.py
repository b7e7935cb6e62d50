"""`fuels federation`: set up, run and monitor a federation of several organisations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from fuels.cli import options as opt
from fuels.cli.demo import demo_command
from fuels.cli.following import follow_run
from fuels.cli.live import live_command
from fuels.cli.parties import SERVER, SHOW, need_flower
from fuels.cli.refit import refit_command
from fuels.cli.roster import FOUNDED, roster_command
from fuels.cli.settings import assignment, given, private_preset
from fuels.config import DEFAULT_PRESET, PRESETS, Privacy, Settings, merge, with_preset
from fuels.errors import FuelsError
from fuels.federation.flower import commands, flower_app, runs
from fuels.federation.flower.folders import ServerFolder
from fuels.methods.registry import METHODS
from fuels.storage.config_file import read_config

federation_app = typer.Typer(help="Set up, run and monitor a federation.", no_args_is_help=True)
federation_app.callback()(need_flower)

CONSENTED = opt.option(
    "A,B,...",
    "Comma-separated methods that the sites consent to, such as fuels,fedavg. Each site"
    " can change this in its site.toml.",
    default="fuels",
)
JSON = opt.flag("Print JSON instead of text.", name="--json")


@federation_app.command("init")
def init_command(
    name: str = opt.option("NAME", "Name of the federation, such as metro.", default=...),
    sites: str = opt.option(
        "A,B,...", "Comma-separated site names, such as north,south,east.", default=...
    ),
    server: str = opt.option(
        "HOST",
        "Host name or IPv4 address of the server, as the sites reach it, such as fed.example.org.",
        default=...,
    ),
    port: int = opt.option(
        "PORT",
        "Port that the sites connect to; the next one is for the server's operator only.",
        default=9092,
    ),
    listen: str = opt.option(
        "ADDRESS",
        "Address that the server listens on, such as 10.0.0.5. Default: all interfaces,"
        " or loopback if --server is a loopback address.",
        default="",
    ),
    methods: str = CONSENTED,
    out: Path | None = opt.option("DIR", "Folder to create. Default: the name of the federation."),
) -> None:
    """Create one folder per party, with certificates, keys and config files.

    The README.md in the new folder says who gets which folder and what must never be sent.

    Example: fuels federation init --name metro --sites north,south --server fed.example.org
    """
    from fuels.federation.flower.provisioning import provision

    path = out or Path(name)
    named, consented = opt.names_in(sites), opt.names_in(methods)
    provision(path, name, named, server, port, listen=listen, methods=consented)
    typer.echo(f"{path}/ is ready; {path}/README.md says who gets which folder.")


@federation_app.command("add-site")
def add_site_command(
    folder: Path = FOUNDED,
    name: str = opt.argument("NAME", "Name of the new site, such as west."),
    methods: str = CONSENTED,
    again: bool = opt.flag(
        "Create a new folder, with a new key, for an existing site that lost its own.",
        name="--again",
    ),
) -> None:
    """Create a folder for another site, or for a site that lost its folder; needs only authority/.

    If server/ is in the same folder, the site's key is added to it. Otherwise send site.pub to the
    server's operator.

    Example: fuels federation add-site metro west
    """
    from fuels.federation.flower.provisioning import new_site

    if new_site(folder, name, opt.names_in(methods), again):
        typer.echo(
            f"{folder}/sites/{name}/ is ready; its key was added to {folder}/server/server.toml."
        )
        return
    typer.echo(
        f"{folder}/sites/{name}/ is ready. Send its site.pub to the server's operator, who admits"
        f" the site: fuels server admit DIR {name} site.pub"
    )


@federation_app.command("renew")
def renew_command(folder: Path = FOUNDED) -> None:
    """Sign a new certificate for the server; needs only authority/.

    Example: fuels federation renew metro
    """
    from fuels.federation.flower.provisioning import renew

    if not renew(folder):
        typer.echo("the server has a new certificate: restart it; the sites need no change")
        return
    typer.echo(
        f"created a new {folder}/server/. If the server still has its folder, replace server.key"
        " and server.pem in it and restart the server; if it lost its folder, give it this one."
        " The sites need no change."
    )


@federation_app.command("renew-secret")
def renew_secret_command(folder: Path = FOUNDED) -> None:
    """Create a new federation.secret for all sites, after a site leaves or the secret leaks.

    Runs with privacy.secret use it to hide prototypes from the server. The command needs
    authority/. Use it only between runs: a run in progress continues with the former secret or not
    at all.

    Example: fuels federation renew-secret metro
    """
    from fuels.federation.flower.provisioning import renew_secret

    here = renew_secret(folder)
    done = f"; copied to {', '.join(here)}" if here else ""
    typer.echo(
        f"new {folder}/authority/federation.secret{done}. Hand it to every other site, to replace"
        " the one in its folder, and never to the server."
    )


@federation_app.command("run")
def run_command(
    folder: Path = SERVER,
    method: str | None = opt.option(
        "NAME", f"Method to train: {', '.join(METHODS)}. Default: fuels.", choices=METHODS
    ),
    rounds: int | None = opt.option(
        "N", "Training rounds. Default: 40 with preset best, 200 with paper."
    ),
    seed: int | None = opt.option(
        "N", "Random seed; the same seed gives the same result. Default: 0."
    ),
    preset: str | None = opt.option(
        "|".join(PRESETS),
        "Base settings: best (as in fuels run, with defences against false uploads), private (only"
        " noised sums are shared, the personal models are trained alone) or paper (the settings of"
        " the paper). Default: best.",
        choices=PRESETS,
    ),
    privacy: str | None = opt.option(
        "epsilon=N,...",
        "Preset private, with this budget. More parts: delta=, unit=hour|day|client,"
        " relation=removed|replaced, scale=FILE, colluding=N; see fuels privacy plan.",
    ),
    settings: list[str] | None = opt.option(
        "KEY=VALUE",
        "Any other setting by its name in config.toml, e.g. options.tau=0.05 or"
        " model.hidden=64. Can be repeated.",
        name="--set",
    ),
    resume: bool = opt.flag(
        "Continue the current run; if it has finished, ask again those sites that have not"
        " confirmed that they saved their models, and give its totals to sites that joined since.",
        name="--resume",
    ),
    detach: bool = opt.flag("Submit the run and return without waiting for it.", name="--detach"),
    json_: bool = opt.flag("Print the run's summary.json instead of text.", name="--json"),
    show: bool = SHOW,
) -> None:
    """Train: submit a run to the server and show its progress.

    The exit code is 0 when every site has saved its models. Otherwise the sites that have not
    confirmed this are named and the exit code is 1, although the training is finished; --resume
    asks those sites again.

    Example: fuels federation run metro/server --rounds 40 --method fuels
    """
    server = ServerFolder(folder)
    changes = given({"method": method, "seed": seed, "training": {"rounds": rounds}})
    if privacy is not None:
        preset, changes["privacy"] = private_preset(preset, privacy)
    run = ""
    if resume:
        if changes or preset or settings:
            raise FuelsError("--resume continues a run with its own settings; give no others")
        run = str(runs.Current(server).read().get("run", ""))
        if not run:
            raise FuelsError(f"{server.path}: there is no run to resume")
        if not (server.runs / run / "flower.toml").is_file():
            raise FuelsError(runs.gone(server, run))
        if runs.is_live(server, run) and runs.Current(server).read().get("state") in runs.ACTIVE:
            raise FuelsError(
                f"the live series of run {run} is in progress: stop it with fuels federation stop"
            )
        chosen, _ = read_config(server.runs / run / "config.toml")
    else:
        chosen = _settings(preset or DEFAULT_PRESET, changes, settings or [])
    if show:
        config = str(server.runs / run / "flower.toml") if resume else flower_app.inline(chosen)
        command = commands.start_run(server, config)
        typer.echo(commands.shown(command, commands.server_environment(server)))
        return
    runs.need_server(server)
    run = run or runs.new_run(server, chosen)
    runs.start(server)
    typer.echo(f"run {run}", err=True)
    if detach:
        if json_:
            typer.echo(json.dumps({"run": run, "folder": str(server.runs / run)}, indent=2))
        return
    follow_run(server, run, chosen.training.rounds, json_)


@federation_app.command("status")
def status_command(folder: Path = SERVER, json_: bool = JSON, show: bool = SHOW) -> None:
    """Show the state of the current run and which sites are connected.

    Example: fuels federation status metro/server --json
    """
    from fuels.federation.flower import status
    from fuels.federation.flower.server import undelivered

    server = ServerFolder(folder)
    if show:
        typer.echo(commands.shown(commands.list_nodes(), commands.server_environment(server)))
        return
    found = status.status(server)
    if json_:
        typer.echo(json.dumps(found, indent=2))
        return
    typer.echo(f"server    {'answers' if found['listening'] else 'does not answer'}")
    typer.echo(f"run       {found['run'] or 'none yet'} ({found['state'] or 'not started'})")
    if found["reason"]:
        typer.echo(f"reason    {found['reason']}")
    if found["unconfirmed"]:
        typer.echo(f"models    {undelivered(found['unconfirmed'], server)}")
    if found["rounds"]:
        typer.echo(f"round     {found['round']} of {found['rounds']}")
    if found["masked"]:
        typer.echo(f"uploads   {status.masked_line(found['masked'])}")
    if found["sums"]:
        typer.echo(status.sums_line(found["sums"]).replace("sums: ", "sums      ", 1))
    if found["privacy"]:
        typer.echo(f"privacy   {status.privacy_line(Privacy(**found['privacy']))}")
    for site, state in found["sites"].items():
        typer.echo(f"site      {site}: {state}")
    for site, count in found["refused"].items():
        typer.echo(f"refused   {site}: {count} so far")
    for site, reason in found["excluded"].items():
        typer.echo(f"excluded  {site}: {reason}")
    if found["left_out"]:
        typer.echo(
            f"left out  {found['left_out']} clients in the last round, too far from the others"
        )
    for text in found["failures"]:
        typer.echo(f"failure   {text}")
    for text in status.live_lines(found["live"]):
        typer.echo(f"live      {text}")
    book = found["audit"]
    intact = f"intact, the last is {book['last'][:16]}"
    typer.echo(f"audit     {book['entries']} entries, {book['problem'] or intact}")
    for number, state in found["others"].items():
        typer.echo(f"other     Flower's run {number}: {state}")


@federation_app.command("stop")
def stop_command(folder: Path = SERVER, show: bool = SHOW) -> None:
    """Stop the current run; the server and the sites keep running.

    If there is no current run, this stops runs that were submitted with `flwr run` and have not
    started.

    Example: fuels federation stop metro/server
    """
    from fuels.federation.flower import status

    server = ServerFolder(folder)
    found = runs.current_run(server)
    number = str(found.get("flower_run", ""))
    if show:
        extra = commands.server_environment(server)
        typer.echo(commands.shown(commands.stop_run(number or "RUN_ID"), extra))
        return
    rest = status.others(server, found)
    if found.get("state") in runs.ACTIVE:
        runs.stop(server, "stopped by fuels federation stop")
        typer.echo(
            f"the live series of run {found['run']} is stopped; fuels federation live continues it"
            if found.get("live")
            else f"run {found['run']} is stopped; --resume continues it after its last round"
        )
        if rest:
            typer.echo(
                f"Flower has other runs ({', '.join(rest)}): run this command again to stop them"
            )
        return
    if not rest:
        raise FuelsError(f"{server.path}: no run is in progress")
    for other in rest:
        reason = commands.stop(server, other)
        if reason:
            raise FuelsError(f"Flower did not stop its run {other}: {reason}")
        typer.echo(f"Flower's run {other} is stopped")


federation_app.command("roster")(roster_command)
federation_app.command("live")(live_command)
federation_app.command("refit")(refit_command)
federation_app.command("demo")(demo_command)


def _settings(preset: str, changes: dict[str, Any], assignments: list[str]) -> Settings:
    """Preset, then options, then --set: the later one wins, as in `fuels run`."""

    def chosen(settings: Settings) -> Settings:
        settings = merge(settings, changes, "command line")
        for text in assignments:
            settings = merge(settings, assignment(text), f"--set {text}")
        return settings

    start = with_preset(Settings(), preset, f"--preset {preset}", owners=2)
    settings = chosen(start)
    if not (settings.privacy.masked and start.defence.admission):
        return flower_app.federated(settings, "--set")
    # Of the preset's defences, these two need single uploads.
    off = replace(start.defence, admission=0.0, joint=0.0)
    masked = flower_app.federated(chosen(replace(start, defence=off)), "--set")
    typer.echo(
        f"uploads are masked: preset {preset} leaves no client out by the direction of its update"
        " (defence.admission) and does not bound what several do together (defence.joint), and"
        " sites shorten long updates themselves (defence.clip)",
        err=True,
    )
    return masked
