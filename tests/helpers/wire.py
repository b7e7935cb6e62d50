"""Flower's own way of a message, without the network between.

The ServerApp's post packs it, it is cut into the objects that Flower puts on the wire, put together
again and handed to the ClientApp, and back; every byte is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from fuels.config import Settings
from fuels.federation.codec import Envelope, decode
from fuels.federation.flower.flower_app import run_config
from helpers.flower_world import LIMIT, SITES


@dataclass(frozen=True)
class Seen:
    """A message on its way."""

    way: str  # up or down
    site: str
    wire: bytes  # all that Flower sends for it
    content: bytes
    reason: str = ""  # of an answer that is an error

    @property
    def envelope(self) -> Envelope:
        return decode(self.content, LIMIT)


class Wire:
    """Flower's Grid, with the sites' ClientApp behind it and every byte kept."""

    def __init__(self, root: Path, chosen: Settings) -> None:
        self.root, self.seen = root, list[Seen]()
        self.names = dict(enumerate(SITES, 2))
        self.replies: dict[str, Any] = {}
        config = run_config("run", chosen)
        self.config = {
            (f"{key}.{inner}" if inner else key): value
            for key, section in config.items()
            for inner, value in (section.items() if isinstance(section, dict) else [("", section)])
        }

    def get_nodes(self) -> list[Any]:
        form = Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
        keys = {
            node: load_ssh_public_key((self.root / "sites" / name / "site.pub").read_bytes())
            for node, name in self.names.items()
        }
        return [
            SimpleNamespace(node_id=node, public_key=key.public_bytes(*form))
            for node, key in keys.items()
        ]

    def push_messages(self, messages: Sequence[Any]) -> list[str]:
        from flwr.app import Context, Error, Message, RecordDict

        from fuels.federation.flower.app import client_app

        tickets = []
        for message in messages:
            node = message.metadata.dst_node_id
            site = self.names[node]
            folder = str(self.root / "sites" / site)
            context = Context(1, node, {"folder": folder}, RecordDict(), self.config, 1)
            ticket = message.metadata.__dict__["_message_id"] = message.object_id  # as a Grid does
            carried = self._carry("down", site, message)
            carried.metadata.__dict__["_message_id"] = ticket
            try:
                reply = client_app(carried, context)
            except Exception as error:  # as Flower does with whatever an client_app raises
                reason = f"{type(error)}:<'{error}'>"
                reply = Message(Error(code=2, reason=reason), reply_to=carried)
            self.replies[ticket] = self._carry("up", site, reply)
            tickets.append(ticket)
        return tickets

    def pull_messages(self, tickets: Sequence[str]) -> list[Any]:
        return [self.replies.pop(ticket) for ticket in tickets if ticket in self.replies]

    def _carry(self, way: str, site: str, message: Any) -> Any:
        """The message as it comes out at the other end."""
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

        from fuels.federation.flower.app import unpack

        objects = {i: piece.deflate() for i, piece in get_all_nested_objects(message).items()}
        failed = message.has_error()
        content = b"" if failed else unpack(message.content)
        reason = str(message.error.reason) if failed else ""
        wire = b"".join([*objects.values(), reason.encode()])
        self.seen.append(Seen(way, site, wire, content, reason))
        return inflate_object_from_contents(message.object_id, dict(objects))
