"""Flower's SuperNode with shorter pauses while messages come and go.

A SuperNode asks for messages every three seconds, and looks for the reply to a message every half
second: up to seven seconds for one short exchange. Here both pauses are short for some seconds
after a message, so that a step of a live series, or an evaluation, is not mostly waiting. An
idle site keeps Flower's pauses and sends no more than before.
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

from flwr.supernode import start_client_internal as loop
from flwr.supernode.cli import flower_supernode

SHORT = 0.2  # seconds
BUSY = 10.0  # seconds after a message in which pauses are short


class Pauses:
    """Sleeps in place of Flower's loop."""

    def __init__(self) -> None:
        self.newest = float("-inf")  # when the newest message arrived or was answered
        self.answered = False
        self.pull = loop._pull_and_store_message

    def look(self, **arguments: Any) -> int | None:
        """Flower's look for a message."""
        run: int | None = self.pull(**arguments)
        if run is not None or self.answered:
            self.newest = time.monotonic()
        self.answered = run is not None  # before the next look
        return run

    def sleep(self, seconds: float) -> None:
        busy = time.monotonic() < self.newest + BUSY
        time.sleep(min(seconds, SHORT) if busy else seconds)


def main() -> None:
    pauses = Pauses()
    vars(loop).update(_pull_and_store_message=pauses.look, time=SimpleNamespace(sleep=pauses.sleep))
    sys.argv[0] = "flower-supernode"
    flower_supernode()


if __name__ == "__main__":
    main()
