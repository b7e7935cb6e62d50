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
from fuels.federation.flower.pki import (
    SHARED,
    make_authority,
    make_server_certificate,
    make_site_key,
    read_secret,
)
from fuels.federation.flower.sum_keys import SUMS, make_sums_key, used_mark
from fuels.methods.registry import find_method

LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"  # of a host name; parts of IPv4 fit too
HOST = re.compile(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*")


SERVER_HEADER = """\
# The server of a federation. `rules` says when a round closes: when all sites have replied, or
# after `deadline` seconds; with replies from less than `quorum` of the sites it is repeated.
# `sites` lists who may take part, by name and public key. Remove a line to exclude a site.
"""
SITE_HEADER = """\
# A site of a federation. `consent` says what may leave it: the methods it takes part in (fuels
# sends prototypes, others send model parameters), whether it sends error figures (`metrics`), and
# whether it sends arrays that are computed from raw values, have a row for every training period,
# or are means of fewer periods than `least_periods` or of periods with more steps than
# `longest_period` (`raw_derived`). With `sums` and `live_mean` it adds up numbers with at least two
# other sites, masked so that the server sees only totals; with `epsilon` above 0, only with noise,
# and all runs together spend at most that much. With `unmasked = false` it sends uploads of a
# method only as masked sums. `data.source` is the file to train on.
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
    """Create the folders of a new federation in `path`, which must not exist yet."""
    check_name(name, "--name")
    for site in sites:
        check_name(site, "site")
    if not sites or len(set(sites)) != len(sites):
        raise FuelsError("--sites needs at least one name, and all names must be different")
    check_host(server, "--server")
    if listen:
        check_listen(listen, "--listen")
        check_host(listen, "--listen")
    control_port = control_port or port + 1
    for number in (port, control_port):
        if not 1 <= number <= 65535:
            raise FuelsError(
                f"--port {port} must be between 1 and 65534; the next port is for the operator's"
                " own commands"
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
    """The server's folder, with a certificate signed by the authority in the same folder."""
    folder = path / "server"
    for private in (folder, folder / "state"):  # for the members and their prototypes
        private.mkdir(parents=True)
        private.chmod(0o700)
    make_server_certificate(path / "authority", folder, certified_hosts(config))
    write(folder / "server.toml", SERVER_HEADER, asdict(config))
    write_app(folder / "app")
    write_connection(ServerFolder(folder))


def certified_hosts(config: ServerConfig) -> list[str]:
    return [config.address.rpartition(":")[0], "localhost", "127.0.0.1"]


def check_host(host: str, place: str) -> None:
    """A name or an IPv4 address, as used in a certificate and before a port."""
    digits = host.rpartition(".")[2].isdecimal()  # then it can only be an address
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
    """Fill a folder completely or not at all; it must not exist yet."""
    made = [folder, *(parent for parent in folder.parents if not parent.exists())]
    try:
        yield
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        for parent in made[1:]:  # nearest first; none of them existed before
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
    make_sums_key(folder)
    known = path / "authority" / SUMS
    known.mkdir(exist_ok=True)
    shutil.copy(folder / "sums.pub", known / f"{site}.pub")
    (folder / "ca.pem").write_bytes((path / "authority" / "ca.pem").read_bytes())
    give_secret(path, folder)
    config = asdict(
        SiteConfig(
            federation=federation, name=site, server=server, consent=Consent(methods=tuple(methods))
        )
    )
    config["consent"]["methods"] = list(methods)
    config["data"] = {"source": config["data"]["source"]}
    write(folder / "site.toml", SITE_HEADER, config)
    return line


def give_secret(path: Path, folder: Path) -> None:
    """Copy the secret of all sites, which is created if it is missing, into a site's folder."""
    read_secret(path / "authority" / SHARED)
    shutil.copy(path / "authority" / SHARED, folder / SHARED)  # with its mode, 0600


def renew_secret(path: Path) -> list[str]:
    """A new secret for all sites; returns the sites whose folders are here and have got it."""
    record = federation_record(path)
    with renewed(path / "authority" / SHARED) as fresh:
        read_secret(fresh / SHARED)
    here = [site for site in record.config.sites if (path / "sites" / site / "site.toml").is_file()]
    for site in here:
        give_secret(path, path / "sites" / site)
    return here


def write(path: Path, header: str, content: dict[str, object]) -> None:
    path.write_text(header + tomli_w.dumps(content), encoding="utf-8")


def _page(name: str, sites: Sequence[str], folder: str) -> str:
    rows = "\n".join(f"| `sites/{site}/` | only the owner of site {site} |" for site in sites)
    return f"""\
# Federation {name}: who gets which folder

| folder | goes to |
|---|---|
| `authority/` | nobody: the founder keeps it, offline, because it can certify a false server |
| `server/` | the server's operator |
{rows}

Hand each folder over through a channel that only its recipient can read, then delete your copy.
Keep `{folder}/authority/`, and a copy of it in another place. It is all that these commands need:

    fuels federation add-site {folder} NAME            creates the folder of another site
    fuels federation add-site {folder} NAME --again    creates a new one for a site that lost it
    fuels federation renew {folder}                    creates a server/ with a new certificate
    fuels federation renew-secret {folder}             creates a new federation.secret for all sites
    fuels federation roster {folder} --clients {sites[0]}=12,...
                                                    certifies the sites of masked sums

Never send to anyone:

- `authority/ca.key`, `server/server.key`, `sites/*/site.key`, `sites/*/sums.key`: private keys
  (mode 0600)
- `federation.secret`: for the sites only, and never for the server
- a site's data file, and its `state/` and `runs/`: models and forecasts belong to the site

These files are public: `ca.pem`, `server.pem`, `site.pub`, `sums.pub`, `roster.json`.

## Starting

    fuels server start {folder}/server
    fuels site start {folder}/sites/{sites[0]} --data FILE     # at each site, with its own folder
    fuels federation run {folder}/server

With `--show`, these print the commands that they would run, for systemd, Compose or Kubernetes.
"""


def new_site(path: Path, site: str, methods: Sequence[str], again: bool = False) -> bool:
    """A folder for a new site or, with `again`, for a site that lost its folder; with a new key.

    Returns whether the key was added to the server's folder, if that is here. If not, the server's
    operator needs the public key.
    """
    check_name(site, "site")
    check_methods(methods)
    record = federation_record(path)
    config = record.config
    if again and site not in config.sites:
        raise FuelsError(f"{record.config_file}: there is no site {site}; omit --again")
    if not again and site in config.sites:
        raise FuelsError(
            f"{record.config_file}: there is already a site {site}; if it lost its folder, create"
            " a new one with --again"
        )
    folder = path / "sites" / site
    if folder.exists():
        raise FuelsError(f"{folder} already exists and is not replaced")
    with all_or_nothing(folder):
        line = add_site(path, config.federation, site, config.address, methods)
        admit(record, site, line)
        update_record(path)
    return record.path != (path / "authority").resolve()


def renew(path: Path) -> bool:
    """A new certificate and key for the server, signed by the authority.

    If the server's folder is here, the former files are kept in it. Otherwise the folder is created
    from the founder's record. Returns whether it was created.
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
    with renewed(record.key, record.certificate) as fresh:
        make_server_certificate(authority, fresh, certified_hosts(config))
    update_record(path)
    return False


def renew_key(folder: SiteFolder) -> None:
    """New key pairs for a site, created at the site; the former ones are kept in the folder."""
    check_name(folder.config.name, f"{folder.config_file}: name")
    with renewed(folder.key, folder.public_key, folder.sums_key, folder.sums_public) as fresh:
        make_site_key(fresh)
        make_sums_key(fresh)
    used_mark(folder).unlink(missing_ok=True)


@contextmanager
def renewed(*files: Path) -> Iterator[Path]:
    """A folder for new versions of these files, which then replace them; the former are kept."""
    fresh = files[0].parent / "renewed"
    shutil.rmtree(fresh, ignore_errors=True)  # left by an interrupted renewal: not in use
    with all_or_nothing(fresh):
        fresh.mkdir(mode=0o700)
        yield fresh
    for file in files:
        if file.exists():
            file.replace(file.with_name(f"{file.name}.former"))
        (fresh / file.name).replace(file)
    shutil.rmtree(fresh)


def federation_record(path: Path) -> ServerFolder:
    """The folder with the founder's record: server/ if it is here, otherwise authority/."""
    authority = path / "authority"
    if not (authority / "ca.pem").is_file():
        raise FuelsError(f"{path}: not the founder's folder: authority/ is missing")
    if (path / "server" / "server.toml").is_file():
        return ServerFolder(path)
    if not (authority / "server.toml").is_file():
        raise FuelsError(f"{authority}: server.toml is missing; copy the server's file there")
    return ServerFolder(authority)


def update_record(path: Path) -> None:
    """Update the founder's copy of server.toml if the server's own is here."""
    current = path / "server" / "server.toml"
    if current.is_file():
        _replace(path / "authority" / "server.toml", current.read_text(encoding="utf-8"))


def admit(folder: ServerFolder, site: str, line: str) -> bool:
    """Put a site's public key into server.toml; returns whether it replaced another.

    The rest of the file, including comments, does not change.
    """
    check_name(site, "site")
    config = folder.config
    for name, known in config.sites.items():
        if key_of(known) == key_of(line):
            raise FuelsError(f"{folder.config_file}: site {name} already has this key")
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
        raise FuelsError(f"{folder.config_file}: add this line to [sites]: {entry.strip()}")
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
