"""`fuels federation roster`: the founder certifies the sites of masked sums."""

from __future__ import annotations

from pathlib import Path

import typer

from fuels.cli import options as opt
from fuels.errors import FuelsError

FOUNDED = opt.argument("DIR", "Folder created by init, such as metro.")


def roster_command(
    folder: Path = FOUNDED,
    clients: str = opt.option(
        "SITE=N,...",
        "Number of clients of each site, such as north=12,south=9. A site that is not named keeps"
        " its number from the previous roster.",
        default="",
    ),
    key: list[str] | None = opt.option(
        "SITE=FILE",
        "The sums.pub that a site sent after fuels site renew-key. Can be repeated.",
        name="--key",
    ),
) -> None:
    """Certify which sites take part in masked sums, with their keys and numbers of clients.

    Signs roster.json with the authority's key, so it needs authority/. A site exchanges sums only
    with sites in this roster. Without a roster, runs exchange no sums.

    Example: fuels federation roster metro --clients north=12,south=9,east=20
    """
    from fuels.federation.flower.provisioning import federation_record
    from fuels.federation.flower.sum_keys import certify

    numbers: dict[str, int] = {}
    for site, text in _pairs(clients.split(","), "--clients").items():
        if not text.isdecimal():
            raise FuelsError(f"--clients {site}={text}: {text} is not a number of clients")
        numbers[site] = int(text)
    files = {site: Path(text) for site, text in _pairs(key or [], "--key").items()}
    roster, here = certify(folder, federation_record(folder), numbers, files)
    listed = ", ".join(f"{site} {member.clients}" for site, member in roster.members.items())
    typer.echo(f"roster {roster.serial} is signed: {listed}")
    if len(roster.members) < 3:
        typer.echo("sums need at least three sites: with these, none is exchanged")
    typer.echo(
        f"it is in {folder}/server/roster.json"
        if here
        else f"give {folder}/authority/roster.json to the server's operator for the server's folder"
    )


def _pairs(texts: list[str], option: str) -> dict[str, str]:
    """`SITE=VALUE` each."""
    found: dict[str, str] = {}
    for text in (text.strip() for text in texts):
        site, equals, value = text.partition("=")
        if text and not (site and equals and value):
            raise FuelsError(f"{option} {text!r} must be a site and a value, such as north=12")
        if site in found:
            raise FuelsError(f"{option} names site {site} twice")
        if text:
            found[site] = value
    return found
