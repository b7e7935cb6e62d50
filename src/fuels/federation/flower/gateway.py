"""The public port of the server: passes on what sites need from the SuperLink, and nothing else.

Flower serves three interfaces on one port: Fleet (for sites, which prove their keys), Control (to
submit and stop runs) and Runtime (for its own processes). Without an account service, Control
accepts anybody who can reach it, and a run is code that every site executes. So the SuperLink
listens on loopback only, and this process on the public port: TLS, POST, /v1/fleet/, a request that
a site has signed, a size limit. It ends with the SuperLink.

Flower's sites sign the time and put key, time and signature into the headers of every request. The
SuperLink checks them after it has read the whole request; the gateway checks them before it reads
the body. An unsigned request is refused on its headers, which must arrive within seconds, and its
connection is not read any further.

A SuperNode that asks for messages and gets none sleeps for three seconds, which would be most of a
round. So the gateway keeps the request open for a while and asks the SuperLink again on its behalf:
after a notice of the process that runs the rounds, which in turn gets one when a site has replied.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, ClassVar, cast

import httpx
import uvicorn
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]
from uvicorn.protocols.http.h11_impl import H11Protocol

from fuels.federation.flower.access import ACCESS, refusal
from fuels.federation.flower.child_process import end_with_parent
from fuels.federation.flower.folders import ServerFolder, set_up_log
from fuels.federation.flower.notices import LOOK, Notices, Watch
from fuels.federation.flower.site_keys import SiteKeys

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PREFIX = "/v1/fleet/"
LARGEST = 16 * 2**20  # bytes of one request; Flower cuts arrays into pieces of 5 MB
PULL = "/v1/fleet/pull-messages"
PUSH = "/v1/fleet/push-messages"
# Requests with parts of a reply.
PIECES: dict[str, Any] = {
    PUSH: PushMessagesRequest,
    "/v1/fleet/push-object": PushObjectRequest,
}
HEADERS = 20.0  # seconds that the headers of a request may take
LINGER = 1.0  # seconds that a refused client has to read the reason
LINGERING = 100  # refused connections kept open for that; beyond it the oldest is closed
BODY = 240.0  # seconds for the body; a signature is valid for five minutes
PATIENCE = 10.0  # seconds that a site waits for a message; it gives up after 30
BUSIEST = 25.0  # requests a second to the SuperLink for all waiting sites
SELDOM = 2.0  # seconds between two requests for one site without a notice
MOST_LOOKS = 500.0  # a second, at the notices of all waiting sites
HOP = {b"host", b"connection", b"content-length", b"transfer-encoding"}  # of one connection only
CLOSE = [(b"connection", b"close")]  # the connection is not read any further
COMPLETE = "fuels.complete"  # in the scope of a site's request that was read completely


class Gateway:
    """An ASGI application that forwards Fleet requests of sites and refuses all others."""

    def __init__(self, client: httpx.AsyncClient, keys: SiteKeys, folder: ServerFolder) -> None:
        self.client, self.keys = client, keys
        self.posted, self.replied = Notices(folder.posted), Notices(folder.replied)
        self.waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        # The raw path: decoding could change its meaning.
        path = bytes(scope["raw_path"]).decode("latin-1")
        if scope["method"] != "POST" or not is_open(path):
            await respond(send, 403, b"not open to sites", CLOSE)
            return
        reason = self.keys.refusal(scope["headers"])
        if reason:
            await respond(send, 412, refusal(reason), CLOSE)
            return
        if path == ACCESS:  # a site asks whether it is let in
            await respond(send, 200, b"", CLOSE)
            return
        try:
            body = await asyncio.wait_for(read(receive), BODY)
        except DisconnectedError:
            return
        except TimeoutError:
            await respond(send, 408, b"too slow", CLOSE)
            return
        if body is None:
            await respond(send, 413, b"too large", CLOSE)
            return
        scope[COMPLETE] = True
        if path == PUSH and not is_reply(body):
            await respond(send, 403, b"sites may only send replies")
            return
        headers = [(name, value) for name, value in scope["headers"] if name not in HOP]
        try:
            if path == PULL:
                reply = await self._pull(body, headers, receive)
            else:
                reply = await self.client.post(path, content=body, headers=headers)
            if path in PIECES and reply.status_code == 200:
                # The last of them completes the reply.
                self.replied.of(node_of(PIECES[path], body)).give()
        except httpx.HTTPError:
            await respond(send, 502, b"the SuperLink does not answer")
            return
        kept = [(k.lower(), v) for k, v in reply.headers.raw if k.lower() not in HOP]
        # Flower's heartbeat retries after 503 and gives up for good after 500: a brief failure of
        # the SuperLink would exclude the site until it is restarted.
        status = 503 if reply.status_code == 500 else reply.status_code
        await respond(send, status, reply.content, kept)

    async def _pull(
        self, body: bytes, headers: list[tuple[bytes, bytes]], receive: Receive
    ) -> httpx.Response:
        """Ask until there is a message, the site disconnects, or the time is up."""
        watch = Watch(
            self.posted.of(node_of(PullMessagesRequest, body)), max(SELDOM, self.waiting / BUSIEST)
        )
        watch.due()  # before it asks: a notice that comes meanwhile is a new one
        reply = await self.client.post(PULL, content=body, headers=headers)
        if not is_empty(reply):
            return reply
        gone = asyncio.ensure_future(receive())
        end = time.monotonic() + PATIENCE
        self.waiting += 1
        try:
            while is_empty(reply) and time.monotonic() < end:
                await asyncio.wait([gone], timeout=max(LOOK, self.waiting / MOST_LOOKS))
                if gone.done():  # a message fetched now would be lost
                    break
                if watch.due():
                    reply = await self.client.post(PULL, content=body, headers=headers)
        finally:
            self.waiting -= 1
            gone.cancel()
        return reply


def is_empty(reply: httpx.Response) -> bool:
    """No message for this site: a protobuf record without fields."""
    return reply.status_code == 200 and not reply.content


def is_reply(body: bytes) -> bool:
    """Whether all messages are replies.

    Flower would pass a message that replies to nothing to the server with the next reply that it
    pulls, and one with missing pieces would delay the reply of another site.
    """
    try:
        messages = PushMessagesRequest.FromString(body).messages_list
    except DecodeError:
        return False
    return all(message.metadata.reply_to_message_id for message in messages)


def node_of(kind: Any, body: bytes) -> int:
    """The node that a request of this kind comes from; 0 if it does not say."""
    try:
        node: int = kind.FromString(body).node.node_id
    except DecodeError:  # the SuperLink refuses it
        return 0
    return node


def is_open(path: str) -> bool:
    """Plain names below the prefix: no dots, no escapes, no second slash."""
    name = path.removeprefix(PREFIX)
    return path.startswith(PREFIX) and name.replace("-", "").isalpha() and name.isascii()


class DisconnectedError(Exception):
    """A site disconnected in the middle of its request."""


async def read(receive: Receive) -> bytes | None:
    """The body of a request; None as soon as it is too large."""
    body, more = b"", True
    while more:
        event = await receive()
        if event.get("type") == "http.disconnect":
            raise DisconnectedError
        body += event.get("body", b"")
        more = event.get("more_body", False)
        if len(body) > LARGEST:
            return None
    return body


async def respond(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    length = (b"content-length", str(len(body)).encode())
    start = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [*(headers or []), length]})
    await send({"type": "http.response.body", "body": body})


class ClosingTransport:
    """A transport that stops reading when a refused connection is closed.

    A TLS transport closes when the other side agrees, and until then uvloop reads and discards
    whatever arrives. This one stops reading at once and aborts the connection a moment later. It
    waits because aborting with unread data resets the connection, which can destroy the response.
    """

    lingering: ClassVar[dict[ClosingTransport, asyncio.TimerHandle]] = {}  # oldest first

    def __init__(self, transport: asyncio.Transport, protocol: H11Protocol) -> None:
        self.transport, self.protocol = transport, protocol
        self.ended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def is_closing(self) -> bool:
        return self.ended or self.transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        if self.protocol.scope is not None and COMPLETE in self.protocol.scope:
            self.transport.close()  # a large response may still be in transit
            return
        self.ended = True
        self.transport.pause_reading()
        if limit := getattr(self.transport, "set_read_buffer_limits", None):
            limit(0)  # or TLS would keep reading until its own buffer is full
        self.lingering[self] = self.protocol.loop.call_later(LINGER, self.transport.abort)
        if len(self.lingering) > LINGERING:
            next(iter(self.lingering)).abort()

    def abort(self) -> None:
        self.forget()
        self.transport.abort()

    def resume_reading(self) -> None:
        if not self.ended:
            self.transport.resume_reading()

    def forget(self) -> None:
        if timer := self.lingering.pop(self, None):
            timer.cancel()


class TimedProtocol(H11Protocol):
    """Aborts a connection whose headers take too long; uvicorn would wait for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.ending = ClosingTransport(transport, self)
        super().connection_made(cast(asyncio.Transport, self.ending))
        self._start_timer()

    def _start_timer(self) -> None:
        self.timer = self.loop.call_later(HEADERS, self._time_out)

    def _time_out(self) -> None:
        if self.cycle is None or self.cycle.response_complete:  # else a request is in progress
            self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.timer.cancel()
        self._start_timer()  # for the next one

    def connection_lost(self, exc: Exception | None) -> None:
        self.timer.cancel()
        self.ending.forget()
        super().connection_lost(exc)


def main() -> None:
    end_with_parent()
    set_up_log()
    folder = ServerFolder(Path(sys.argv[1]))
    config = folder.config
    context = ssl.create_default_context(cafile=str(folder.ca))
    client = httpx.AsyncClient(
        base_url=f"https://127.0.0.1:{config.control_port}", verify=context, timeout=60.0
    )
    uvicorn.run(
        Gateway(client, SiteKeys(folder), folder),
        http=TimedProtocol,
        ws="none",
        host=config.host,
        port=config.port,
        ssl_certfile=str(folder.certificate),
        ssl_keyfile=str(folder.key),
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main()
