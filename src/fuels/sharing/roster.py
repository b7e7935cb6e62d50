"""The roster: which sites take part in secure sums, certified by the founder.

It names each site's public key for masks and its number of clients, and is signed with the key of
the federation's certificate authority, which the server does not have. So the server can neither
invent a site nor replace a site's key, and a site knows over how many clients it adds up.
"""

from __future__ import annotations

import binascii
import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuels.errors import FuelsError
from fuels.sharing.masks import LEAST_SITES, SumId
from fuels.version import not_installed

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
except ImportError:  # an extra
    raise FuelsError(not_installed("cryptography, which secure sums need,", "flower")) from None

PURPOSE = b"fuels roster 1\n"
SIGNATURE = ec.ECDSA(hashes.SHA384())
MOST_BYTES = 2**20
MOST_CLIENTS = 10**6


@dataclass(frozen=True)
class Member:
    """A site of the roster."""

    key: bytes  # public, X25519
    clients: int


@dataclass(frozen=True)
class Roster:
    """The sites of a federation. Each new roster has a larger serial than the one before."""

    federation: str
    serial: int
    members: Mapping[str, Member]

    def clients(self, sites: tuple[str, ...]) -> int:
        """The clients of some sites."""
        return sum(self.members[site].clients for site in sites)

    @property
    def digest(self) -> bytes:
        """Of what the founder signs: equal rosters have equal digests."""
        return hashlib.sha256(_signed_bytes(_plain(self))).digest()

    @property
    def keys(self) -> dict[str, bytes]:
        return {site: member.key for site, member in self.members.items()}

    def check(self, asked: SumId, site: str, key: bytes, min_clients: int) -> None:
        """Refuse a sum that does not protect the contribution of `site`, whose public key is `key`.

        At least three sites, all certified, with at least `min_clients` clients together.
        """
        if asked.federation != self.federation or asked.serial != self.serial:
            raise FuelsError(f"{asked}: it belongs to another federation or roster")
        if len(asked.sites) < LEAST_SITES:
            raise FuelsError(
                f"{asked}: a sum needs at least {LEAST_SITES} sites, and this one has"
                f" {len(asked.sites)} ({', '.join(asked.sites)})"
            )
        unknown = sorted(set(asked.sites) - self.members.keys())
        if unknown:
            raise FuelsError(f"{asked}: {unknown[0]} is not a site of the founder's roster")
        if site not in asked.sites:
            raise FuelsError(f"{asked}: site {site} is not in the set that is asked")
        if self.members[site].key != key:
            raise FuelsError(
                f"the founder's roster has another key for site {site}: send this site's sums.pub"
                " to the founder, who signs a new roster"
            )
        if (found := self.clients(asked.sites)) < min_clients:
            raise FuelsError(
                f"{asked}: its sites have {found} clients together, and at least"
                f" {min_clients} are required (min_clients)"
            )


def sign(roster: Roster, authority: ec.EllipticCurvePrivateKey) -> bytes:
    """The roster as a file, signed by the founder."""
    content = _plain(roster)
    signature = authority.sign(_signed_bytes(content), SIGNATURE)
    content["signature"] = b64encode(signature).decode("ascii")
    return (json.dumps(content, indent=2) + "\n").encode()


def read_roster(content: bytes, ca: bytes, federation: str) -> Roster:
    """The roster in a file, if the founder of this federation signed it.

    `ca`: the authority's certificate in PEM, which every site has from the founder.
    """
    roster, signature = parse(content)
    public = x509.load_pem_x509_certificate(ca).public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    try:
        public.verify(signature, _signed_bytes(_plain(roster)), SIGNATURE)
    except InvalidSignature:
        raise FuelsError(
            f"the roster is not signed by the founder of federation {federation}"
        ) from None
    if roster.federation != federation:
        raise FuelsError(f"the roster is that of federation {roster.federation}")
    return roster


def parse(content: bytes) -> tuple[Roster, bytes]:
    """A roster and its signature, which is not checked."""
    try:
        if len(content) > MOST_BYTES:
            raise ValueError
        facts: dict[str, Any] = json.loads(content)
        signature = b64decode(facts["signature"], validate=True)
        members = {
            _text(site): Member(b64decode(each["key"], validate=True), _number(each["clients"]))
            for site, each in facts["sites"].items()
        }
        roster = Roster(_text(facts["federation"]), _number(facts["serial"]), members)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error):
        raise FuelsError("the roster cannot be read; it is not the founder's roster.json") from None
    keys = [member.key for member in members.values()]
    if len(set(keys)) != len(keys):
        raise FuelsError("two sites of the roster have the same key")
    return roster, signature


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _number(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= MOST_CLIENTS:
        raise ValueError
    return value


def _plain(roster: Roster) -> dict[str, Any]:
    sites = {
        site: {"clients": member.clients, "key": b64encode(member.key).decode("ascii")}
        for site, member in sorted(roster.members.items())
    }
    return {"federation": roster.federation, "serial": roster.serial, "sites": sites}


def _signed_bytes(content: Mapping[str, Any]) -> bytes:
    return PURPOSE + json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
