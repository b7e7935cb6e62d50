"""Notices between processes of one machine: there is a message to fetch.

Flower's processes only poll each other, and each request takes a few milliseconds of both. A notice
is a file whose time changes when it is given. Looking at it costs next to nothing, so the receiver
can look many times a second, and ask only after a notice. As a notice may be missing, such as for
an error that Flower itself reports, receivers also ask now and then without one.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

LOOK = 0.05  # seconds between two looks at a notice


class Notice:
    """A file in the state folder of a server or a site."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> None:
        """From now on it can be given."""
        if not self.path.exists():
            with suppress(OSError):  # messages are delivered without notices too
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.path.touch()

    def give(self) -> None:
        """Without effect before it is opened: a site's request must not create files."""
        now = time.time_ns()  # two notices always differ, however coarse the file system's clock
        with suppress(OSError):
            os.utime(self.path, ns=(now, now))

    def time(self) -> int:
        """When it was last given; 0: never."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0


class Notices:
    """One notice for each node of a server: a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def of(self, node: int) -> Notice:
        return Notice(self.path / str(node))


class Watch:
    """A receiver's view of one notice: when it was last given, and when it last asked."""

    def __init__(self, notice: Notice, every: float) -> None:
        self.notice, self.every = notice, every
        self.seen, self.asked = 0, float("-inf")

    def due(self) -> bool:
        """Whether to ask now: after a notice, or because `every` seconds have passed."""
        given, now = self.notice.time(), time.monotonic()
        if given == self.seen and now < self.asked + self.every:
            return False
        self.seen, self.asked = given, now
        return True
