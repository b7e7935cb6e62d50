"""Creates the folders of a federation, and later those of further sites, new keys and certificates.

Folders are handed over and deleted where they were created, so everything after the first step
works with what the founder keeps: authority/, with the authority's key and a copy of server.toml.
If server/ is still there, it is updated as well.
"""

from __future__ import annotations

import ipaddress
import re
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import tomli_w

from fuels.errors import FuelsError
from fuels.federation.flower.commands import write_connection
from fuels.federation.flower.flower_app import write_app
from fuels.federation.flower.folders import (
    Consent,
    Rules,
    ServerConfig,
    ServerFolder,
    SiteConfig,
    SiteFolder,
    check_listen,
    check_name,
    key_of,
)
from fuels.federation.flower.pki import make_authority, make_server_certificate, make_site_key
from fuels.methods.registry import find_method

LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"  # of a host name; those of IPv4 fit too
HOST = re.compile(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*")


SERVER_HEADER = """\
# The server of a federation. `rules` says when a round closes: after all answers, or after
# `deadline` seconds; with fewer than `quorum` of the asked sites it is asked again. `sites` lists
# who may take part: a name and its public key. Take a line out to exclude a site.
"""
SITE_HEADER = """\
# A site of a federation. `consent` says what may leave it: which methods it takes part in (fuels
# sends prototypes, others send model parameters), whether error figures may be sent (`metrics`),
# and whether arrays may that are computed from raw values, have rows for every training period, or
# are means of fewer periods than `least_periods` or of periods with more steps than
# `longest_period` (`raw_derived`). `data.source` is the file to train on.
"""

HEADER = re.compile(r"\s*\[")  # of a table in a TOML file


def provision(
    path: Path,
    name: str,
    sites: Sequence[str],
    server: str,
    port: int,
    *,
    listen: str = "",
    control_port: int = 0,
    methods: Sequence[str] = ("fuels",),
    rules: Rules | None = None,
) -> None:
    """Make the folders of a new federation in `path`, which must not exist yet."""
    check_name(name, "--name")
    for site in sites:
        check_name(site, "site")
    if not sites or len(set(sites)) != len(sites):
        raise FuelsError("--sites needs at least one name, and none twice")
    check_host(server, "--server")
    if listen:
        check_listen(listen, "--listen")
        check_host(listen, "--listen")
    control_port = control_port or port + 1
    for number in (port, control_port):
        if not 1 <= number <= 65535:
            raise FuelsError(
                f"--port {port}: a port lies between 1 and 65534; the one above it is for the"
                " operator's own commands"
            )
    check_methods(methods)
    if path.exists():
        raise FuelsError(f"{path} exists; choose another folder with --out")
    with all_or_nothing(path):
        authority = path / "authority"
        authority.mkdir(parents=True)
        authority.chmod(0o700)
        make_authority(authority, name)
        keys = {site: add_site(path, name, site, f"{server}:{port}", methods) for site in sites}
        config = ServerConfig(
            federation=name,
            host=listen or ("127.0.0.1" if server in ("127.0.0.1", "localhost") else "0.0.0.0"),
            port=port,
            control_port=control_port,
            address=f"{server}:{port}",
            rules=rules or Rules(),
            sites=keys,
        )
        make_server(path, config)
        write(authority / "server.toml", SERVER_HEADER, asdict(config))
        (path / "README.md").write_text(_page(name, sites, path.name), encoding="utf-8")


def make_server(path: Path, config: ServerConfig) -> None:
    """The server's folder, with a certificate that the authority beside it signs."""
    folder = path / "server"
    for private in (folder, folder / "state"):  # it will hold who takes part, and prototypes
        private.mkdir(parents=True)
        private.chmod(0o700)
    host = config.address.rpartition(":")[0]
    make_server_certificate(path / "authority", folder, [host, "localhost", "127.0.0.1"])
    write(folder / "server.toml", SERVER_HEADER, asdict(config))
    write_app(folder / "app")
    write_connection(ServerFolder(folder))


def check_host(host: str, place: str) -> None:
    """A name or an IPv4 address, as it stands in a certificate and before a port."""
    digits = host.rpartition(".")[2].isdecimal()  # then it is an address or nothing
    if not HOST.fullmatch(host) or (digits and not _is_address(host)):
        hint = "a host name or an IPv4 address, in ASCII and without a port (that is --port)"
        raise FuelsError(f"{place} {host!r} must be {hint}")


def _is_address(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def check_methods(methods: Sequence[str]) -> None:
    if not methods:
        raise FuelsError("--methods needs at least one method")
    for method in methods:
        find_method(method)


@contextmanager
def all_or_nothing(folder: Path) -> Iterator[None]:
    """A folder that is filled as a whole or not at all; it must not exist yet."""
    made = [folder, *(parent for parent in folder.parents if not parent.exists())]
    try:
        yield
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        for parent in made[1:]:  # nearest first; none of them was there before
            with suppress(OSError):
                parent.rmdir()
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise FuelsError(f"{folder}: cannot be created ({reason})") from None
        raise


def add_site(path: Path, federation: str, site: str, server: str, methods: Sequence[str]) -> str:
    """A site's folder with its key; returns the public key, which the server must know."""
    folder = path / "sites" / site
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    line = make_site_key(folder)
    (folder / "ca.pem").write_bytes((path / "authority" / "ca.pem").read_bytes())
    config = asdict(
        SiteConfig(
            federation=federation, name=site, server=server, consent=Consent(methods=tuple(methods))
        )
    )
    config["consent"]["methods"] = list(methods)
    del config["data"]["ids"]
    config["data"] = {key: value for key, value in config["data"].items() if key == "source"}
    write(folder / "site.toml", SITE_HEADER, config)
    return line


def write(path: Path, header: str, content: dict[str, object]) -> None:
    path.write_text(header + tomli_w.dumps(content), encoding="utf-8")


def _page(name: str, sites: Sequence[str], folder: str) -> str:
    rows = "\n".join(f"| `sites/{site}/` | the owner of site {site} alone |" for site in sites)
    return f"""\
# Federation {name}: who gets which folder

| folder | goes to |
|---|---|
| `authority/` | nobody: the founder keeps it, offline, since it can sign a false server |
| `server/` | whoever runs the server |
{rows}

Hand a folder over on a way that only its receiver can read, then delete your copy. Keep
`{folder}/authority/`, and a copy of it in another place: with it alone, and with nothing else of
this folder,

    fuels federation add-site {folder} NAME            makes the folder of one more site
    fuels federation add-site {folder} NAME --again    makes another for a site that lost its own
    fuels federation renew {folder}                    makes a server/ with a new certificate

Never send, to anyone:

- `authority/ca.key`, `server/server.key`, `sites/*/site.key`: private keys (mode 0600)
- a site's data file, and what a site has in `state/` and `runs/`: models and forecasts are its own

May be known to anyone: `ca.pem`, `server.pem`, `site.pub`.

## Starting

    fuels server start {folder}/server
    fuels site start {folder}/sites/{sites[0]} --data FILE     # at each site, with its own folder
    fuels federation run {folder}/server --rounds 200

`--show` prints the commands of Flower behind each of these, for systemd, Compose or Kubernetes.
"""


def new_site(path: Path, site: str, methods: Sequence[str], again: bool = False) -> bool:
    """A site's folder, for a new site or, `again`, for one that lost it; both get a new key.

    Returns whether the server's folder is here and knows the key. If not, its operator must be
    given the public key.
    """
    check_name(site, "site")
    check_methods(methods)
    record = federation_record(path)
    config = record.config
    if again and site not in config.sites:
        raise FuelsError(f"{record.config_file}: there is no site {site} that lost its folder")
    if not again and site in config.sites:
        raise FuelsError(
            f"{record.config_file}: there is a site {site} already; if it lost its folder, make"
            " another with --again"
        )
    folder = unused(path / "sites" / site)
    with all_or_nothing(folder):
        line = add_site(path, config.federation, site, config.address, methods)
        admit(record, site, line)
        update_record(path)
    return record.path != (path / "authority").resolve()


def renew(path: Path) -> bool:
    """A new certificate and key for the server, signed by the authority.

    Where the server's folder is here, the former files are kept beside the new ones. Where it is
    not, it is made anew from the founder's record: returns whether that was done.
    """
    authority, record = path / "authority", federation_record(path)
    if not (authority / "ca.key").is_file():
        raise FuelsError(f"{authority}: its ca.key is needed to sign")
    config = record.config
    if record.path == authority.resolve():
        if (path / "server").exists():
            raise FuelsError(f"{path / 'server'} exists without a server.toml; move it away")
        with all_or_nothing(path / "server"):
            make_server(path, config)
        return True
    fresh = cleared(record.path / "renewed")
    with all_or_nothing(fresh):
        fresh.mkdir(mode=0o700)
        host = config.address.rpartition(":")[0]
        make_server_certificate(authority, fresh, [host, "localhost", "127.0.0.1"])
    for file in (record.key, record.certificate):
        if file.exists():
            file.replace(file.with_name(f"{file.name}.former"))
        (fresh / file.name).replace(file)
    shutil.rmtree(fresh)
    update_record(path)
    return False


def renew_key(folder: SiteFolder) -> None:
    """A new key pair for a site, made at the site; the former one is kept beside it."""
    check_name(folder.config.name, f"{folder.config_file}: name")
    fresh = cleared(folder.path / "renewed")
    with all_or_nothing(fresh):
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


def federation_record(path: Path) -> ServerFolder:
    """Where the founder reads what the federation is: server/ if it is here, else authority/."""
    authority = path / "authority"
    if not (authority / "ca.pem").is_file():
        raise FuelsError(f"{path}: the founder's folder is needed, with authority/ in it")
    if (path / "server" / "server.toml").is_file():
        return ServerFolder(path)
    if not (authority / "server.toml").is_file():
        raise FuelsError(f"{authority}: server.toml is missing; put a copy of the server's there")
    return ServerFolder(authority)


def update_record(path: Path) -> None:
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
