"""The one place that counts refusals: each is logged with its reason and counted by it.

What is refused changes nothing for the others: without a count nobody would notice a site that
sends nothing useful. Reasons may quote what a message said: they are cut to a length that a log can
bear, and counted without what they quote.
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
    """How often what each site sent was refused, by reason."""

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, int]] = {}  # site: reason: how often

    @property
    def total(self) -> int:
        return sum(sum(reasons.values()) for reasons in self.counts.values())

    def add(self, site: str, number: int, what: str, reason: str) -> Failure:
        """`what` the site sent, in a round, is not used; returns the failure to report."""
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
        return Failure(site, f"{what} refused: {reason}")

    def load(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        self.counts = {site: dict(reasons) for site, reasons in counts.items()}


def printable(text: str, most: int) -> str:
    """One line that a terminal can bear, whatever a message made of it."""
    shown = "".join(sign if sign.isprintable() else " " for sign in text[: 4 * most])
    return " ".join(shown.split())[:most]


def general(reason: str) -> str:
    """A reason without the names and numbers that it quotes."""
    return QUOTED.sub("*", reason)
