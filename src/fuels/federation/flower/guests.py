"""Who may speak at the door: a site of server.toml whose key has just signed its request.

Flower's sites sign the time and put key, time and signature into the headers of every request. The
SuperLink looks at them when it has read the whole request; the door does before it reads any of it,
so that nobody else can make the server read and hold what he likes.
"""

from __future__ import annotations

import datetime
from base64 import b64decode
from collections.abc import Iterable

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER

from fuels.errors import FuelsError
from fuels.federation.flower.keys import public_line
from fuels.federation.flower.parties import ServerFolder, key_of, log

OLDEST = TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE  # seconds; as the SuperLink sees it
EARLIEST = -SYSTEM_TIME_TOLERANCE  # a clock may be a little ahead


class Guests:
    """The keys in server.toml, as it is now."""

    def __init__(self, folder: ServerFolder) -> None:
        self.folder = folder
        self.keys: set[str] = set()
        self.read = 0  # when the file was changed that they are from

    def admits(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a request with these headers comes from a site."""
        found = dict(headers)
        try:
            pem, signature = (
                b64decode(found[name.encode()], validate=True)
                for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
            )
            stamp = found[TIMESTAMP_HEADER.encode()]
            moment = datetime.datetime.fromisoformat(stamp.decode("ascii"))
            age = (datetime.datetime.now(datetime.UTC) - moment).total_seconds()
        except (KeyError, ValueError, TypeError):  # absent, no base64, no time, a time of no zone
            return False
        if not EARLIEST < age < OLDEST or key_of(public_line(pem)) not in self._known():
            return False
        key = load_pem_public_key(pem)
        assert isinstance(key, ec.EllipticCurvePublicKey)  # or public_line would be ""
        try:
            key.verify(signature, stamp, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    def _known(self) -> set[str]:
        """By the file as it is now; while it is being edited, as it was."""
        try:
            changed = self.folder.config_file.stat().st_mtime_ns
            if changed != self.read:
                self.keys = {key_of(line) for line in self.folder.config.sites.values()} - {""}
                self.read = changed
        except (FuelsError, OSError) as error:
            log.warning("the sites at the door stay as they are: %s", error)
        return self.keys
