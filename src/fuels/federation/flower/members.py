"""Who takes part: which site has which clients, as each said when it joined."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, text_list

MOST_PERIODS = 10**6


@dataclass
class Members:
    """Clients and their sites; the first site that names a client has it."""

    owner: dict[str, str] = field(default_factory=dict)  # client: its site, in the loop's order
    train_periods: int = 0  # the longest training part of all, in periods

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.owner)

    @property
    def sites(self) -> set[str]:
        return set(self.owner.values())

    def of(self, site: str) -> tuple[str, ...]:
        """The clients of a site."""
        return tuple(client for client, owner in self.owner.items() if owner == site)

    def by_site(self, clients: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """These clients, by their sites."""
        asked: dict[str, list[str]] = {}
        for client in clients:
            asked.setdefault(self.owner[client], []).append(client)
        return {site: tuple(ids) for site, ids in asked.items()}

    def introduce(self, site: str, envelope: Envelope) -> None:
        """Take in the clients that a site says it has, unless another site has one of them."""
        clients = text_list(envelope.facts.get("clients"), "the list of clients")
        periods = envelope.facts.get("train_periods")
        if not clients or len(set(clients)) != len(clients):
            raise FuelsError("it names no clients, or one of them twice")
        if type(periods) is not int or not 1 <= periods <= MOST_PERIODS:
            raise FuelsError("it does not say how long its training part is")
        taken = [client for client in clients if self.owner.get(client, site) != site]
        if taken:
            raise FuelsError(f"client {taken[0]} belongs to site {self.owner[taken[0]]}")
        self.owner |= dict.fromkeys(clients, site)
        self.train_periods = max(self.train_periods, periods)

    def sort(self) -> None:
        """The order that a single machine with all the data would have."""
        self.owner = {client: self.owner[client] for client in sorted(self.owner)}

    def state(self) -> dict[str, Any]:
        return {"owner": self.owner, "train_periods": self.train_periods}

    def load(self, state: dict[str, Any]) -> None:
        self.owner, self.train_periods = state["owner"], state["train_periods"]
