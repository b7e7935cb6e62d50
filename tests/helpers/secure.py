"""Sites with keys and a signed roster, for tests of secure sums."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fuels.federation.flower.pki import make_authority
from fuels.sharing.answers import Answers
from fuels.sharing.masks import SumId, public_key
from fuels.sharing.roster import Member, Roster, sign
from fuels.sharing.secure_sums import SecureSums

FEDERATION = "metro"
NAMES = ("east", "north", "south", "west", "x1", "x2", "x3")


def private_key(site: str) -> bytes:
    """The same key in every test, so that statistical tests have one outcome."""
    return hashlib.sha256(site.encode()).digest()


@dataclass
class World:
    """A founder and some sites, each with its folder."""

    path: Path
    clients: int = 5  # of each site
    count: int = 3

    def __post_init__(self) -> None:
        self.names = NAMES[: self.count]
        if not (self.path / "ca.pem").exists():
            make_authority(self.path, FEDERATION)
        self.ca = (self.path / "ca.pem").read_bytes()
        key = load_pem_private_key((self.path / "ca.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self.authority = key

    def roster(self, serial: int = 1, **changes: Member) -> bytes:
        members = {site: Member(public_key(private_key(site)), self.clients) for site in self.names}
        return sign(Roster(FEDERATION, serial, {**members, **changes}), self.authority)

    def site(self, name: str, min_clients: int = 10) -> SecureSums:
        folder = self.path / name
        answers = Answers(folder / "state" / "sums.db", folder / "sums.used")
        folder.mkdir(exist_ok=True)
        return SecureSums(FEDERATION, name, private_key(name), self.ca, answers, min_clients)

    def asked(self, numbers: int, step: int = 0, **changes: object) -> SumId:
        facts = {"series": "run", "name": "test", "sites": self.names, "serial": 1}
        facts |= {"federation": FEDERATION, "step": step, "shape": (numbers,), **changes}
        return SumId(**facts)  # type: ignore[arg-type]
