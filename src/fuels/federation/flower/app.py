"""The Flower app: the ClientApp that answers for a site, and the ServerApp that runs the rounds.

A message is handed to the site's worker, which stays loaded, by the dispatcher (dispatcher.py) or,
if only Flower's own programs were started, by the process that they start for every message.

At the server, Flower reports the node that each reply comes from. The node's public key, which the
SuperLink has verified, identifies the site. An error that Flower itself reports carries the
SuperLink's id instead, so replies are matched by the message that they reply to.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import chdir
from multiprocessing.connection import Client
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fuels.config import Engine
from fuels.errors import FuelsError
from fuels.federation.flower import retries
from fuels.federation.flower.child_process import end_with_parent
from fuels.federation.flower.folders import (
    RefusalError,
    ServerFolder,
    SiteFolder,
    key_of,
    log,
    set_up_log,
)
from fuels.federation.flower.notices import Notices, Watch
from fuels.federation.flower.pki import public_key_line

RECORD, FIELD, STYPE = "fuels", "payload", "fuels.envelope"
SHORT = 65536  # bytes
PULL_WAIT = 0.5  # seconds to wait for pulls; a round may close that much late
MOST_PULLS = 4  # in progress for one site, which may have several requests open
SELDOM = 2.0  # seconds between two pulls for a request while its site gives no notice
CONNECTED = 0.5  # seconds for which a list of connected nodes is used

client_app, server_app = ClientApp(), ServerApp()


def pack(content: bytes) -> RecordDict:
    """Bytes as the one array of a message; Flower sends it in pieces without reading it.

    A short one is a plain value: the pieces of an array take more requests on the way.
    """
    if len(content) <= SHORT:
        return RecordDict({RECORD: ConfigRecord({FIELD: content})})
    array = Array(dtype="uint8", shape=(len(content),), stype=STYPE, data=content)
    return RecordDict({RECORD: ArrayRecord({FIELD: array})})


def unpack(records: RecordDict) -> bytes:
    """The bytes of a message; anything else in it is refused."""
    record = records.get(RECORD)
    if len(records) == 1 and isinstance(record, ArrayRecord) and set(record) == {FIELD}:
        return bytes(record[FIELD].data)
    if len(records) == 1 and isinstance(record, ConfigRecord) and set(record) == {FIELD}:
        content = record[FIELD]
        if isinstance(content, bytes):
            return content
    raise FuelsError("the message is not in this format")


@client_app.train()  # type: ignore[untyped-decorator, unused-ignore]
@client_app.evaluate()  # type: ignore[untyped-decorator, unused-ignore]
@client_app.query()  # type: ignore[untyped-decorator, unused-ignore]
def handle(message: Message, context: Context) -> Message:
    """Answer any request to a site, in a process that Flower started for it."""
    end_with_parent()
    return handle_message(message, context)


def handle_message(message: Message, context: Context) -> Message:
    """The reply to a request; a RefusalError says why there is none."""
    try:
        path = str(context.node_config.get("folder", ""))
        if not path:
            raise RefusalError("the SuperNode's node config names no folder")
        facts = {
            "run_config": dict(context.run_config),
            "data": str(context.node_config.get("data", "")),
            "made": message.metadata.created_at,
            "expires": message.metadata.created_at + message.metadata.ttl,
        }
        reply = ask_worker(SiteFolder(Path(path)), unpack(message.content), facts)
        return Message(pack(reply), reply_to=message)
    except RefusalError:
        raise
    except Exception:  # Flower sends the text to the server, and only refusals may be sent
        log.exception("this request could not be answered")
        raise RefusalError("it could not answer; see the output of its SuperNode") from None


def ask_worker(folder: SiteFolder, content: bytes, facts: Mapping[str, Any]) -> bytes:
    """The worker's reply to a request; without a worker, this process computes the reply.

    `facts`: the other arguments of `worker.reply_to`.
    """
    try:
        with chdir(folder.state):  # a system allows about a hundred characters for a socket's path
            connection = Client(folder.socket, "AF_UNIX")
    except (FileNotFoundError, ConnectionRefusedError):
        from fuels.federation.flower.worker import reply_to

        set_up_log(folder.state / "site.log")
        return reply_to(folder, content, **facts)
    with connection:
        try:
            connection.send_bytes(json.dumps(facts).encode())
            connection.send_bytes(content)
            reason, reply = connection.recv_bytes().decode(), connection.recv_bytes()
        except (EOFError, OSError):
            raise RefusalError("the worker ended before it could answer") from None
    if reason:
        raise RefusalError(reason)
    return reply


class Pulls:
    """Fetches replies from Flower's Grid so that no site can delay another's.

    A site announces its reply and then sends it in pieces; a pull waits until all have arrived,
    which takes minutes if the site withholds one. So every pull has its own thread. A pull that
    does not end at once continues and is returned when it is complete, in this round or too late
    for it. The number of pulls per site is limited, so that a site which withholds reply after
    reply uses up only its own.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.pending: dict[str, Future[list[Message]]] = {}

    def look(
        self, tickets: Sequence[str], nodes: Mapping[str, int], due: Callable[[str], bool]
    ) -> dict[str, Future[list[Message]]]:
        """The pulls for these tickets that have ended, some of them without a message yet.

        `nodes`: ticket: the node that was asked. `due`: whether to pull for a ticket.
        """
        end = time.monotonic() + PULL_WAIT
        busy = Counter(nodes.get(ticket) for ticket in self.pending)
        for ticket in tickets:
            node = nodes.get(ticket)
            if ticket in self.pending or busy[node] >= MOST_PULLS or not due(ticket):
                continue
            thread = self._begin(ticket)
            # One after the other while they are quick: a pull of nothing is one small request.
            thread.join(max(0.0, end - time.monotonic()))
            busy[node] += thread.is_alive()
        ended = [ticket for ticket in tickets if self._ended(ticket)]
        return {ticket: self.pending.pop(ticket) for ticket in ended}

    def _begin(self, ticket: str) -> Thread:
        future = self.pending[ticket] = Future()

        def pull() -> None:
            try:
                future.set_result(list(self.grid.pull_messages([ticket])))
            except BaseException as error:  # of any kind: `look` passes it on
                future.set_exception(error)

        thread = Thread(target=pull, name=f"pull {ticket[:8]}", daemon=True)
        thread.start()
        return thread

    def _ended(self, ticket: str) -> bool:
        return ticket in self.pending and self.pending[ticket].done()


