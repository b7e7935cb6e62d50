"""Sites that wait at the gateway for a message, and the notices that end the wait."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, PushObjectRequest
from flwr.proto.node_pb2 import Node

from fuels.federation.flower import gateway
from fuels.federation.flower.folders import ServerFolder
from fuels.federation.flower.gateway import PULL, PUSH, Gateway
from fuels.federation.flower.notices import Notices
from helpers.gateway import NOWHERE, Anybody, Link


def pull(
    link: Link, path: str = PULL, leaves: float = 60.0, server: ServerFolder = NOWHERE
) -> bytes:
    """What a site gets at the gateway, which it leaves after some seconds."""
    sent: list[Any] = []
    body = PullMessagesRequest(node=Node(node_id=7)).SerializeToString()
    events = iter([{"body": body, "more_body": False}])

    async def receive() -> Any:
        for event in events:
            return event
        await asyncio.sleep(leaves)
        return {"type": "http.disconnect"}

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {"type": "http", "method": "POST", "raw_path": path.encode(), "headers": []}
    asyncio.run(Gateway(link, Anybody(), server)(scope, receive, send))  # type: ignore[arg-type]
    reply: bytes = sent[1]["body"]
    return reply


def test_a_site_waits_at_the_gateway_for_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "SELDOM", 0.1)
    assert pull(link := Link(empty=2)) == b"message" and link.asked == 3
    assert pull(link := Link(empty=1), "/v1/fleet/push-object") == b"" and link.asked == 1


def test_a_notice_ends_the_wait_at_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the SuperLink replies that there is nothing, which must not lose it."""
    monkeypatch.setattr(gateway, "SELDOM", 60.0)
    server = ServerFolder(tmp_path)
    notice, other = (Notices(server.posted).of(node) for node in (7, 8))
    notice.open()
    other.open()

    class Slow(Link):
        async def post(self, *request: Any, **more: Any) -> httpx.Response:
            reply = await super().post(*request, **more)
            (notice if self.asked == 2 else other).give()
            return reply

    link = Slow(empty=2)
    assert pull(Link(empty=0), server=server) == b"message"
    monkeypatch.setattr(gateway, "PATIENCE", 0.5)
    assert pull(link, server=server) == b"" and link.asked == 1  # the notice was another node's
    link.asked = 1
    assert pull(link, server=server) == b"message" and link.asked == 3


def test_a_reply_gives_the_server_a_notice(tmp_path: Path) -> None:
    server = ServerFolder(tmp_path)
    known, unknown = (Notices(server.replied).of(node) for node in (7, 8))
    known.open()
    before = known.time()
    message = Message(metadata=Metadata(reply_to_message_id="first"))
    for node, path in ((7, PUSH), (8, PUSH), (7, "/v1/fleet/push-object")):
        if path == PUSH:
            body: Any = PushMessagesRequest(node=Node(node_id=node), messages_list=[message])
        else:
            body = PushObjectRequest(node=Node(node_id=node), object_content=b"piece")
        events = iter([{"body": body.SerializeToString(), "more_body": False}])

        async def receive(events: Any = events) -> Any:
            return next(events)

        async def send(_: Any) -> None:
            return

        scope = {"type": "http", "method": "POST", "raw_path": path.encode(), "headers": []}
        reached = Gateway(Link(empty=0), Anybody(), server)  # type: ignore[arg-type]
        asyncio.run(reached(scope, receive, send))
        assert known.time() > before or node == 8
        before = known.time()
    assert unknown.time() == 0  # a site's request creates no file


def test_a_site_that_left_gets_no_message_that_would_be_lost() -> None:
    assert pull(link := Link(empty=1), leaves=0.05) == b"" and link.asked == 1


def test_a_site_does_not_wait_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "PATIENCE", 0.5)
    monkeypatch.setattr(gateway, "SELDOM", 0.2)
    assert pull(link := Link(empty=99)) == b"" and link.asked == 3
