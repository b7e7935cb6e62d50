"""Refusals, logged and counted by reason, and which clients and sites are excluded for them.

A refusal does not affect other sites, so without a count a site that sends nothing useful would go
unnoticed. Reasons may quote a message: they are shortened for the log, and counted without the
quoted text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from fuels.federation.reasons import general, printable
from fuels.federation.transport import Failure

log = logging.getLogger("fuels.refusals")
log.addHandler(logging.NullHandler())  # on one machine the display shows failures already

Event = Mapping[str, Any]
LONGEST = 300  # characters of a reason
MOST_REASONS = 50  # counted apart for one site
OTHER = "other reasons"


class Refusals:
    """How often each site's messages were refused, by reason, and who is excluded for it.

    Only refused values of a client that was asked count towards its exclusion, which `limit` of
    them bring about (0: no number does). A site is excluded after `limit` messages that no honest
    site sends, or when all its clients are excluded or were left out by the method as often, in
    more than half of the rounds. Late and repeated messages do not count: they happen to honest
    sites.
    """

    def __init__(self, limit: int = 0) -> None:
        self.counts: dict[str, dict[str, int]] = {}  # site: reason: how often
        self.limit = limit
        self.strikes: dict[str, int] = {}  # client: how often its values were refused
        self.faults: dict[str, int] = {}  # site: messages refused that no honest site sends
        self.left_out: dict[str, int] = {}  # client: rounds whose upload the method did not use
        self.useless: dict[str, int] = {}  # those of them that count towards its site's exclusion
        self.banned: set[str] = set()  # clients of excluded sites; the transport knows them
        # Receives every refusal, and what else a transport has to record, for an audit log.
        self.note: Callable[[list[Event]], None] = lambda events: None

    @property
    def total(self) -> int:
        return sum(sum(reasons.values()) for reasons in self.counts.values())

    @property
    def excluded(self) -> set[str]:
        """Clients that take no further part in the run."""
        if not self.limit:
            return set()
        often = {client for client, count in self.strikes.items() if count >= self.limit}
        return often | self.banned

    def verdict(self, site: str, clients: Collection[str], rounds: int) -> str:
        """Why a site with these clients is excluded after so many rounds; "" if it is not."""
        if not self.limit:
            return ""
        if self.faults.get(site, 0) >= self.limit:
            return f"{self.limit} of its messages were refused"

        def useless(client: str) -> bool:
            left = self.useless.get(client, 0)
            often = left >= self.limit and 2 * left > rounds
            return often or self.strikes.get(client, 0) >= self.limit

        if clients and all(map(useless, clients)):
            return f"all its clients were refused or left out in {self.limit} rounds"
        return ""

    def add(
        self,
        site: str,
        number: int,
        what: str,
        reason: str,
        client: str = "",
        *,
        fault: bool = False,
    ) -> Failure:
        """Count the refusal of `what` a site sent in a round; returns the failure to report.

        `client`: whose values were refused, if they count towards its exclusion. `fault`: whether
        the whole message counts towards the site's.
        """
        what, reason = printable(what, LONGEST // 3), printable(reason, LONGEST)
        found = self.counts.setdefault(site, {})
        key = general(reason)
        if key not in found and len(found) >= MOST_REASONS:
            key = OTHER
        found[key] = found.get(key, 0) + 1
        log.warning(
            "round %d: %s: %s refused: %s (refusal %d of this run)",
            number, site, what, reason, self.total,
        )  # fmt: skip
        what_for = {"site": site, "round": number, "reason": f"{what}: {reason}"}
        self.note([{"event": "refused", **what_for}])
        if fault:
            self.faults[site] = self.faults.get(site, 0) + 1
        if client:
            self.strikes[client] = self.strikes.get(client, 0) + 1
            if self.strikes[client] == self.limit:
                out = f"excluded from the run after {self.limit} refusals (defence.refusals)"
                log.warning("round %d: %s: %s %s", number, site, what, out)
                reason = f"{reason}; {out}"
        return Failure(site, f"{what} refused: {reason}")

    def leave_out(self, clients: Collection[str], useless: Collection[str]) -> None:
        """Count a round whose uploads of these clients the method did not use."""
        for counts, those in ((self.left_out, clients), (self.useless, useless)):
            counts |= {client: counts.get(client, 0) + 1 for client in those}

    def state(self) -> dict[str, Any]:
        return {
            "refused": self.counts,
            "strikes": self.strikes,
            "faults": self.faults,
            "left_out": self.left_out,
            "useless": self.useless,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue with saved counts; earlier versions saved only some of them."""
        self.counts = {site: dict(why) for site, why in state.get("refused", {}).items()}
        self.strikes, self.faults, self.left_out, self.useless = (
            dict(state.get(name, {})) for name in ("strikes", "faults", "left_out", "useless")
        )
