"""The members of a run: which site has which clients, as each stated when last asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, text_list
from fuels.federation.flower.folders import Rules

LONGEST_NAME = 200  # characters of a client's name: names appear in logs and in every message


@dataclass
class Members:
    """Clients and their sites; the first site that names a client owns it."""

    owner: dict[str, str] = field(default_factory=dict)  # client: site, in the loop's order
    periods: dict[str, int] = field(default_factory=dict)  # site: its training part, in periods
    digest: str = ""  # of the secret that the sites share, as the first one stated it

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.owner)

    @property
    def sites(self) -> set[str]:
        return set(self.periods)

    @property
    def train_periods(self) -> int:
        """The longest training part."""
        return max(self.periods.values(), default=0)

    def of(self, site: str) -> tuple[str, ...]:
        """The clients of a site."""
        return tuple(client for client, owner in self.owner.items() if owner == site)

    def by_site(self, clients: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """These clients, by site."""
        asked: dict[str, list[str]] = {}
        for client in clients:
            asked.setdefault(self.owner[client], []).append(client)
        return {site: tuple(ids) for site, ids in asked.items()}

    def check(self, site: str, envelope: Envelope, rules: Rules) -> tuple[tuple[str, ...], int]:
        """The clients and training periods that a site claims, if they are acceptable."""
        clients = text_list(envelope.facts.get("clients"), "the list of clients")
        periods = envelope.facts.get("train_periods")
        if not clients or len(set(clients)) != len(clients):
            raise FuelsError("it names no clients, or the same one twice")
        if len(clients) > rules.most_clients:
            raise FuelsError(
                f"it names {len(clients)} clients; at most {rules.most_clients} are accepted"
                " (rules.most_clients in server.toml)"
            )
        for client in clients:
            if not 0 < len(client) <= LONGEST_NAME or not client.isprintable():
                raise FuelsError(
                    f"client {client[:40]!r} has an unacceptable name: not 1 to {LONGEST_NAME}"
                    " printable characters"
                )
        if type(periods) is not int or periods < 1:
            raise FuelsError("it does not state the length of its training part")
        if periods > rules.most_periods:
            raise FuelsError(
                f"it claims a training part of {periods} periods; at most"
                f" {rules.most_periods} are accepted (rules.most_periods in server.toml)"
            )
        digest = envelope.facts.get("secret", "")
        if self.owner and digest != self.digest:
            raise FuelsError(
                "its federation.secret differs from that of the sites that joined first"
            )
        taken = [client for client in clients if self.owner.get(client, site) != site]
        if taken:
            raise FuelsError(f"client {taken[0]!r} belongs to site {self.owner[taken[0]]}")
        gone = sorted(set(self.of(site)) - set(clients))
        if gone:
            raise FuelsError(f"it joined this run with client {gone[0]!r}, which is now missing")
        self.digest = digest
        return clients, periods

    def introduce(self, site: str, clients: tuple[str, ...], periods: int) -> None:
        """Record the clients of a site; replaces what it stated before."""
        self.owner |= dict.fromkeys(clients, site)
        self.periods[site] = periods

    def remove(self, site: str) -> None:
        """Remove a site and its clients, before anything was trained."""
        self.owner = {client: owner for client, owner in self.owner.items() if owner != site}
        del self.periods[site]

    def sort(self) -> None:
        """Use the order that a single machine with all the data would have."""
        self.owner = {client: self.owner[client] for client in sorted(self.owner)}

    def state(self) -> dict[str, Any]:
        return {"owner": self.owner, "periods": self.periods, "digest": self.digest}

    def load(self, state: dict[str, Any]) -> None:
        self.owner, self.periods = state["owner"], state["periods"]
        self.digest = state.get("digest", "")
