"""A gateway on loopback, a SuperLink behind it, and requests as sites sign them."""

from __future__ import annotations

import datetime
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
)

from fuels.federation.flower.folders import ServerFolder
from fuels.federation.flower.gateway import Gateway, TimedProtocol

Headers = list[tuple[bytes, bytes]]
NOWHERE = ServerFolder(Path("no such folder"))  # no notices


class Link:
    """A SuperLink that has nothing for a site, then a message."""

    def __init__(self, empty: int) -> None:
        self.empty, self.asked = empty, 0

    async def post(self, path: str, content: bytes, headers: Any) -> httpx.Response:
        self.asked += 1
        return httpx.Response(200, content=b"" if self.asked <= self.empty else b"message")


class Anybody:
    """SiteKeys among whom is everybody."""

    def refusal(self, _: Any) -> str:
        return ""


def signed(folder: Path, age: float = 0.0, as_if: Path | None = None) -> Headers:
    """The headers of a request of the site in this folder; with the public key of another."""
    own, shown = (
        load_ssh_private_key((path / "site.key").read_bytes(), None)
        for path in (folder, as_if or folder)
    )
    assert isinstance(own, ec.EllipticCurvePrivateKey)
    moment = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)
    stamp = moment.isoformat().encode()
    pem = shown.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return [
        (b"flwr-public-key", b64encode(pem)),
        (b"flwr-timestamp", stamp),
        (b"flwr-signature", b64encode(own.sign(stamp, ec.ECDSA(hashes.SHA256())))),
    ]


@contextmanager
def opened(keys: Any, link: Any, tls: ServerFolder | None = None, **more: Any) -> Iterator[int]:
    """A gateway on loopback; with the certificate in a server's folder, or without TLS."""
    if tls is not None:
        more |= {"ssl_certfile": str(tls.certificate), "ssl_keyfile": str(tls.key)}
    config = uvicorn.Config(
        Gateway(link, keys, tls or NOWHERE),
        http=TimedProtocol,
        ws="none",
        host="127.0.0.1",
        port=0,
        log_level="error",
        **more,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)
