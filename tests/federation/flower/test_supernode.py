"""The SuperNode's loop: which replies are sent before the next message is asked for."""

from __future__ import annotations

import inspect
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.supercore import heartbeat
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, pull_objects
from flwr.supernode import fleet_http_connection
from flwr.supernode import start_client_internal as loop

from fuels.federation.flower import retries
from fuels.federation.flower.folders import SiteFolder
from fuels.federation.flower.notices import Notice
from fuels.federation.flower.supernode import Exchange


def message(name: str, reply_to: str = "") -> SimpleNamespace:
    return SimpleNamespace(metadata=SimpleNamespace(message_id=name, reply_to_message_id=reply_to))


def test_a_reply_of_a_stopped_run_does_not_delay_the_next_one(tmp_path: Path) -> None:
    """The first message is dropped when its run stops; its reply is made nevertheless."""
    waiting = [[message("old reply", "old")], [message("reply", "new")]]
    sent: list[str] = []

    def pull(*, receive: Any, **_: Any) -> int | None:
        received = receive()
        return 1 if received is not None and received[0].metadata.message_id == "new" else None

    def push(*, send: Any, **_: Any) -> None:  # as Flower does: what there is, at least one
        for reply in waiting.pop(0):
            send(reply, "tree", 0.0)

    def send(reply: SimpleNamespace, *_: object) -> None:
        sent.append(reply.metadata.message_id)

    between = Exchange(pull, push)
    notice = Notice(SiteFolder(tmp_path).arrived)
    facts = {"node_config": {"folder": str(tmp_path)}, "state": None}
    assert between.pull(receive=lambda: (message("old"), "tree"), **facts) is None
    assert between.pull(receive=lambda: None, **facts) is None
    assert notice.time() == 0  # the dispatcher need not look
    assert between.pull(receive=lambda: (message("new"), "tree"), **facts) == 1
    assert notice.time() > 0
    between.push(send=send, state=None)
    assert sent == ["old reply", "reply"] and waiting == []


def test_flowers_loop_has_the_functions_that_are_replaced() -> None:
    """After an upgrade of Flower a failure here says what changed."""
    pull = inspect.signature(loop._pull_and_store_message).parameters
    assert "receive" in pull and "node_config" in pull
    assert "send" in inspect.signature(loop._push_messages).parameters
    text = inspect.getsource(loop.start_client_internal)
    assert text.count("_pull_and_store_message(") == text.count("_push_messages(") == 1
    for user in (fleet_http_connection.http_request_response, heartbeat.HeartbeatSender._run):
        assert "HEARTBEAT_DEFAULT_INTERVAL" in inspect.getsource(user)
    assert "time.sleep(" in text and loop.time.sleep is not None


def test_missing_pieces_of_a_message_are_asked_for_again_soon() -> None:
    tried: list[float] = []

    def piece(name: str) -> bytes:
        tried.append(time.monotonic())
        if len(tried) < 3:
            raise ObjectUnavailableError(name)
        return b"piece"

    retries.shorten()
    assert pull_objects(["name"], pull_object_fn=piece) == {"name": b"piece"}
    assert loop.pull_objects is pull_objects  # the loop uses the same function
