"""The gateway: what the network sees of the server."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_pem_public_key,
    load_ssh_private_key,
)
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.supercore.error import FlowerError

from fuels.errors import FuelsError
from fuels.federation.flower import gateway, processes
from fuels.federation.flower.access import check_access
from fuels.federation.flower.folders import ServerFolder, SiteFolder, key_of, log
from fuels.federation.flower.gateway import LARGEST, PULL, PUSH, Gateway, is_open, is_reply
from fuels.federation.flower.pki import make_site_key
from fuels.federation.flower.processes import explain
from fuels.federation.flower.provisioning import admit, provision
from fuels.federation.flower.site_keys import SiteKeys, write_revoked
from helpers.gateway import NOWHERE, Anybody, Link, opened, signed


@pytest.mark.parametrize(
    ("path", "open_"),
    [
        ("/v1/fleet/pull-messages", True),
        ("/v1/control/start-run", False),
        ("/v1/runtime/acquire-task", False),
        ("/v1/fleet/../control/start-run", False),
        ("/v1/fleet/%2e%2e/control/start-run", False),
        ("/v1/fleet//v1/control/start-run", False),
        ("/v1/fleet/", False),
        ("/docs", False),
        ("/", False),
    ],
)
def test_only_what_sites_need_is_open(path: str, open_: bool) -> None:
    assert is_open(path) == open_


def test_the_gateway_refuses_without_asking_the_superlink() -> None:
    """The client behind the gateway is None: touching it would be an error."""

    def ask(method: str, path: str, chunks: int) -> int:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            ask.left -= 1  # type: ignore[attr-defined]
            return {"body": bytes(2**20), "more_body": ask.left > 0}  # type: ignore[attr-defined]

        async def send(event: Any) -> None:
            sent.append(event)

        ask.left = chunks  # type: ignore[attr-defined]
        scope = {"type": "http", "method": method, "raw_path": path.encode(), "headers": []}
        asyncio.run(Gateway(None, Anybody(), NOWHERE)(scope, receive, send))  # type: ignore[arg-type]
        status: int = sent[0]["status"]
        return status

    assert ask("POST", "/v1/control/start-run", 1) == 403
    assert ask("GET", "/v1/fleet/pull-messages", 1) == 403
    assert ask("POST", "/v1/fleet/push-object", LARGEST // 2**20 + 1) == 413


def letter(*answered: str) -> bytes:
    """Messages of a site that answer these of the server; "" answers none."""
    messages = [Message(metadata=Metadata(reply_to_message_id=which)) for which in answered]
    return PushMessagesRequest(messages_list=messages).SerializeToString()


def test_a_site_writes_only_when_it_was_asked() -> None:
    assert is_reply(letter("first")) and is_reply(letter("first", "second"))
    for content in (letter(""), letter("first", ""), b"\xff no record"):
        link, sent = Link(empty=0), list[Any]()

        async def receive(content: bytes = content) -> dict[str, Any]:
            return {"body": content, "more_body": False}

        async def send(event: Any, sent: list[Any] = sent) -> None:
            sent.append(event)

        scope = {"type": "http", "method": "POST", "raw_path": PUSH.encode(), "headers": []}
        asyncio.run(Gateway(link, Anybody(), NOWHERE)(scope, receive, send))  # type: ignore[arg-type]
        assert sent[0]["status"] == 403 and link.asked == 0


def test_a_request_that_breaks_off_is_not_passed_on() -> None:
    events = iter([
        {"type": "http.request", "body": b"half a mess", "more_body": True},
        {"type": "http.disconnect"},
    ])  # fmt: skip
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return next(events)

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {"type": "http", "method": "POST", "raw_path": b"/v1/fleet/push-object", "headers": []}
    link = Link(empty=0)
    asyncio.run(Gateway(link, Anybody(), NOWHERE)(scope, receive, send))  # type: ignore[arg-type]
    assert link.asked == 0 and sent == []


# -- who speaks ------------------------------------------------------------------------------------


@pytest.fixture
def metro(tmp_path: Path) -> Path:
    provision(tmp_path / "metro", "metro", ["north"], "127.0.0.1", 9092)
    return tmp_path / "metro"


def test_a_site_is_known_by_what_it_signed(metro: Path, tmp_path: Path) -> None:
    keys, north = SiteKeys(ServerFolder(metro)), metro / "sites/north"
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    make_site_key(stranger)
    good = signed(north)
    assert keys.admits(good)
    assert not keys.admits(signed(stranger))
    assert not keys.admits(signed(stranger, as_if=north))  # its key can be known to anyone
    assert not keys.admits(signed(north, age=400))
    assert not keys.admits(signed(north, age=-60))
    for i in range(3):
        assert not keys.admits(good[:i] + good[i + 1 :])
        for value in (b"", b"x", b"\xff\xfe", b"2024-01-01T00:00:00", b64encode(b"no key")):
            assert not keys.admits([*good[:i], (good[i][0], value), *good[i + 1 :]])


def test_a_key_on_a_curve_that_is_not_known_is_a_strangers(metro: Path) -> None:
    """On secp112r1: the library refuses to read it with an error of another kind."""
    key = "MDIwEAYHKoZIzj0CAQYFK4EEAAYDHgAECUhyOZlaXudrVfnC8JionOWvhyTAoj4OD/d1AA=="
    pem = f"-----BEGIN PUBLIC KEY-----\n{key}\n-----END PUBLIC KEY-----\n".encode()
    with pytest.raises(UnsupportedAlgorithm):
        load_pem_public_key(pem)
    good = signed(metro / "sites/north")
    assert not SiteKeys(ServerFolder(metro)).admits([(good[0][0], b64encode(pem)), *good[1:]])


def test_what_flower_sends_is_let_in(metro: Path) -> None:
    """The headers as a SuperNode of Flower makes them."""
    pytest.importorskip("flwr")
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    key = load_ssh_private_key((metro / "sites/north/site.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    request = httpx.Request("POST", "https://127.0.0.1/v1/fleet/pull-messages")

    class Context:
        def __init__(self) -> None:
            self.request = request

    NodeAuthHttpInterceptor(key, key.public_key()).intercept(
        Context(),
        lambda _: httpx.Response(200),  # type: ignore[arg-type]
    )
    headers = [(name.lower(), value) for name, value in request.headers.raw]
    assert SiteKeys(ServerFolder(metro)).admits(headers)


def test_sites_come_and_go_while_the_gateway_runs(metro: Path, tmp_path: Path) -> None:
    server, west = ServerFolder(metro), tmp_path / "west"
    keys = SiteKeys(server)
    west.mkdir()
    line = make_site_key(west)
    assert not keys.admits(signed(west))
    admit(server, "west", line)
    assert keys.admits(signed(west)) and keys.admits(signed(metro / "sites/north"))
    text = server.config_file.read_text()
    server.config_file.write_text("half a li")
    assert keys.admits(signed(west))  # what was known last
    server.config_file.write_text(text.replace(f'west = "{line}"\n', ""))
    assert not keys.admits(signed(west)) and keys.admits(signed(metro / "sites/north"))


def test_a_refused_site_gets_the_reason(metro: Path, tmp_path: Path) -> None:
    """A stranger does not: it must have signed with the key in question."""
    server, north = ServerFolder(metro), metro / "sites/north"
    text = server.config_file.read_text().replace('contact = ""', 'contact = "ops@example.org"')
    server.config_file.write_text(text)
    keys = SiteKeys(server)
    late = keys.refusal(signed(north, age=400))
    assert "clock of site north is 400 s behind the server's" in late
    assert "from 5 s ahead to 305 s behind" in late
    assert "60 s ahead of the server's" in keys.refusal(signed(north, age=-60))
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    make_site_key(stranger)
    unknown = "not signed by a key in server.toml. Ask the server's operator (ops@example.org)"
    assert unknown in keys.refusal(signed(stranger))
    line = server.config.sites["north"]
    server.config_file.write_text(text.replace(f'north = "{line}"\n', ""))
    revoked = "The key of site north was revoked. Ask the server's operator (ops@example.org)"
    assert revoked in keys.refusal(signed(north))
    assert unknown in keys.refusal(signed(stranger, as_if=north))
    # A gateway that starts later reads it in the supervisor's file; so if the line is put back.
    assert unknown in SiteKeys(server).refusal(signed(north))
    write_revoked(server.revoked, {key_of(line): "north"})
    assert revoked in SiteKeys(server).refusal(signed(north))
    server.config_file.write_text(text)
    assert revoked in SiteKeys(server).refusal(signed(north))
    write_revoked(server.revoked, {})
    assert SiteKeys(server).admits(signed(north))


def test_a_site_asks_why_it_is_refused(metro: Path, caplog: pytest.LogCaptureFixture) -> None:
    server, site = ServerFolder(metro), SiteFolder(metro / "sites/north")
    text = server.config_file.read_text()
    with opened(SiteKeys(server), Link(empty=0), tls=server) as port:
        file = site.config_file
        file.write_text(file.read_text().replace("127.0.0.1:9092", f"127.0.0.1:{port}"))
        reason, ahead = check_access(site)
        assert reason == "" and abs(ahead) < 2
        line = server.config.sites["north"]
        server.config_file.write_text(text.replace(f'north = "{line}"\n', ""))
        assert check_access(site)[0].startswith("The key of site north was revoked.")
        log.propagate = True
        explain(site)
    assert f"the server at 127.0.0.1:{port} refuses this site: The key of site no" in caplog.text
    with pytest.raises(FuelsError, match="does not answer"):
        check_access(site)


def test_a_supernode_that_is_refused_is_killed(
    metro: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was let in and then is not neither goes on nor ends."""
    monkeypatch.setattr(processes, "ACCESS_EVERY", 0.1)
    server, site = ServerFolder(metro), SiteFolder(metro / "sites/north")
    supernode = processes.RestartedProcess("SuperNode", lambda: child)
    child = supernode.child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    stopping = threading.Event()
    watch = threading.Thread(target=processes.end_refused, args=(site, supernode, stopping))
    with opened(SiteKeys(server), Link(empty=0), tls=server) as port:
        file = site.config_file
        file.write_text(file.read_text().replace("127.0.0.1:9092", f"127.0.0.1:{port}"))
        watch.start()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(1.0)
        line = server.config.sites["north"]
        text = server.config_file.read_text()
        server.config_file.write_text(text.replace(f'north = "{line}"\n', ""))
        assert child.wait(30) == -9
    stopping.set()
    watch.join(30)
    assert not watch.is_alive()


