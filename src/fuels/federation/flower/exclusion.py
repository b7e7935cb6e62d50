"""Sites that take no further part in a run because of what they sent.

`Refusals.verdict` says when. An excluded site is not asked again in this run, neither to train nor
to evaluate nor at the end, and it does not count towards the quorum. Its key stays valid.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fuels.federation.flower.inbox import failed
from fuels.federation.flower.members import Members
from fuels.federation.refusals import Refusals
from fuels.federation.transport import Failure

EXCLUDED = "excluded from the run: "  # opens the failure that reports it


@dataclass
class Exclusion:
    """The excluded sites of a run."""

    members: Members
    refused: Refusals
    reasons: dict[str, str] = field(default_factory=dict)  # site: why

    def look(self, number: int) -> list[Failure]:
        """Before a round: exclude sites by what they sent so far; returns the new ones."""
        found = []
        for site in sorted(self.members.sites - self.reasons.keys()):
            reason = self.refused.verdict(site, self.members.of(site), number - 1)
            if reason:
                self.reasons[site] = f"{reason} (defence.refusals)"
                event = {"event": "excluded", "site": site, "reason": reason, "round": number}
                self.refused.note([event])
                found.append(failed(site, number, EXCLUDED + self.reasons[site]))
        self.refused.banned = {c for site in self.reasons for c in self.members.of(site)}
        return found

    def load(self, reasons: dict[str, str]) -> None:
        self.reasons = dict(reasons)
        self.refused.banned = {c for site in reasons for c in self.members.of(site)}
