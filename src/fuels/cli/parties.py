"""`fuels server` and `fuels site`: what each party of a federation runs on its own machine."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import typer

from fuels.cli import options as opt
from fuels.errors import FuelsError
from fuels.federation.audit import fingerprint
from fuels.federation.flower import commands
from fuels.federation.flower.folders import ServerFolder, SiteFolder, key_of, set_up_log
from fuels.federation.flower.records import audit
from fuels.version import not_installed

server_app = typer.Typer(help="The server of a federation.", no_args_is_help=True)
site_app = typer.Typer(help="A site of a federation.", no_args_is_help=True)

PORT = 9094  # of the SuperNode, on loopback, in the commands that are shown
LAST = opt.option("N", "Number of entries to show, the newest.", default=20)
JSON = opt.flag("Print the entries as JSON lines.", name="--json")
SHOW = opt.flag(
    "Print the commands that this one would run, ready for a shell or a unit file, and exit.",
    name="--show",
)
SERVER = opt.argument(
    "DIR", "The server's folder, such as metro/server, or the folder created by init."
)
SITE = opt.argument("DIR", "The site's folder, such as metro/sites/north.")


@server_app.callback()
@site_app.callback()
def need_flower() -> None:
    """Flower and the library for keys are installed with an extra of this package."""
    if "--help" in sys.argv or "-h" in sys.argv:
        return
    if not all(importlib.util.find_spec(name) for name in ("flwr", "cryptography")):
        raise FuelsError(not_installed("Flower", "flower"))


@server_app.command("start")
def server_start(folder: Path = SERVER, show: bool = SHOW) -> None:
    """Start the server: Flower's SuperLink with TLS, authentication and a database.

    It runs until it is stopped. If one of its processes ends, the command names it and exits with
    1. When the server starts again, it resumes an interrupted run.

    Example: fuels server start metro/server
    """
    from fuels.federation.flower import processes

    server = ServerFolder(folder)
    if not show:
        processes.run_server(server)
        return
    extra = commands.server_environment(server)
    for what, command in (
        ("the SuperLink", commands.superlink(server)),
        ("the gateway: the public port", commands.gateway(server)),
        ("the supervisor: registers keys, resumes a run", commands.supervisor(server)),
    ):
        typer.echo(f"# {what}\n{commands.shown(command, extra)}")


@server_app.command("admit")
def server_admit(
    folder: Path = SERVER,
    name: str = opt.argument("NAME", "Name of the site, such as west."),
    key: Path = opt.argument("FILE", "The site.pub file that the site sent."),
) -> None:
    """Register the public key of a new site, or the new key of a known one.

    A running server picks the key up within seconds and revokes the site's former key.

    Example: fuels server admit metro/server west site.pub
    """
    from fuels.federation.flower.pki import read_public_key
    from fuels.federation.flower.provisioning import admit

    server, line = ServerFolder(folder), read_public_key(key)
    former = admit(server, name, line)
    audit(server).add("admitted", site=name, key=fingerprint(line), renewed=former)
    typer.echo(
        f"site {name} has a new key; the former one is revoked"
        if former
        else f"site {name} is admitted"
    )


@server_app.command("audit")
def server_audit(folder: Path = SERVER, last: int = LAST, json_: bool = JSON) -> None:
    """Show the audit log of a server and check that no line is missing or changed.

    It lists who was admitted and joined, what was sent, received and refused (sizes and SHA-256),
    and changes of keys. The exit code is 1 if the log was changed.

    Example: fuels server audit metro/server
    """
    _show_audit(ServerFolder(folder), last, json_)


@site_app.command("audit")
def site_audit(folder: Path = SITE, last: int = LAST, json_: bool = JSON) -> None:
    """Show the audit log of a site and check that no line is missing or changed.

    It lists what was sent (size and SHA-256), which requests were refused, and changes of keys and
    consent. The exit code is 1 if the log was changed.

    Example: fuels site audit metro/sites/north
    """
    _show_audit(SiteFolder(folder), last, json_)


def _show_audit(folder: ServerFolder | SiteFolder, last: int, as_json: bool) -> None:

    folder.config  # noqa: B018  refuses a folder of another kind
    book = audit(folder)
    lines, head, problem = book.check()
    for entry in book.entries()[-last:] if last else []:
        if as_json:
            typer.echo(json.dumps(entry))
            continue
        facts = {k: v for k, v in entry.items() if k not in ("number", "time", "event", "before")}
        shown = ", ".join(f"{key} {value}" for key, value in facts.items())
        typer.echo(f"{entry.get('time')}  {entry.get('event')}: {shown}")
    if problem:
        raise FuelsError(f"{book.path}: lines are missing or were changed: {problem}")
    intact = f"{lines} entries, none missing or changed; the last has SHA-256 {head}"
    typer.echo(intact if lines else "no entries yet", err=True)


@site_app.command("renew-key")
def site_renew_key(folder: Path = SITE) -> None:
    """Create new keys for a site; the former ones are kept in the same folder.

    The site keeps its models. Its new public key must be registered at the server before the site
    can connect again, and its new key for sums must be in the founder's roster before it takes part
    in sums.

    Example: fuels site renew-key metro/sites/north
    """
    from fuels.federation.flower.provisioning import renew_key

    site = SiteFolder(folder)
    renew_key(site)
    line = site.public_key.read_text(encoding="ascii")
    audit(site).add("key renewed", key=fingerprint(key_of(line)))
    typer.echo(
        f"{site.public_key} is the new key: send this file to the server's operator, who registers"
        f" it with fuels server admit DIR {site.config.name} site.pub; then restart the site. For"
        f" sums, send {site.sums_public} to the founder, who signs a new roster with fuels"
        f" federation roster DIR --key {site.config.name}=sums.pub. Send no other file."
    )


@site_app.command("start")
def site_start(
    folder: Path = SITE,
    data: str = opt.option(
        "PATH|synthetic:NAME",
        "The site's data, such as my.parquet. Default: data.source in its site.toml.",
        default="",
    ),
    show: bool = SHOW,
) -> None:
    """Start a site: Flower's SuperNode with this site's key and data.

    It runs until it is stopped, and keeps trying to reach a server that does not answer.

    Example: fuels site start metro/sites/north --data my.parquet
    """
    from fuels.federation.flower import processes

    site = SiteFolder(folder)
    if not show:
        set_up_log()
        processes.run_site(site, data)
        return
    extra = commands.site_environment(site)
    for what, command in (
        ("the worker: stays loaded and trains", commands.worker(site)),
        ("the SuperNode", commands.supernode(site, processes.site_data(site, data), PORT)),
        (
            "the dispatcher: takes the SuperNode's messages to the worker",
            commands.dispatcher(site, PORT),
        ),
    ):
        typer.echo(f"# {what}\n{commands.shown(command, extra)}")
