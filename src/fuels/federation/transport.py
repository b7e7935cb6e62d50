"""What carries messages between the server and the sites.

The round loop knows this interface alone: everything in one process, actors of Ray and Flower
across a network are three implementations of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.federation.site import Report, Site
from fuels.methods.messages import Download, Upload


@dataclass(frozen=True)
class Reply:
    """What one site answers to a round."""

    site: str
    upload: Upload
    report: Report | None  # error figures, where the site gives them
    asked: tuple[str, ...]  # the clients this site was asked for
    most_samples: int | None = None  # that a client may claim; None: what the method knows
    round: int | None = None  # that it was asked in; None: the present one
    judging: float = 0.0  # seconds of the work that went into judging the trained models


@dataclass(frozen=True)
class Failure:
    """A site that gave no usable answer, and why."""

    site: str
    reason: str


class TooFewError(FuelsError):
    """Too few of those asked answered; the round may be asked again, of the same or of others."""


class Chosen(tuple[str, ...]):
    """The clients of a round; those in `extra` are asked besides the ones drawn for it."""

    extra: frozenset[str]

    def __new__(cls, clients: Iterable[str], extra: Iterable[str] = ()) -> Self:
        self = super().__new__(cls, clients)
        self.extra = frozenset(extra)
        return self


class Transport(Protocol):
    @property
    def clients(self) -> tuple[str, ...]:
        """All clients known so far; later ones are appended."""
        ...

    def train(
        self, round_number: int, clients: Sequence[str], download: Download
    ) -> tuple[list[Reply], list[Failure]]: ...

    def evaluate(self, round_number: int, download: Download) -> Sequence[Report | Failure]: ...

    def touched(self) -> NDArray[np.int64] | None:
        """Rows of `state` that may differ since this was last asked; None: all of it."""
        ...

    def state(self) -> dict[str, NDArray[Any]]: ...

    def load(self, state: Mapping[str, NDArray[Any]]) -> None: ...


class OwnSites(Transport, Protocol):
    """A transport whose sites all belong to this run, so that they can be brought together here."""

    def whole(self) -> Site:
        """One site in this process with all clients as they are now.

        Whoever changes it hands its state to `load`, or the change may be seen here alone.
        """
        ...

    def close(self) -> None: ...


class LocalTransport:
    """One site in this process."""

    def __init__(self, site: Site) -> None:
        self.site = site

    @property
    def clients(self) -> tuple[str, ...]:
        return self.site.ids

    def train(
        self, round_number: int, clients: Sequence[str], download: Download
    ) -> tuple[list[Reply], list[Failure]]:
        upload, report = self.site.train(round_number, clients, download)
        return [Reply("local", upload, report, tuple(clients), judging=self.site.judging)], []

    def evaluate(self, round_number: int, download: Download) -> list[Report]:
        return [self.site.evaluate(round_number, download)]

    def touched(self) -> NDArray[np.int64] | None:
        rows = np.flatnonzero(self.site.touched)
        self.site.touched[:] = False
        return rows

    def state(self) -> dict[str, NDArray[Any]]:
        return self.site.state()

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.site.load(state)

    def whole(self) -> Site:
        return self.site

    def close(self) -> None:
        return
