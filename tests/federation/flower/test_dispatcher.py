"""Messages on their way from a SuperNode to the worker."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab import Fab

from fuels.federation.flower import dispatcher as module
from fuels.federation.flower.dispatcher import Answer, Dispatcher
from fuels.federation.flower.flower_app import write_app
from fuels.federation.flower.folders import SiteFolder
from fuels.version import __version__

SOON = 10.0  # seconds that a test waits for what should happen at once


class SuperNode:
    """A SuperNode that announces messages and has received some of them."""

    def __init__(self) -> None:
        self.announced = ["incomplete", "whole"]
        self.replies: list[tuple[str, str]] = []
        self.ended: list[tuple[str, str]] = []
        self.bundle = b""
        self.replied, self.waited = threading.Event(), threading.Event()


class Client:
    """The SuperNode's interface, for one message if there is a token."""

    def __init__(self, node: SuperNode, token: str) -> None:
        self.node, self.token = node, token
        self.closed = threading.Event()

    def AcquireTask(self, _: object) -> SimpleNamespace:  # noqa: N802
        token = ""
        if len(self.node.announced) == 2 or (self.node.announced and self.node.waited.is_set()):
            token = self.node.announced.pop(0)
        return SimpleNamespace(HasField=lambda _: bool(token), token=token)

    def SendTaskHeartbeat(self, _: object) -> None:  # noqa: N802
        if self.closed.is_set():
            raise RuntimeError("the client has been closed")

    def close(self) -> None:
        self.closed.set()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SuperNode]:
    node = SuperNode()

    def pull(client: Client) -> tuple[str, str, None, Fab]:
        if client.token == "incomplete":
            node.waited.set()
            assert client.closed.wait(SOON), "nobody ends the wait"
            raise RuntimeError("the client has been closed")
        return client.token, "context", None, Fab("", node.bundle, {})

    def push(client: Client, reply: object, _: str) -> None:
        node.replies.append((client.token, str(reply)))
        node.replied.set()

    def end(client: Client, _: object, status: str, __: str) -> None:
        assert not client.closed.is_set()
        node.ended.append((client.token, status))

    write_app(tmp_path / "app")
    node.bundle = build_fab_from_disk(tmp_path / "app")
    monkeypatch.setattr(module, "connected", lambda _, token="": Client(node, token))
    monkeypatch.setattr(module, "pull_task_input", pull)
    monkeypatch.setattr(module, "SELDOM", 0.1)
    monkeypatch.setattr(module, "push_message", push)
    monkeypatch.setattr(module, "push_task_output", end)
    monkeypatch.setattr(module.app, "handle_message", lambda message, _: f"reply to {message}")
    yield node
    node.announced.clear()


def test_a_message_that_never_becomes_whole_does_not_keep_back_the_next(
    node: SuperNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As left by a SuperNode whose server was killed while a message was on its way."""
    served = Dispatcher(SiteFolder(tmp_path))
    served.port = 1
    with caplog.at_level(logging.INFO, logger=module.log.name):
        served.start()
        assert node.replied.wait(SOON), "the second message was not answered"
        expected = "a message was not received completely, because its run has ended"
        until = time.monotonic() + SOON
        while expected not in caplog.text and time.monotonic() < until:
            time.sleep(0.01)
    assert node.replies == [("whole", "reply to whole")]
    # Or the SuperNode would reply to it when its heartbeats stop, and send later replies too late.
    assert ("incomplete", module.SubStatus.FAILED) in node.ended
    assert expected in caplog.text and "could not be handled" not in caplog.text


def test_a_reply_goes_on_new_connections(
    node: SuperNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the message were idle while the worker trained, and may be closed any moment."""
    clients: list[Client] = []
    used: list[tuple[str, Client]] = []

    def connected(_: int, token: str = "") -> Client:
        clients.append(Client(node, token))
        return clients[-1]

    def pull(client: Client) -> tuple[str, str, None, Fab]:
        used.append(("pull", client))
        return "message", "context", None, Fab("", node.bundle, {})

    def push(client: Client, *_: object) -> None:
        used.append(("push", client))

    monkeypatch.setattr(module, "connected", connected)
    monkeypatch.setattr(module, "pull_task_input", pull)
    monkeypatch.setattr(module, "push_message", push)
    Answer(1, "whole").run()
    (_, first), (_, second) = used
    assert first is not second and second.closed.is_set()
    assert node.ended == [("whole", module.SubStatus.COMPLETED)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("==9.9.9", "is for fuels-forecast[flower]==9.9.9, and this site runs fuels-forecast"),
        ("", "is for an unknown version, and this site runs"),
    ],
)
def test_an_app_of_another_version_is_refused(
    node: SuperNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, reason: str
) -> None:
    file = tmp_path / "app" / "pyproject.toml"
    if change:
        file.write_text(file.read_text().replace(f"=={__version__}", change))
        node.bundle = build_fab_from_disk(tmp_path / "app")
    else:
        node.bundle = b"no archive"
    node.announced = ["whole", ""]
    monkeypatch.setattr(module, "Message", lambda error, reply_to: error)
    monkeypatch.setattr(module.app, "handle_message", lambda *_: pytest.fail("it was handled"))
    served = Dispatcher(SiteFolder(tmp_path))
    served.port = 1
    served.start()
    assert node.replied.wait(SOON)
    ((_, reply),) = node.replies
    assert reason in reply
