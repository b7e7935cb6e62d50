"""The door: what the network sees of the server."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata

from fuels.federation.flower.door import LARGEST, PULL, PUSH, Door, is_answer, is_open


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


def test_the_door_refuses_without_asking_the_superlink() -> None:
    """The client behind the door is None: touching it would be an error."""

    def ask(method: str, path: str, chunks: int) -> int:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            ask.left -= 1  # type: ignore[attr-defined]
            return {"body": bytes(2**20), "more_body": ask.left > 0}  # type: ignore[attr-defined]

        async def send(event: Any) -> None:
            sent.append(event)

        ask.left = chunks  # type: ignore[attr-defined]
        scope = {"type": "http", "method": method, "raw_path": path.encode(), "headers": []}
        asyncio.run(Door(None)(scope, receive, send))  # type: ignore[arg-type]
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
    assert is_answer(letter("first")) and is_answer(letter("first", "second"))
    for content in (letter(""), letter("first", ""), b"\xff no record"):
        link, sent = Link(empty=0), list[Any]()

        async def receive(content: bytes = content) -> dict[str, Any]:
            return {"body": content, "more_body": False}

        async def send(event: Any, sent: list[Any] = sent) -> None:
            sent.append(event)

        scope = {"type": "http", "method": "POST", "raw_path": PUSH.encode(), "headers": []}
        asyncio.run(Door(link)(scope, receive, send))  # type: ignore[arg-type]
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
    asyncio.run(Door(link)(scope, receive, send))  # type: ignore[arg-type]
    assert link.asked == 0 and sent == []


class Link:
    """A SuperLink that has nothing for a site, then a message."""

    def __init__(self, empty: int) -> None:
        self.empty, self.asked = empty, 0

    async def post(self, path: str, content: bytes, headers: Any) -> httpx.Response:
        self.asked += 1
        return httpx.Response(200, content=b"" if self.asked <= self.empty else b"message")


def pull(link: Link, path: str = PULL, leaves: float = 60.0) -> bytes:
    """What a site gets at the door, which it leaves after some seconds."""
    sent: list[Any] = []
    events = iter([{"body": b"", "more_body": False}])

    async def receive() -> Any:
        for event in events:
            return event
        await asyncio.sleep(leaves)
        return {"type": "http.disconnect"}

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {"type": "http", "method": "POST", "raw_path": path.encode(), "headers": []}
    asyncio.run(Door(link)(scope, receive, send))  # type: ignore[arg-type]
    body: bytes = sent[1]["body"]
    return body


def test_a_site_waits_at_the_door_for_its_message() -> None:
    assert pull(link := Link(empty=2)) == b"message" and link.asked == 3
    assert pull(link := Link(empty=1), "/v1/fleet/push-object") == b"" and link.asked == 1


def test_a_site_that_left_gets_no_message_that_would_be_lost() -> None:
    assert pull(link := Link(empty=1), leaves=0.05) == b"" and link.asked == 1


def test_a_site_does_not_wait_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuels.federation.flower.door.PATIENCE", 0.5)
    assert pull(link := Link(empty=99)) == b"" and link.asked == 3
