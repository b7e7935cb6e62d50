"""Which requests the gateway lets in: signed by a key in server.toml, at about the same time.

A refused request gets the reason, but only its sender can make use of it: that a key was revoked,
or how far the clocks differ, is said only to a request with a valid signature of that key.
"""

from __future__ import annotations

import datetime
import json
from base64 import b64decode
from collections.abc import Iterable
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER

from fuels.errors import FuelsError
from fuels.federation.flower.folders import ServerFolder, key_of, log
from fuels.federation.flower.pki import public_key_line

OLDEST = TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE  # seconds, as in the SuperLink
EARLIEST = -SYSTEM_TIME_TOLERANCE  # a clock may be a little ahead

UNKNOWN = "The request is not signed by a key in server.toml."


class SiteKeys:
    """The keys that are currently in server.toml, and those that were revoked."""

    def __init__(self, folder: ServerFolder) -> None:
        self.folder = folder
        self.keys: dict[str, str] = {}  # key: site
        self.former: dict[str, str] = {}  # keys that this process saw in the file before
        self.contact = ""  # of the server's operator
        self.read = 0  # modification time of the file they were read from
        self.revoked: dict[str, str] = {}
        self.revoked_read = 0

    def admits(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a request with these headers comes from a site."""
        return not self.refusal(headers)

    def refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Why a request with these headers is refused; "" if it comes from a site."""
        found = dict(headers)
        try:
            pem, signature = (
                b64decode(found[name.encode()], validate=True)
                for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
            )
            stamp = found[TIMESTAMP_HEADER.encode()]
            moment = datetime.datetime.fromisoformat(stamp.decode("ascii"))
            age = (datetime.datetime.now(datetime.UTC) - moment).total_seconds()
        except (KeyError, ValueError, TypeError):  # missing, not base64, no time, no time zone
            return UNKNOWN
        line = key_of(public_key_line(pem))
        self._look()
        site, revoked = self.keys.get(line, ""), self._revoked(line)
        if not line or not (site or revoked) or not _is_signed(pem, signature, stamp):
            return f"{UNKNOWN} Ask {self._operator()} to admit this site."
        if revoked:
            return (
                f"The key of site {revoked} was revoked. Ask {self._operator()} for the reason; to"
                " return, create a new key with fuels site renew-key and send them site.pub."
            )
        if not EARLIEST < age < OLDEST:
            side = "behind" if age > 0 else "ahead of"
            return (
                f"The clock of site {site} is {abs(age):.0f} s {side} the server's; requests"
                f" are accepted from {-EARLIEST} s ahead to {OLDEST} s behind. Synchronise the"
                " clocks, for instance with NTP."
            )
        return ""

    def _operator(self) -> str:
        return f"the server's operator{f' ({self.contact})' if self.contact else ''}"

    def _revoked(self, line: str) -> str:
        """The site whose revoked key this is; "" if it is none."""
        if line in self.keys:  # put back into the file: Flower still refuses it
            return self.revoked.get(line, "")
        return self.revoked.get(line) or self.former.get(line, "")

    def _look(self) -> None:
        """Reads the files again if they changed; keeps the former keys while one is edited."""
        try:
            changed = self.folder.config_file.stat().st_mtime_ns
            if changed != self.read:
                config = self.folder.config
                self.former |= self.keys
                self.keys = {key_of(line): site for site, line in config.sites.items()}
                self.keys.pop("", None)
                self.contact, self.read = config.contact, changed
        except (FuelsError, OSError) as error:
            log.warning("the gateway's list of sites is unchanged: %s", error)
        changed = _changed(self.folder.revoked)
        if changed != self.revoked_read:
            self.revoked, self.revoked_read = read_revoked(self.folder.revoked), changed


def _is_signed(pem: bytes, signature: bytes, stamp: bytes) -> bool:
    key = load_pem_public_key(pem)
    assert isinstance(key, ec.EllipticCurvePublicKey)  # or public_key_line would be ""
    try:
        key.verify(signature, stamp, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def read_revoked(path: Path) -> dict[str, str]:
    """The revoked keys that the supervisor recorded, with the sites they belonged to."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(key): str(site) for key, site in found.items()} if isinstance(found, dict) else {}


def write_revoked(path: Path, keys: dict[str, str]) -> None:
    if keys == read_revoked(path):
        return
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(json.dumps(keys, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)
