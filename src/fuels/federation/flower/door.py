"""The only way in from outside: what sites need of the SuperLink, and nothing else.

Flower serves three interfaces on one port: Fleet (for sites, who prove their keys), Control (to
submit and stop runs) and Runtime (for its own processes). Without an account service Control lets
anybody in who can reach it, and a run is code that every site executes. So the SuperLink listens on
loopback alone, and this process stands at the public port: TLS, POST, /v1/fleet/, a request that a
site has signed, a size cap. A request that no site has signed is refused on its headers, which have
to arrive within some seconds, and its connection is not read any further. It ends with the
SuperLink.

A SuperNode that asks for messages and gets none sleeps for three seconds, which would be most of a
round. So the door lets it wait a little and asks the SuperLink again in its place.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, ClassVar, cast

import httpx
import uvicorn
from flwr.proto.fleet_pb2 import PushMessagesRequest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from uvicorn.protocols.http.h11_impl import H11Protocol

from fuels.federation.flower.guests import Guests
from fuels.federation.flower.lifeline import end_with_parent
from fuels.federation.flower.parties import ServerFolder, set_up_log

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PREFIX = "/v1/fleet/"
LARGEST = 16 * 2**20  # bytes of one request; Flower cuts arrays into pieces of 5 MB
PULL = "/v1/fleet/pull-messages"
PUSH = "/v1/fleet/push-messages"
HEADERS = 20.0  # seconds that the head of a request may take
LINGER = 1.0  # seconds that a refused client has to read the reason
LINGERING = 100  # refused connections kept open for that; beyond it the oldest is cut
BODY = 240.0  # and the rest of it; what a site signed is valid for five minutes
PATIENCE = 10.0  # seconds a site waits for a message at most; it gives up after 30
BUSIEST = 25.0  # questions a second to the SuperLink in place of all waiting sites
SOONEST = 0.4  # seconds between two in place of one site
HOP = {b"host", b"connection", b"content-length", b"transfer-encoding"}  # of one connection only
CLOSE = [(b"connection", b"close")]  # nothing more of this connection is read
ORDERLY = "fuels.orderly"  # in the scope of a site's request that was read to its end
# Status (412) and text as the SuperLink refuses a node, so that its SuperNode prints the reason and
# ends. At 401 it leaves without a word, and 403 tells it that a run is over.
STRANGER = json.dumps(
    {
        "code": 2004,  # a node that is not let in
        "detail": "The request is not signed by a key in server.toml, or the clocks differ.",
    }
).encode()


class Door:
    """An ASGI application that passes Fleet requests of sites on and refuses all others."""

    def __init__(self, client: httpx.AsyncClient, guests: Guests) -> None:
        self.client, self.guests = client, guests
        self.waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        # The path as it was sent: a decoded one could hide a second meaning.
        path = bytes(scope["raw_path"]).decode("latin-1")
        if scope["method"] != "POST" or not is_open(path):
            await answer(send, 403, b"not open to sites", CLOSE)
            return
        if not self.guests.admits(scope["headers"]):
            await answer(send, 412, STRANGER, CLOSE)
            return
        try:
            body = await asyncio.wait_for(read(receive), BODY)
        except GoneError:
            return
        except TimeoutError:
            await answer(send, 408, b"too slow", CLOSE)
            return
        if body is None:
            await answer(send, 413, b"too large", CLOSE)
            return
        scope[ORDERLY] = True
        if path == PUSH and not is_answer(body):
            await answer(send, 403, b"sites answer and do not write of their own accord")
            return
        headers = [(name, value) for name, value in scope["headers"] if name not in HOP]
        try:
            reply = await self.client.post(path, content=body, headers=headers)
            if path == PULL and is_empty(reply):
                reply = await self._wait(reply, body, headers, asyncio.ensure_future(receive()))
        except httpx.HTTPError:
            await answer(send, 502, b"the SuperLink does not answer")
            return
        kept = [(k.lower(), v) for k, v in reply.headers.raw if k.lower() not in HOP]
        # Flower's sender of heartbeats tries again at 503 and gives up for ever at 500: a moment's
        # trouble of the SuperLink would leave the site out until somebody starts it again.
        status = 503 if reply.status_code == 500 else reply.status_code
        await answer(send, status, reply.content, kept)

    async def _wait(
        self,
        reply: httpx.Response,
        body: bytes,
        headers: list[tuple[bytes, bytes]],
        gone: asyncio.Future[Any],
    ) -> httpx.Response:
        """Ask again until there is a message, the site is gone, or it has waited long enough."""
        end = time.monotonic() + PATIENCE
        self.waiting += 1
        try:
            while is_empty(reply) and time.monotonic() < end:
                await asyncio.wait([gone], timeout=max(SOONEST, self.waiting / BUSIEST))
                if gone.done():  # a message given out now would be lost
                    break
                reply = await self.client.post(PULL, content=body, headers=headers)
        finally:
            self.waiting -= 1
            gone.cancel()
        return reply


def is_empty(reply: httpx.Response) -> bool:
    """No message for this site: a protobuf record without any field."""
    return reply.status_code == 200 and not reply.content


def is_answer(body: bytes) -> bool:
    """Only answers to what was asked.

    Flower hands a letter that answers nothing to the server with whichever answer it pulls next,
    and a letter of which pieces are missing would hold up the answer of another site.
    """
    try:
        messages = PushMessagesRequest.FromString(body).messages_list
    except DecodeError:
        return False
    return all(message.metadata.reply_to_message_id for message in messages)


def is_open(path: str) -> bool:
    """Plain names below the prefix; no dots, no escapes, no second slash."""
    name = path.removeprefix(PREFIX)
    return path.startswith(PREFIX) and name.replace("-", "").isalpha() and name.isascii()


class GoneError(Exception):
    """A site left in the middle of its request: the part that came is nobody's request."""