def until_closed(port: int, *pieces: bytes, pause: float = 0.0) -> tuple[bytes, float]:
    """What comes back until the other side closes, and after how many seconds."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
        for piece in pieces:
            plain.sendall(piece)
            time.sleep(pause)
        got = b""
        try:
            while data := plain.recv(65536):
                got += data
        except ConnectionResetError:
            pass
    return got, time.monotonic() - began


HEAD = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\ncontent-length: 15000000\r\n"


def test_of_a_stranger_nothing_but_the_headers_is_read(metro: Path) -> None:
    """He announces 15 MB and gets his answer, and the end of the connection, before they come."""
    link = Link(empty=0)
    with opened(SiteKeys(ServerFolder(metro)), link) as port:
        got, _ = until_closed(port, HEAD + b"\r\n")
        assert got.startswith(b"HTTP/1.1 412 ") and link.asked == 0
        error = FlowerError.from_json(got.partition(b"\r\n\r\n")[2].decode())
        assert error is not None and "not signed by a key in server.toml" in error.message
        head = b"".join(b"%s: %s\r\n" % pair for pair in signed(metro / "sites/north"))
        url, small = f"http://127.0.0.1:{port}/v1/fleet/push-object", bytes(2**20)
        answer = httpx.post(url, content=small, headers=signed(metro / "sites/north"), timeout=30)
        assert answer.status_code == 200 and link.asked == 1
        long = head + b"x-long: " + b"x" * 100_000
        assert until_closed(port, HEAD + long)[0].startswith(b"HTTP/1.1 400 ")
    assert link.asked == 1


def test_who_is_slow_is_cut_off(metro: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "HEADERS", 1.0)
    monkeypatch.setattr(gateway, "BODY", 1.0)
    link = Link(empty=0)
    with opened(SiteKeys(ServerFolder(metro)), link) as port:
        assert until_closed(port)[1] < 10  # says nothing
        # A letter of the head now and then would keep it open for ever.
        assert until_closed(port, *([b"P"] + [b"O"] * 5), pause=0.1)[1] < 10
        head = b"".join(b"%s: %s\r\n" % pair for pair in signed(metro / "sites/north"))
        got, seconds = until_closed(port, HEAD + head + b"\r\n" + b"a bit of 15 MB")
        assert got.startswith(b"HTTP/1.1 408 ") and seconds < 10
    assert link.asked == 0


@pytest.mark.parametrize(("said", "passed"), [(500, 503), (503, 503), (412, 412), (200, 200)])
def test_a_moments_trouble_of_the_superlink_is_told_as_such(said: int, passed: int) -> None:
    """Flower's heartbeats end at a 500 and are sent again at a 503."""

    class Troubled(Link):
        async def post(self, path: str, content: bytes, headers: Any) -> httpx.Response:
            return httpx.Response(said, content=b"why")

    with opened(Anybody(), Troubled(empty=0)) as port:
        for path in ("/v1/fleet/send-node-heartbeat", PULL):
            answer = httpx.post(f"http://127.0.0.1:{port}{path}", content=b"", timeout=30)
            assert (answer.status_code, answer.content) == (passed, b"why")


def test_a_request_at_work_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that waits for its message waits longer than a head may take."""
    monkeypatch.setattr(gateway, "HEADERS", 0.3)
    link = Link(empty=3)
    with opened(Anybody(), link) as port:
        answer = httpx.post(f"http://127.0.0.1:{port}{PULL}", content=b"", timeout=30)
    assert answer.content == b"message" and link.asked == 4
