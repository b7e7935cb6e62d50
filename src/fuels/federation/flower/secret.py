"""A site's secret: random bytes that its noise is drawn from, in a file that only its owner reads.

The site makes it itself when it first needs it, and not whoever founded the federation: that may be
the server's operator, from whom it is kept. It is never sent. Whoever loses it makes another one;
then a round that is trained again gets other noise, and nothing else changes.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from tempfile import mkstemp

from fuels.errors import FuelsError
from fuels.federation.flower.parties import log

SECRET = "noise.secret"
SIZE = 32  # bytes


def own_secret(path: Path) -> bytes:
    """The secret in a file, which is made if it is missing."""
    if not path.exists():
        _make(path)
    if path.stat().st_mode & 0o077:
        _close(path)
    secret = path.read_bytes()
    if len(secret) != SIZE:
        raise FuelsError(f"{path}: it is not {SIZE} bytes long; delete it, another one is made")
    return secret


def _close(path: Path) -> None:
    """For its owner only again: volumes and backups come with modes of their own."""
    try:
        path.chmod(0o600)
    except OSError:
        raise FuelsError(f"{path}: others can read it; delete it, another one is made") from None
    log.warning("%s: others could read it; now its owner alone can", path)


def _make(path: Path) -> None:
    """Written as a whole, readable by its owner only; of two at the same time the first stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = mkstemp(dir=path.parent)  # with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SIZE))
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        return
    finally:
        Path(temporary).unlink()
