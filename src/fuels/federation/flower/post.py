"""What the transport needs of whatever carries its letters, and of time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Protocol


@dataclass(frozen=True)
class Answer:
    """What came back for a ticket: bytes, or the reason why there are none."""

    ticket: str
    content: bytes | None
    reason: str = ""
    refused: bool = False  # something came and was not read; otherwise nothing came


@dataclass(frozen=True)
class Time:
    """How the transport knows the time and lets it pass."""

    clock: Callable[[], float] = monotonic
    sleep: Callable[[float], None] = sleep


class Post(Protocol):
    """Carries bytes to sites and back, without looking at them."""

    def connected(self) -> set[str]:
        """Names of the sites that can be reached, by the keys they proved to have."""
        ...

    def allowed(self) -> set[str]:
        """Names of the sites that may take part at present, whether they can be reached or not."""
        ...

    def send(self, letters: Mapping[str, bytes], kind: str, number: int, ttl: float) -> list[str]:
        """Send one letter to each site; returns a ticket per letter, in order."""
        ...

    def collect(self, tickets: Sequence[str]) -> list[Answer]:
        """The answers that have arrived, each given out once."""
        ...
