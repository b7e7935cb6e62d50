"""The ServerApp: the round loop, with Flower's Grid as its post.

Flower gives out what a site sends together with the id of the node it came from; the node's public
key, which the SuperLink has verified, says which site that is. An error that Flower itself reports
carries the SuperLink's id instead, so answers are told apart by the message they reply to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fuels.errors import FuelsError
from fuels.federation.flower.keys import public_line
from fuels.federation.flower.lifeline import end_with_parent
from fuels.federation.flower.parties import ServerFolder, key_of, log, set_up_log
from fuels.federation.flower.post import Answer
from fuels.federation.flower.pulls import Pulls
from fuels.federation.flower.records import pack, unpack
from fuels.federation.flower.serving import refuse, serve, settings_of


class GridPost:
    """Flower's Grid as a post between this server and its sites."""

    def __init__(self, grid: Grid, folder: ServerFolder) -> None:
        self.grid, self.folder = grid, folder
        self.names: dict[str, str] = {}  # public key: site
        self.nodes: dict[str, int] = {}
        self.asked: dict[str, int] = {}  # ticket: the node it was sent to
        self.pulls = Pulls(grid)
        self.strangers: set[str] = set()

    def connected(self) -> set[str]:
        self._read_names()
        nodes = self.grid.get_nodes()
        keys = {key_of(public_line(bytes(node.public_key))): node.node_id for node in nodes}
        strangers = set(keys) - set(self.names)
        for _ in strangers - self.strangers:
            log.warning("a node whose key is not in server.toml is connected and not asked")
        self.strangers = strangers
        self.nodes = {self.names[key]: node for key, node in keys.items() if key in self.names}
        return set(self.nodes)

    def allowed(self) -> set[str]:
        self._read_names()
        return set(self.names.values())

    def _read_names(self) -> None:
        """By the keys as server.toml has them now: sites are added and excluded during a run."""
        try:
            self.names = {key_of(line): name for name, line in self.folder.config.sites.items()}
        except FuelsError as error:
            log.warning("the sites stay as they are: %s", error)

    def send(self, letters: Mapping[str, bytes], kind: str, number: int, ttl: float) -> list[str]:
        types = {"hello": "query", "finish": "query", "train": "train", "evaluate": "evaluate"}
        messages = [
            Message(
                pack(content),
                dst_node_id=self.nodes[site],
                message_type=types[kind],
                group_id=str(number),
                ttl=ttl,
            )
            for site, content in letters.items()
        ]
        tickets = [str(ticket) for ticket in self.grid.push_messages(messages)]
        self.asked |= {t: self.nodes[site] for t, site in zip(tickets, letters, strict=True)}
        return tickets

    def collect(self, tickets: Sequence[str]) -> list[Answer]:
        """Each by itself: what makes Flower stumble or wait must not lose or hold up another."""
        answers = []
        for ticket, pull in self.pulls.look(tickets, self.asked).items():
            try:
                for message in pull.result():
                    if self._is_reply(ticket, message):
                        answers.append(_answer(ticket, message))
            except httpx.HTTPError:  # no message's fault: the SuperLink is gone
                raise
            except Exception as error:  # Flower names no errors for what it cannot read
                reason = f"Flower cannot read it ({type(error).__name__})"
                answers.append(Answer(ticket, None, reason, refused=True))
        for answer in answers:
            self.asked.pop(answer.ticket, None)
        return answers

    def _is_reply(self, ticket: str, message: Message) -> bool:
        """Whether it answers this ticket and comes from the node that was asked.

        Flower hands out whatever any node of the run has addressed to the SuperLink with the next
        pull, and leaves it to the receiver who wrote it.
        """
        told = message.metadata
        asked = self.asked.get(ticket, told.src_node_id)
        if told.reply_to_message_id == ticket and (
            message.has_error() or told.src_node_id == asked
        ):
            return True
        log.warning("a message of node %d is no answer to what was asked", told.src_node_id)
        return False


def _answer(ticket: str, message: Message) -> Answer:
    if message.has_error():
        return Answer(ticket, None, _reason(str(message.error.reason)))
    try:
        return Answer(ticket, unpack(message.content))
    except FuelsError as error:
        return Answer(ticket, None, str(error), refused=True)


def _reason(text: str) -> str:
    """What a site's process said, in one short line."""
    inner = text.partition(":<'")[2].removesuffix("'>") or text
    shown = "".join(sign if sign.isprintable() else " " for sign in inner)
    return " ".join(shown.split())[:300] or "its process failed without a reason"


app = ServerApp()


@app.main()  # type: ignore[untyped-decorator, unused-ignore]
def main(grid: Grid, context: Context) -> None:
    where = os.environ.get("FUELS_SERVER", "")
    if not where:
        raise FuelsError("FUELS_SERVER is not set; it names the server's folder")
    end_with_parent()
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
        serve(GridPost(grid, folder), folder, run, settings, flower_run=str(context.run_id))
    except FuelsError as error:
        log.error("%s", error)
        raise
