"""Transports: how messages travel between the server and the sites.

The round loop knows only this interface. It has three implementations: one site in this process,
Ray actors, and Flower across a network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Integers
from fuels.errors import FuelsError
from fuels.federation.site import Report, Site
from fuels.methods.messages import Download, Upload


@dataclass(frozen=True)
class Reply:
    """One site's reply to a round."""

    site: str
    upload: Upload
    report: Report | None  # error figures, if the site shares them
    asked: tuple[str, ...]  # the clients that this site was asked to train
    reasons: Mapping[str, str] | None = None  # to refuse clients; None: the loop has to check


@dataclass(frozen=True)
class Failure:
    """A site without a usable reply, and the reason."""

    site: str
    reason: str


class TooFewError(FuelsError):
    """Too few sites replied; the round may be repeated with the same or other sites."""


class Chosen(tuple[str, ...]):
    """The clients of a round; those in `extra` train in addition to the ones drawn for it."""

    extra: frozenset[str]

    def __new__(cls, clients: Iterable[str], extra: Iterable[str] = ()) -> Self:
        self = super().__new__(cls, clients)
        self.extra = frozenset(extra)
        return self


class Transport(Protocol):
    @property
    def clients(self) -> tuple[str, ...]:
        """All clients known so far; new ones are appended."""
        ...

    def train(
        self, round_number: int, clients: Sequence[str], download: Download
    ) -> tuple[list[Reply], list[Failure]]: ...

    def evaluate(self, round_number: int, download: Download) -> Sequence[Report | Failure]: ...

    def changed_rows(self) -> Integers | None:
        """Rows of `state` that the current round changed; None: possibly all."""
        ...

    def state(self) -> dict[str, NDArray[Any]]: ...

    def load(self, state: Mapping[str, NDArray[Any]]) -> None: ...


class OwnSites(Transport, Protocol):
    """A transport whose sites all belong to this run, so that this process can merge them."""

    def whole(self) -> Site:
        """One site in this process with the current state of all clients.

        After changing it, pass its state to `load`: it may be a copy.
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
        return [Reply("local", upload, report, tuple(clients))], []

    def evaluate(self, round_number: int, download: Download) -> list[Report]:
        return [self.site.evaluate(round_number, download)]

    def changed_rows(self) -> Integers | None:
        return np.flatnonzero(self.site.changed)

    def state(self) -> dict[str, NDArray[Any]]:
        return self.site.state()

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.site.load(state)

    def whole(self) -> Site:
        return self.site

    def close(self) -> None:
        return
