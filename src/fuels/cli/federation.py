"""`fuels federation`: organisations that train together found, run and watch it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fuels.cli import options as opt
from fuels.cli.demo import demo_command
from fuels.cli.parties import ServerDir, Show, need_flower
from fuels.cli.settings import given
from fuels.config import PRESETS, Settings, assignment, merge, with_preset
from fuels.errors import FuelsError
from fuels.methods.registry import METHODS
from fuels.storage.config_file import read_config

if TYPE_CHECKING:
    from fuels.federation.flower.folders import ServerFolder

federation_app = typer.Typer(help="Found, run and watch a federation.", no_args_is_help=True)
federation_app.callback()(need_flower)

FoundedDir = Annotated[
    Path, typer.Argument(metavar="DIR", help="The folder that init made, such as metro.")
]
Methods = Annotated[
    str,
    typer.Option(
        metavar="A,B,...",
        help="Methods the sites consent to, between commas, such as fuels,fedavg. Each site can"
        " change its own site.toml.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of words.")]


@federation_app.command("init")
def init_command(
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the federation, such as metro.")
    ],
    sites: Annotated[
        str,
        typer.Option(metavar="A,B,...", help="Sites between commas, such as north,south,east."),
    ],
    server: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help="Name or IPv4 address at which sites reach the server, such as fed.example.org.",
        ),
    ],
    port: Annotated[
        int,
        typer.Option(
            metavar="PORT",
            help="Port of the server that sites need; the one above it is for its operator alone.",
        ),
    ] = 9092,
    listen: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Interface the server listens on, such as 10.0.0.5. Without it: all, or loopback"
            " if --server is.",
        ),
    ] = "",
    methods: Methods = "fuels",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to make. Without it: the name.")
    ] = None,
) -> None:
    """Make one folder per party: certificates, keys and config files.

    A README.md in it says who gets which folder and what must never be sent.

    Example: fuels federation init --name metro --sites north,south --server fed.example.org
    """
    from fuels.federation.flower.provisioning import provision

    path = out or Path(name)
    provision(path, name, _names(sites), server, port, listen=listen, methods=_names(methods))
    typer.echo(f"{path}/ is ready; {path}/README.md says who gets which folder.")


@federation_app.command("add-site")
def add_site_command(
    folder: FoundedDir,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the new site, such as west.")
    ],
    methods: Methods = "fuels",
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Another folder, with a new key, for a site that is there already and lost its"
            " own.",
        ),
    ] = False,
) -> None:
    """Make the folder of one more site, or of one that lost it; this needs authority/ alone.

    A server/ that is still beside it gets to know the key. Otherwise its operator is sent site.pub.

    Example: fuels federation add-site metro west
    """
    from fuels.federation.flower.provisioning import new_site

    if new_site(folder, name, _names(methods), again):
        typer.echo(f"{folder}/sites/{name}/ is ready; {folder}/server/server.toml has its key.")
        return
    typer.echo(
        f"{folder}/sites/{name}/ is ready. Send its site.pub to the server's operator, who lets it"
        f" in: fuels server admit DIR {name} site.pub"
    )


@federation_app.command("renew")
def renew_command(folder: FoundedDir) -> None:
    """Sign a new certificate for the server; this needs authority/ alone.

    Example: fuels federation renew metro
    """
    from fuels.federation.flower.provisioning import renew

    if not renew(folder):
        typer.echo("the server has a new certificate; restart it, the sites need nothing")
        return
    typer.echo(
        f"{folder}/server/ is made anew. A server that is there gets its server.key and server.pem"
        " and is restarted; one that lost its folder gets all of it. The sites need nothing."
    )


@federation_app.command("run")
def run_command(
    folder: ServerDir,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Method to train: {', '.join(METHODS)}. Without it: fuels.",
            autocompletion=opt.complete(METHODS),
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Training rounds. Without it: 200 with preset paper, 40 with best.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Same seed, same result: everything random follows from it. Without it: 0.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(PRESETS),
            help="Where the settings start: paper (every setting of the paper) or best, the default"
            " of fuels run (richer inputs, and at each site its own mixture of experts). Without"
            " it: paper.",
            autocompletion=opt.complete(PRESETS),
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any other setting by its name in config.toml, e.g. options.tau=0.05 or"
            " model.hidden=64. May be given several times.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the current run, or ask sites that have no models yet once more.",
        ),
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Hand the run over and do not wait for its end.")
    ] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="Print the run's summary.json instead of words.")
    ] = False,
    show: Show = False,
) -> None:
    """Train: hand a run to the server and show its progress.

    It ends with 0 when every site has its models. Sites that did not confirm this are named, and
    it ends with 1, although the training is over: with --resume they are asked again.

    Example: fuels federation run metro/server --rounds 200 --method fuels
    """
    from fuels.federation.flower import commands, flower_app, runs
    from fuels.federation.flower.folders import ServerFolder
    from fuels.federation.flower.runs import Current, gone

    server = ServerFolder(folder)
    changes = given({"method": method, "seed": seed, "training": {"rounds": rounds}})
    run = ""
    if resume:
        if changes or preset or settings:
            raise FuelsError("--resume continues a run as it was begun; it takes no other settings")
        run = str(Current(server).read().get("run", ""))
        if not run:
            raise FuelsError(f"{server.path}: there is no run to go on with")
        if not (server.runs / run / "flower.toml").is_file():
            raise FuelsError(gone(server, run))
        chosen, _ = read_config(server.runs / run / "config.toml")
    else:
        chosen = _settings(preset or "paper", changes, settings or [])
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
    _follow(server, run, chosen.training.rounds, json_)


def _follow(server: ServerFolder, run: str, rounds: int, as_json: bool) -> None:
    """Show a run to its end, then what it came to; an error if a site is without its models."""
    from fuels.federation.flower.server import undelivered
    from fuels.federation.flower.status import follow
    from fuels.report.display import progress
    from fuels.storage.run_folder import RunFolder

    try:
        with progress(rounds) as watcher:
            unconfirmed = follow(server, run, rounds, watcher)
    except KeyboardInterrupt:
        typer.echo(f"run {run} goes on; fuels federation stop {server.path} ends it", err=True)
        raise
    store = RunFolder(server.runs / run)
    if as_json:
        summary = json.loads(store.summary.read_text(encoding="utf-8"))
        typer.echo(json.dumps({"run": run, "folder": str(store.path), **summary}, indent=2))
    else:
        typer.echo(f"run {run} is finished; results of the server: {store.path}")
    if unconfirmed:
        raise FuelsError(undelivered(unconfirmed, server))


@federation_app.command("status")
def status_command(folder: ServerDir, json_: Json = False, show: Show = False) -> None:
    """Where the current run stands and who is connected.

    Example: fuels federation status metro/server --json
    """
    from fuels.federation.flower import commands
    from fuels.federation.flower.folders import ServerFolder
    from fuels.federation.flower.server import undelivered
    from fuels.federation.flower.status import status

    server = ServerFolder(folder)
    if show:
        typer.echo(commands.shown(commands.list_nodes(), commands.server_environment(server)))
        return
    found = status(server)
    if json_:
        typer.echo(json.dumps(found, indent=2))
        return
    typer.echo(f"server    {'answers' if found['listening'] else 'does not answer'}")
    typer.echo(f"run       {found['run'] or 'none yet'} ({found['state'] or 'nothing started'})")
    if found["reason"]:
        typer.echo(f"reason    {found['reason']}")
    if found["unconfirmed"]:
        typer.echo(f"models    {undelivered(found['unconfirmed'], server)}")
    if found["rounds"]:
        typer.echo(f"round     {found['round']} of {found['rounds']}")
    for site, state in found["sites"].items():
        typer.echo(f"site      {site}: {state}")
    for text in found["failures"]:
        typer.echo(f"failure   {text}")
    for number, state in found["others"].items():
        typer.echo(f"besides   Flower's run {number}: {state}")


@federation_app.command("stop")
def stop_command(folder: ServerDir, show: Show = False) -> None:
    """Stop the current run; server and sites stay up.

    Where there is none, what was submitted by plain `flwr run` and has not begun is stopped.

    Example: fuels federation stop metro/server
    """
    from fuels.federation.flower import commands
    from fuels.federation.flower.folders import ServerFolder
    from fuels.federation.flower.runs import ACTIVE, Current, is_busy, standing
    from fuels.federation.flower.status import others

    server = ServerFolder(folder)
    found = standing(server)
    number = str(found.get("flower_run", ""))
    if show:
        extra = commands.server_environment(server)
        typer.echo(commands.shown(commands.stop_run(number or "RUN_ID"), extra))
        return
    rest = others(server, found)
    if found.get("state") in ACTIVE:
        Current(server).write(state="stopped", reason="stopped by fuels federation stop")
        answer = commands.call(commands.stop_run(number), server)
        if not answer.get("success") and is_busy(server):  # it may have ended by itself meanwhile
            raise FuelsError(f"Flower did not stop the run: {answer.get('error-message', '')}")
        typer.echo(f"run {found['run']} is stopped; --resume takes it up after its last round")
        if rest:
            typer.echo(f"Flower has further runs ({', '.join(rest)}): stop once more ends them")
        return
    if not rest:
        raise FuelsError(f"{server.path}: no run is in progress")
    for other in rest:
        answer = commands.call(commands.stop_run(other), server)
        if not answer.get("success"):
            reason = answer.get("error-message", "")
            raise FuelsError(f"Flower did not stop its run {other}: {reason}")
        typer.echo(f"Flower's run {other} is stopped")


federation_app.command("demo")(demo_command)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _settings(preset: str, changes: dict[str, Any], assignments: list[str]) -> Settings:
    """Preset, then options, then --set: the later one wins, as in `fuels run`."""
    from fuels.federation.flower.flower_app import federated

    settings = with_preset(Settings(), preset, f"--preset {preset}")
    settings = merge(settings, changes, "command line")
    for text in assignments:
        settings = merge(settings, assignment(text), f"--set {text}")
    return federated(settings, "--set")
