"""Refusals, logged and counted by reason.

A refusal does not affect other sites, so without a count a site that sends nothing useful would go
unnoticed. Reasons may quote a message: they are shortened for the log, and counted without the
quoted text.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from fuels.federation.transport import Failure

log = logging.getLogger("fuels.refusals")
log.addHandler(logging.NullHandler())  # on one machine the display shows failures already

LONGEST = 300  # characters of a reason
MOST_REASONS = 50  # counted apart for one site
OTHER = "other reasons"
QUOTED = re.compile(r"""'[^']*'|"[^"]*"|\[[^\]]*\]|\([^)]*\)|\d[\w.+-]*""")


class Refusals:
    """How often each site's messages were refused, by reason, and who is excluded for it.

    Only refused values of a client that was asked count towards its exclusion, which `limit` of
    them bring about (0: no number does). A message refused as a whole does not: it has no effect on
    the others, and late or repeated messages happen to honest sites.
    """

    def __init__(self, limit: int = 0) -> None:
        self.counts: dict[str, dict[str, int]] = {}  # site: reason: how often
        self.limit = limit
        self.strikes: dict[str, int] = {}  # client: how often its values were refused

    @property
    def total(self) -> int:
        return sum(sum(reasons.values()) for reasons in self.counts.values())

    @property
    def excluded(self) -> set[str]:
        """Clients that take no further part in the run."""
        if not self.limit:
            return set()
        return {client for client, count in self.strikes.items() if count >= self.limit}

    def add(self, site: str, number: int, what: str, reason: str, client: str = "") -> Failure:
        """Count the refusal of `what` a site sent in a round; returns the failure to report.

        `client`: whose values were refused, if they count towards its exclusion.
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
        if client:
            self.strikes[client] = self.strikes.get(client, 0) + 1
            if self.strikes[client] == self.limit:
                out = f"excluded from the run after {self.limit} refusals (defence.refusals)"
                log.warning("round %d: %s: %s %s", number, site, what, out)
                reason = f"{reason}; {out}"
        return Failure(site, f"{what} refused: {reason}")

    def load(
        self, counts: Mapping[str, Mapping[str, int]], strikes: Mapping[str, int] | None = None
    ) -> None:
        self.counts = {site: dict(reasons) for site, reasons in counts.items()}
        self.strikes = dict(strikes or {})


def printable(text: str, most: int) -> str:
    """One line that is safe to print, whatever the message contained."""
    shown = "".join(sign if sign.isprintable() else " " for sign in text[: 4 * most])
    return " ".join(shown.split())[:most]


def general(reason: str) -> str:
    """A reason without its names and numbers."""
    return QUOTED.sub("*", reason)
