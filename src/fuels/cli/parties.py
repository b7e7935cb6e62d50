"""`fuels server` and `fuels site`: what each party of a federation runs on its own machine."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer

from fuels.cli import options as opt
from fuels.errors import FuelsError
from fuels.version import not_installed

server_app = typer.Typer(help="The server of a federation.", no_args_is_help=True)
site_app = typer.Typer(help="A site of a federation.", no_args_is_help=True)

SHOW = opt.flag(
    "Print the commands that this one would run, ready for a shell or a unit file, and exit.",
    name="--show",
)
ServerDir = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="The server's folder, such as metro/server, or the folder created by init.",
    ),
]
SiteDir = Annotated[
    Path, typer.Argument(metavar="DIR", help="The site's folder, such as metro/sites/north.")
]


@server_app.callback()
@site_app.callback()
def need_flower() -> None:
    """Flower and the library for keys are installed with an extra of this package."""
    if "--help" in sys.argv or "-h" in sys.argv:
        return
    if not all(importlib.util.find_spec(name) for name in ("flwr", "cryptography")):
        raise FuelsError(not_installed("Flower", "flower"))


@server_app.command("start")
def server_start(folder: ServerDir, show: bool = SHOW) -> None:
    """Start the server: Flower's SuperLink with TLS, authentication and a database.

    It runs until it is stopped. If one of its processes ends, the command names it and exits with
    1. When the server starts again, it resumes an interrupted run.

    Example: fuels server start metro/server
    """
    from fuels.federation.flower import commands, processes
    from fuels.federation.flower.folders import ServerFolder

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
    folder: ServerDir,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the site, such as west.")],
    key: Annotated[
        Path, typer.Argument(metavar="FILE", help="The site.pub file that the site sent.")
    ],
) -> None:
    """Register the public key of a new site, or the new key of a known one.

    A running server picks the key up within seconds and revokes the site's former key.

    Example: fuels server admit metro/server west site.pub
    """
    from fuels.federation.flower.folders import ServerFolder
    from fuels.federation.flower.pki import read_public_key
    from fuels.federation.flower.provisioning import admit

    former = admit(ServerFolder(folder), name, read_public_key(key))
    typer.echo(
        f"site {name} has a new key; the former one is revoked"
        if former
        else f"site {name} is admitted"
    )


@site_app.command("renew-key")
def site_renew_key(folder: SiteDir) -> None:
    """Create a new key pair for a site; the former pair is kept in the same folder.

    The site keeps its models. Its new public key must be registered at the server before the site
    can connect again.

    Example: fuels site renew-key metro/sites/north
    """
    from fuels.federation.flower.folders import SiteFolder
    from fuels.federation.flower.provisioning import renew_key

    site = SiteFolder(folder)
    renew_key(site)
    typer.echo(
        f"{site.public_key} is the new key: send this file, and only this, to the server's"
        f" operator, who registers it with fuels server admit DIR {site.config.name} site.pub; then"
        " restart the site"
    )


@site_app.command("start")
def site_start(
    folder: SiteDir,
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
    from fuels.federation.flower import commands, processes
    from fuels.federation.flower.folders import SiteFolder, set_up_log

    site = SiteFolder(folder)
    if not show:
        set_up_log()
        processes.run_site(site, data)
        return
    extra = commands.site_environment(site)
    for what, command in (
        ("the worker: stays loaded and trains", commands.worker(site)),
        ("the SuperNode", commands.supernode(site, processes.site_data(site, data), 9094)),
    ):
        typer.echo(f"# {what}\n{commands.shown(command, extra)}")
