"""Flower's SuperNode with shorter pauses while messages come and go, and replies in time.

A SuperNode asks for messages every three seconds, looks for the reply to a message every half
second, and for missing pieces of a message after one second: up to nine seconds for one short
exchange. Here these pauses are short for some seconds after a message, so that a step of a live
series, or an evaluation, is not mostly waiting. An idle site keeps Flower's pauses. The dispatcher
(dispatcher.py) gets a notice of each message that is complete.

Flower lets a killed SuperNode in again once it has missed two heartbeats, which takes a minute, the
default deadline of a step. Here heartbeats come twice as often.

A SuperNode sends one batch of replies for each message that it receives. If a run is stopped while
its message arrives, the SuperNode drops the message, but a reply to it may still be made, and would
be sent in place of the next one: every later reply would be one message late. Here the SuperNode
sends until the message that it received last is answered.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.supercore import heartbeat
from flwr.supernode import fleet_http_connection
from flwr.supernode import start_client_internal as loop
from flwr.supernode.cli import flower_supernode

from fuels.federation.flower import retries
from fuels.federation.flower.folders import SiteFolder
from fuels.federation.flower.notices import Notice

SHORT = 0.05  # seconds
BUSY = 15.0  # seconds after a message in which pauses are short
HEARTBEAT = 15  # seconds within which Flower expects one; it may miss one


class Exchange:
    """Stands between Flower's loop and its functions."""

    def __init__(self, pull: Callable[..., int | None], push: Callable[..., None]) -> None:
        self.newest = float("-inf")  # when the newest message arrived or was answered
        self.answered = False
        self.message = ""  # the id of the newest one
        self._pull, self._push = pull, push

    def pull(
        self, *, receive: Callable[[], Any], node_config: Mapping[str, Any], **others: Any
    ) -> int | None:
        """Flower's look for a message."""

        def noting() -> Any:
            received = receive()
            if received is not None:
                self.message = received[0].metadata.message_id
            return received

        run = self._pull(receive=noting, node_config=node_config, **others)
        if run is not None:
            notice = Notice(SiteFolder(Path(str(node_config["folder"]))).arrived)
            notice.open()
            notice.give()
        if run is not None or self.answered:
            self.newest = time.monotonic()
        self.answered = run is not None  # before the next look
        return run

    def push(self, *, send: Callable[..., Any], **others: Any) -> None:
        """Flower's wait for replies, until the newest message is answered."""
        answered: set[str] = set()

        def noting(message: Any, *more: Any) -> Any:
            answered.add(message.metadata.reply_to_message_id)
            return send(message, *more)

        while self.message not in answered:
            self._push(send=noting, **others)

    def sleep(self, seconds: float) -> None:
        busy = time.monotonic() < self.newest + BUSY
        time.sleep(min(seconds, SHORT) if busy else seconds)


def beat_often() -> None:
    for module in (fleet_http_connection, heartbeat):
        vars(module)["HEARTBEAT_DEFAULT_INTERVAL"] = HEARTBEAT


def main() -> None:
    retries.shorten()
    beat_often()
    between = Exchange(loop._pull_and_store_message, loop._push_messages)
    vars(loop).update(
        _pull_and_store_message=between.pull,
        _push_messages=between.push,
        time=SimpleNamespace(sleep=between.sleep),
    )
    sys.argv[0] = "flower-supernode"
    flower_supernode()


if __name__ == "__main__":
    main()