class GridNetwork:
    """Flower's Grid as the network between this server and its sites."""

    def __init__(self, grid: Grid, folder: ServerFolder) -> None:
        self.grid, self.folder = grid, folder
        self.names: dict[str, str] = {}  # public key: site
        self.nodes: dict[str, int] = {}
        self.asked: dict[str, int] = {}  # ticket: the node it was sent to
        self.pulls = Pulls(grid)
        self.posted, self.replied = Notices(folder.posted), Notices(folder.replied)
        self.watches: dict[str, Watch] = {}  # by ticket
        self.keys: dict[str, int] = {}  # of the connected nodes
        self.looked = float("-inf")  # when they were read
        self.strangers: set[str] = set()

    def connected(self) -> set[str]:
        self._read_names()
        if time.monotonic() >= self.looked + CONNECTED:
            self.looked = time.monotonic()
            nodes = self.grid.get_nodes()
            self.keys = {
                key_of(public_key_line(bytes(node.public_key))): node.node_id for node in nodes
            }
        keys = self.keys
        strangers = set(keys) - set(self.names)
        for _ in strangers - self.strangers:
            log.warning("a node whose key is not in server.toml is connected; it is not asked")
        self.strangers = strangers
        self.nodes = {self.names[key]: node for key, node in keys.items() if key in self.names}
        for node in self.nodes.values():
            self.posted.of(node).open()
            self.replied.of(node).open()
        return set(self.nodes)

    def allowed(self) -> set[str]:
        self._read_names()
        return set(self.names.values())

    def _read_names(self) -> None:
        """Reads server.toml again: sites are added and excluded during a run."""
        try:
            self.names = {key_of(line): name for name, line in self.folder.config.sites.items()}
        except FuelsError as error:
            log.warning("the list of sites is unchanged: %s", error)

    def send(self, contents: Mapping[str, bytes], kind: str, number: int, ttl: float) -> list[str]:
        types = {"train": "train", "evaluate": "evaluate"}
        messages = [
            Message(
                pack(content),
                dst_node_id=self.nodes[site],
                message_type=types.get(kind, "query"),
                group_id=str(number),
                ttl=ttl,
            )
            for site, content in contents.items()
        ]
        tickets = [str(ticket) for ticket in self.grid.push_messages(messages)]
        for ticket, site in zip(tickets, contents, strict=True):
            node = self.asked[ticket] = self.nodes[site]
            self.watches[ticket] = Watch(self.replied.of(node), SELDOM)
            self.posted.of(node).give()
        return tickets

    def collect(self, tickets: Sequence[str]) -> dict[str, bytes | FuelsError]:
        """One pull per ticket: a message that Flower cannot read must not affect the others."""
        replies: dict[str, bytes | FuelsError] = {}
        for ticket, pull in self.pulls.look(tickets, self.asked, self._due).items():
            try:
                for message in pull.result():
                    if self._is_reply(ticket, message):
                        replies.setdefault(ticket, _content(message))
            except httpx.HTTPError:  # the SuperLink is unreachable
                raise
            except Exception as error:  # Flower documents no errors for what it cannot read
                unread = FuelsError(f"Flower cannot read it ({type(error).__name__})")
                replies.setdefault(ticket, unread)
        for ticket in replies:
            self.asked.pop(ticket, None)
            self.watches.pop(ticket, None)
        return replies

    def _due(self, ticket: str) -> bool:
        watch = self.watches.get(ticket)
        return watch is None or watch.due()

    def _is_reply(self, ticket: str, message: Message) -> bool:
        """Whether it replies to this ticket and comes from the node that was asked.

        With the next pull, Flower returns every message that any node of the run has addressed to
        the SuperLink, and leaves it to the receiver to check who wrote it.
        """
        facts = message.metadata
        asked = self.asked.get(ticket, facts.src_node_id)
        if facts.reply_to_message_id == ticket and (
            message.has_error() or facts.src_node_id == asked
        ):
            return True
        log.warning("a message from node %d is not a reply to a request", facts.src_node_id)
        return False


