"""A refused connection is not read any further, and a site's answer still arrives whole."""

from __future__ import annotations

import re
import socket
import ssl
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from fuels.federation.flower import gateway
from fuels.federation.flower.folders import ServerFolder
from fuels.federation.flower.gateway import LARGEST, PUSH, SiteKeys
from fuels.federation.flower.provisioning import provision
from helpers.gateway import Link, opened, signed

POST = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\n"
ENDLESS = b"content-length: 999999999999\r\n"
PIECE = bytes(2**14)
CHUNK = b"4000\r\n" + PIECE + b"\r\n"
FEW = 4 * 2**20  # bytes: what the buffers of the sockets and of TLS may hold
ENOUGH = 64 * 2**20  # bytes after which a flood that nothing stops ends


def flood(
    server: ServerFolder, port: int, head: bytes, piece: bytes = PIECE, seconds: float = 10.0
) -> tuple[bytes, int]:
    """Send `head` and then pieces over TLS as fast as the server accepts them.

    Nothing is read before the server cuts the connection. Returns the answer, and how many bytes
    were sent after `head`.
    """
    context = ssl.create_default_context(cafile=str(server.ca))
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)  # so that it hides little
    plain.settimeout(seconds)
    plain.connect(("127.0.0.1", port))
    got, sent, end = b"", 0, time.monotonic() + seconds
    with context.wrap_socket(plain, server_hostname="127.0.0.1") as tls:
        try:
            tls.sendall(head)
            while sent < ENOUGH and time.monotonic() < end:
                tls.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
        try:
            while data := tls.recv(2**16):
                got += data
        except OSError:
            pass
    assert time.monotonic() < end, "the connection was not cut"
    return got, sent


@pytest.fixture
def metro(tmp_path: Path) -> Path:
    provision(tmp_path / "metro", "metro", ["north"], "127.0.0.1", 9092)
    return tmp_path / "metro"


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_who_is_refused_cannot_go_on_sending(
    metro: Path, loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused client gets its answer; nothing that it sends afterwards is accepted."""
    pytest.importorskip(loop)
    monkeypatch.setattr(gateway, "LINGER", 0.3)
    server, link = ServerFolder(metro), Link(empty=0)
    known = b"".join(b"%s: %s\r\n" % pair for pair in signed(metro / "sites/north"))
    small = POST + known + b"content-length: 4\r\n\r\nbody"
    floods = {
        "body": (POST + ENDLESS + b"\r\n", PIECE, [412]),
        "chunks": (POST + b"transfer-encoding: chunked\r\n\r\n", CHUNK, [412]),
        "expect": (POST + ENDLESS + b"expect: 100-continue\r\n\r\n", PIECE, [412]),
        "path": (b"POST /v1/control/start-run HTTP/1.1\r\nHost: x\r\n\r\n", PIECE, [403]),
        "no HTTP": (b"nonsense\r\n\r\n", PIECE, [400]),
        "no head": (POST + b"x: ", PIECE, [400]),
        "second": (small + POST + ENDLESS + b"\r\n", PIECE, [200, 412]),
    }
    with opened(SiteKeys(server), link, server, loop=loop) as port:
        for name, (head, piece, answers) in floods.items():
            got, sent = flood(server, port, head, piece)
            print(f"{loop}, {name}: {sent / 2**20:.2f} MB accepted")
            assert [int(n) for n in re.findall(rb"HTTP/1.1 (\d+) ", got)] == answers, (name, got)
            assert sent < FEW, name
        assert link.asked == 1
        # A client that sends all of a large body before it reads, as a SuperNode does.
        context, url = ssl.create_default_context(cafile=str(server.ca)), "https://127.0.0.1"
        refused = httpx.post(f"{url}:{port}{PUSH}", content=bytes(5 * 10**6), verify=context)
        assert refused.status_code == 412 and b"not signed by a key" in refused.content
        # A site is heard up to the size of a request.
        got, sent = flood(server, port, POST + known + ENDLESS + b"\r\n")
        assert got.startswith(b"HTTP/1.1 413 ") and LARGEST <= sent < LARGEST + FEW
    assert link.asked == 1


def test_what_is_refused_waits_for_its_end_in_small_numbers(
    metro: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "LINGER", 3.0)
    monkeypatch.setattr(gateway, "LINGERING", 2)
    with opened(SiteKeys(ServerFolder(metro)), Link(empty=0)) as port, ExitStack() as stack:
        made, seconds = [], []
        began = time.monotonic()
        for _ in range(4):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            one.sendall(POST + ENDLESS + b"\r\n")
            assert one.recv(2**16).startswith(b"HTTP/1.1 412 ")
            made.append(one)
        for one in made:
            while one.recv(2**16):
                pass
            seconds.append(time.monotonic() - began)
    assert max(seconds[:2]) < 2.5 < 3.0 <= min(seconds[2:]) and max(seconds) < 10
    assert not gateway.ClosingTransport.lingering


def test_a_site_that_reads_slowly_gets_the_whole_answer(
    metro: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it wants the connection closed then."""
    monkeypatch.setattr(gateway, "LINGER", 0.1)
    large = bytes(32 * 2**20)  # more than the sockets hold

    class Large(Link):
        async def post(self, path: str, content: bytes, headers: Any) -> httpx.Response:
            return httpx.Response(200, content=large)

    server = ServerFolder(metro)
    context = ssl.create_default_context(cafile=str(server.ca))
    head = b"".join(b"%s: %s\r\n" % pair for pair in signed(metro / "sites/north"))
    got = 0
    with opened(SiteKeys(server), Large(empty=0), server) as port:
        plain = socket.create_connection(("127.0.0.1", port), timeout=20)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as tls:
            tls.sendall(POST + head + b"connection: close\r\ncontent-length: 0\r\n\r\n")
            time.sleep(1.0)
            while data := tls.recv(2**16):
                got += len(data)
    assert got > len(large)