async def read(receive: Receive) -> bytes | None:
    """The body of a request; None as soon as it is too large."""
    body, more = b"", True
    while more:
        event = await receive()
        if event.get("type") == "http.disconnect":
            raise GoneError
        body += event.get("body", b"")
        more = event.get("more_body", False)
        if len(body) > LARGEST:
            return None
    return body


async def answer(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    length = (b"content-length", str(len(body)).encode())
    start = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [*(headers or []), length]})
    await send({"type": "http.response.body", "body": body})


class Ending:
    """A transport that stops reading when a refused connection is closed.

    A TLS transport closes when the other side agrees, and until then uvloop reads and discards
    whatever arrives. This one stops reading at once and cuts the connection a moment later. It
    waits because a connection cut with unread data is reset, and a reset can destroy the answer.
    """

    lingering: ClassVar[dict[Ending, asyncio.TimerHandle]] = {}  # oldest first

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
        if self.protocol.scope is not None and ORDERLY in self.protocol.scope:
            self.transport.close()  # a large answer may still be on its way
            return
        self.ended = True
        self.transport.pause_reading()
        if limit := getattr(self.transport, "set_read_buffer_limits", None):
            limit(0)  # or TLS would go on reading until its own buffer is full
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


class Impatient(H11Protocol):
    """A connection that is cut if the head of a request takes too long; uvicorn waits for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.ending = Ending(transport, self)
        super().connection_made(cast(asyncio.Transport, self.ending))
        self._hurry()

    def _hurry(self) -> None:
        self.late = self.loop.call_later(HEADERS, self._cut)

    def _cut(self) -> None:
        if self.cycle is None or self.cycle.response_complete:  # else a request is at work
            self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.late.cancel()
        self._hurry()  # for the next one

    def connection_lost(self, exc: Exception | None) -> None:
        self.late.cancel()
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
        Door(client, Guests(folder)),
        http=Impatient,
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
