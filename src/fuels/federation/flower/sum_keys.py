"""The keys of secure sums: a site's own key for masks, and the founder's roster of all sites.

The founder creates the first keys with the folders; a site that does not want anybody else to have
had its key renews it and sends `sums.pub`. The founder keeps the public keys in authority/sums/ and
signs the roster with the authority's key. The server passes it on and cannot change it.
"""

from __future__ import annotations

import shutil
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fuels.errors import FuelsError
from fuels.federation.flower.folders import (
    RefusalError,
    ServerFolder,
    SiteConfig,
    SiteFolder,
    check_name,
)
from fuels.federation.flower.pki import write_private
from fuels.sharing.answers import Answers
from fuels.sharing.masks import new_key, public_key
from fuels.sharing.roster import Member, Roster, parse, sign
from fuels.sharing.secure_sums import SecureSums

SUMS = "sums"  # folder of the public keys, in authority/
SIZE = 32  # bytes of a key


def make_sums_key(folder: Path) -> None:
    """sums.key and sums.pub."""
    private = new_key()
    write_private(folder / "sums.key", private)
    public = b64encode(public_key(private)).decode("ascii")
    (folder / "sums.pub").write_text(f"x25519 {public}\n", encoding="ascii")


def used_mark(folder: SiteFolder) -> Path:
    """A file that says that the site's key was used in a sum."""
    return folder.path / "sums.used"


def read_sums_key(file: Path) -> bytes:
    """The public key in a sums.pub."""
    try:
        kind, text = file.read_text(encoding="ascii").split()
        key = b64decode(text, validate=True)
    except (OSError, ValueError):
        kind, key = "", b""
    if kind != "x25519" or len(key) != SIZE:
        raise FuelsError(f"{file}: not the public key of a site for sums, as in its sums.pub")
    return key


def secure_sums(folder: SiteFolder, config: SiteConfig, min_clients: int = 0) -> SecureSums:
    """A site's side of secure sums; at least `min_clients` clients, and as many as it demands."""
    try:
        private = folder.sums_key.read_bytes()
    except FileNotFoundError:
        raise RefusalError(
            "this site has no sums.key yet: create one with fuels site renew-key"
        ) from None
    if len(private) != SIZE:
        raise RefusalError("this site's sums.key is damaged: renew it with fuels site renew-key")
    answers = Answers(folder.state / "sums.db", used_mark(folder))
    least = max(min_clients, config.consent.min_clients)
    return SecureSums(
        config.federation, config.name, private, folder.ca.read_bytes(), answers, least
    )


def read_server_roster(folder: ServerFolder) -> tuple[bytes, Roster] | None:
    """The roster in the server's folder, if there is one; only sites check its signature."""
    try:
        content = folder.roster.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FuelsError(f"{folder.roster}: cannot be read ({error.strerror})") from None
    return content, parse(content)[0]


def certify(
    path: Path, record: ServerFolder, clients: Mapping[str, int], keys: Mapping[str, Path]
) -> tuple[Roster, bool]:
    """Sign a new roster with these numbers of clients; returns whether server/ has got it.

    Sites of the former roster keep their number if none is given. `keys`: new public keys.
    """
    authority = path / "authority"
    if not (authority / "ca.key").is_file():
        raise FuelsError(f"{authority}: its ca.key is needed to sign")
    known = record.config.sites.keys()
    for site in (*clients, *keys):
        if check_name(site, "site") not in known:
            raise FuelsError(f"{record.config_file}: there is no site {site}")
    for site, number in clients.items():
        if number < 1:
            raise FuelsError(f"--clients {site}={number}: a site has at least 1 client")
    fresh = {site: read_sums_key(file) for site, file in keys.items()}
    (authority / SUMS).mkdir(exist_ok=True)
    for site in fresh:
        shutil.copy(keys[site], authority / SUMS / f"{site}.pub")
    file = authority / "roster.json"
    former = parse(file.read_bytes())[0] if file.exists() else None
    numbers = {} if former is None else {s: m.clients for s, m in former.members.items()}
    numbers = {site: n for site, n in (numbers | dict(clients)).items() if site in known}
    if not numbers:
        raise FuelsError("--clients needs the number of clients of each site, such as north=12")
    members = {}
    for site, number in sorted(numbers.items()):
        public = authority / SUMS / f"{site}.pub"
        if not public.is_file():
            raise FuelsError(
                f"{public} is missing: create keys at site {site} with fuels site renew-key and"
                f" give its file with --key {site}=sums.pub"
            )
        members[site] = Member(read_sums_key(public), number)
    roster = Roster(record.config.federation, 1 if former is None else former.serial + 1, members)
    key = load_pem_private_key((authority / "ca.key").read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FuelsError(f"{authority / 'ca.key'}: not a key of this federation's authority")
    content = sign(roster, key)
    parse(content)  # two sites with the same key
    places = [file]
    if (path / "server" / "server.toml").is_file():
        places.append(path / "server" / "roster.json")
    for place in places:
        temporary = place.with_name(f"{place.name}.tmp")
        temporary.write_bytes(content)
        temporary.replace(place)
    return roster, len(places) == 2