def _content(message: Message) -> bytes | FuelsError:
    if message.has_error():
        return RefusalError(_reason(str(message.error.reason)))
    try:
        return unpack(message.content)
    except FuelsError as error:
        return error


def _reason(text: str) -> str:
    """The error of a site's process, as one short line."""
    inner = text.partition(":<'")[2].removesuffix("'>") or text
    shown = "".join(sign if sign.isprintable() else " " for sign in inner)
    return " ".join(shown.split())[:300] or "its process failed without giving a reason"


@server_app.main()  # type: ignore[untyped-decorator, unused-ignore]
def main(grid: Grid, context: Context) -> None:
    from fuels.federation.flower.flower_app import settings_of
    from fuels.federation.flower.runs import is_live
    from fuels.federation.flower.server import refuse, serve, serve_live
    from fuels.training.runtime import set_up

    where = os.environ.get("FUELS_SERVER", "")
    if not where:
        raise FuelsError("FUELS_SERVER is not set; it must name the server's folder")
    end_with_parent()
    retries.shorten()
    set_up(Engine())  # as on one machine: with other threads, sums differ in the last bit
    folder = ServerFolder(Path(where))
    set_up_log(folder.state / "server.log")
    run = str(context.run_config.get("run", "")) or f"flower-{context.run_id}"
    try:
        settings = settings_of(context.run_config)
    except FuelsError as error:
        refuse(folder, run, str(error))
        log.error("%s", error)
        raise
    try:
        start = serve_live if is_live(folder, run) else serve
        start(GridNetwork(grid, folder), folder, run, settings, flower_run=str(context.run_id))
    except FuelsError as error:
        log.error("%s", error)
        raise
