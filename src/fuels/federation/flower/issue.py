"""After founding: further sites, folders that were lost, new keys and certificates.

Folders are handed over and deleted where they were made, so all of this works with what the founder
keeps: authority/, which holds the authority's key and a copy of server.toml. Where server/ is still
there too, it is brought up to date with it.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path

import tomli_w
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from fuels.errors import FuelsError
from fuels.federation.flower.found import (
    add_site,
    check_methods,
    make_server,
    or_nothing,
)
from fuels.federation.flower.keys import make_server_certificate, make_site_key
from fuels.federation.flower.parties import ServerFolder, SiteFolder, check_name, key_of

HEADER = re.compile(r"\s*\[")  # of a table in a TOML file


def new_site(path: Path, site: str, methods: Sequence[str], again: bool = False) -> bool:
    """A site's folder, for a new site or, `again`, for one that lost it; both get a new key.

    Returns whether the server's folder is here and knows the key. If not, its operator must be
    given the public key.
    """
    check_name(site, "site")
    check_methods(methods)
    record = founders_record(path)
    config = record.config
    if again and site not in config.sites:
        raise FuelsError(f"{record.config_file}: there is no site {site} that lost its folder")
    if not again and site in config.sites:
        raise FuelsError(
            f"{record.config_file}: there is a site {site} already; if it lost its folder, make"
            " another with --again"
        )
    folder = unused(path / "sites" / site)
    with or_nothing(folder):
        line = add_site(path, config.federation, site, config.address, methods)
        admit(record, site, line)
        keep_record(path)
    return record.path != (path / "authority").resolve()


def renew(path: Path) -> bool:
    """A new certificate and key for the server, signed by the authority.

    Where the server's folder is here, the former files are kept beside the new ones. Where it is
    not, it is made anew from the founder's record: returns whether that was done.
    """
    authority, record = path / "authority", founders_record(path)
    if not (authority / "ca.key").is_file():
        raise FuelsError(f"{authority}: its ca.key is needed to sign")
    config = record.config
    if record.path == authority.resolve():
        if (path / "server").exists():
            raise FuelsError(f"{path / 'server'} exists without a server.toml; move it away")
        with or_nothing(path / "server"):
            make_server(path, config)
        return True
    fresh = cleared(record.path / "renewed")
    with or_nothing(fresh):
        fresh.mkdir(mode=0o700)
        host = config.address.rpartition(":")[0]
        make_server_certificate(authority, fresh, [host, "localhost", "127.0.0.1"])
    for file in (record.key, record.certificate):
        if file.exists():
            file.replace(file.with_name(f"{file.name}.former"))
        (fresh / file.name).replace(file)
    shutil.rmtree(fresh)
    keep_record(path)
    return False


def renew_key(folder: SiteFolder) -> None:
    """A new key pair for a site, made at the site; the former one is kept beside it."""
    check_name(folder.config.name, f"{folder.config_file}: name")
    fresh = cleared(folder.path / "renewed")
    with or_nothing(fresh):
        fresh.mkdir(mode=0o700)
        make_site_key(fresh)
    for file in (folder.key, folder.public_key):
        if file.exists():
            file.replace(file.with_name(f"{file.name}.former"))
        (fresh / file.name).replace(file)
    fresh.rmdir()


def unused(folder: Path) -> Path:
    if folder.exists():
        raise FuelsError(f"{folder} exists; it is not replaced")
    return folder


def cleared(folder: Path) -> Path:
    """Without what a renewal that was killed has left: nobody uses those keys."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def founders_record(path: Path) -> ServerFolder:
    """Where the founder reads what the federation is: server/ if it is here, else authority/."""
    authority = path / "authority"
    if not (authority / "ca.pem").is_file():
        raise FuelsError(f"{path}: the founder's folder is needed, with authority/ in it")
    if (path / "server" / "server.toml").is_file():
        return ServerFolder(path)
    if not (authority / "server.toml").is_file():
        raise FuelsError(f"{authority}: server.toml is missing; put a copy of the server's there")
    return ServerFolder(authority)


def keep_record(path: Path) -> None:
    """Bring the founder's copy of server.toml up to date where the server's own is here."""
    current = path / "server" / "server.toml"
    if current.is_file():
        _replace(path / "authority" / "server.toml", current.read_text(encoding="utf-8"))


def admit(folder: ServerFolder, site: str, line: str) -> bool:
    """Put a site's public key into server.toml; returns whether it takes the place of another.

    The rest of the file stays as it is, with its comments.
    """
    check_name(site, "site")
    config = folder.config
    for name, known in config.sites.items():
        if key_of(known) == key_of(line):
            raise FuelsError(f"{folder.config_file}: site {name} has this key already")
    lines = folder.config_file.read_text(encoding="utf-8").splitlines(keepends=True)
    entry = tomli_w.dumps({site: line})
    heads = [i for i, text in enumerate(lines) if re.match(r"\s*\[\s*sites\s*\]", text)]
    if heads:
        first = heads[0] + 1
        last = next((i for i in range(first, len(lines)) if HEADER.match(lines[i])), len(lines))
        own = re.compile(rf"""\s*["']?{re.escape(site)}["']?\s*=""")
        kept = [text for text in lines[first:last] if not own.match(text)]
        text = "".join([*lines[:first], entry, *kept, *lines[last:]])
    else:
        text = "".join(lines).rstrip("\n") + f"\n\n[sites]\n{entry}"
    if not _says(text, {**config.sites, site: line}):
        raise FuelsError(f"{folder.config_file}: add this to its [sites] by hand: {entry.strip()}")
    _replace(folder.config_file, text)
    return site in config.sites


def _says(text: str, sites: dict[str, str]) -> bool:
    try:
        return tomllib.loads(text).get("sites") == sites
    except tomllib.TOMLDecodeError:
        return False


def _replace(file: Path, text: str) -> None:
    """A running server reads the file at any moment: it is replaced as a whole."""
    temporary = file.with_name(f"{file.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)


def read_public_key(file: Path) -> str:
    """The line of a site.pub that a site has sent."""
    try:
        text = file.read_text(encoding="ascii")
    except (OSError, UnicodeError) as error:
        raise FuelsError(f"{file}: no public key can be read ({error})") from None
    if "PRIVATE KEY" in text:
        raise FuelsError(
            f"{file}: this is a private key, which must never be sent; the site renews it and sends"
            " site.pub"
        )
    try:
        key = load_ssh_public_key(text.strip().encode("ascii"))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FuelsError(f"{file}: not the public key of a site, as in its site.pub")
    return key_of(text)
