"""Fetching answers from Flower's Grid so that no site's answer can hold up another's.

A site announces its answer and then sends it in pieces; whoever pulls it waits until all are there,
minutes if the site withholds one. So every pull has a thread of its own. What is not there after a
moment stays under way and is handed out when it is whole, in this round or too late for it. A site
has few pulls at a time, so that one which withholds answer after answer uses up nobody else's.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from threading import Thread

from flwr.app import Message
from flwr.serverapp import Grid

MOMENT = 0.5  # seconds that a look for answers takes at most; a round may end that much later
MOST = 4  # pulls under way for one site: it is asked to train, to judge and who it is


class Pulls:
    """Pulls under way, by ticket."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.under_way: dict[str, Future[list[Message]]] = {}

    def look(
        self, tickets: Sequence[str], nodes: Mapping[str, int]
    ) -> dict[str, Future[list[Message]]]:
        """The pulls of these tickets that have ended; most of them with no message yet.

        `nodes`: ticket: the node that was asked.
        """
        end = time.monotonic() + MOMENT
        busy = Counter(nodes.get(ticket) for ticket in self.under_way)
        for ticket in tickets:
            node = nodes.get(ticket)
            if ticket in self.under_way or busy[node] >= MOST:
                continue
            thread = self._begin(ticket)
            # One after the other as long as they are quick: a pull of nothing is one small request.
            thread.join(max(0.0, end - time.monotonic()))
            busy[node] += thread.is_alive()
        ended = [ticket for ticket in tickets if self._ended(ticket)]
        return {ticket: self.under_way.pop(ticket) for ticket in ended}

    def _begin(self, ticket: str) -> Thread:
        future = self.under_way[ticket] = Future()

        def pull() -> None:
            try:
                future.set_result(list(self.grid.pull_messages([ticket])))
            except BaseException as error:  # whoever looks has to know it, whatever it is
                future.set_exception(error)

        thread = Thread(target=pull, name=f"pull {ticket[:8]}", daemon=True)
        thread.start()
        return thread

    def _ended(self, ticket: str) -> bool:
        return ticket in self.under_way and self.under_way[ticket].done()
