"""A secure sum at a site: every check, then the masked contribution.

    site = SecureSums(name, private key, certificate of the authority, answers, min_clients)
    words = site.answer(asked, roster file, lambda: to_words(contributions, ...))

The server collects the words of all sites of the set and calls `masks.total`. If one is missing it
asks for the same sum again, of the same sites, or skips it. Nothing here knows how messages travel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuels.sharing.answers import Answers, Origin, Span
from fuels.sharing.fixed_point import Words
from fuels.sharing.masks import SumId, masked, public_key
from fuels.sharing.roster import Roster, read_roster
from fuels.sharing.sums import MIN_CLIENTS


@dataclass(frozen=True)
class SecureSums:
    """A site's side of secure sums."""

    federation: str
    site: str
    private: bytes
    ca: bytes
    answers: Answers
    min_clients: int = MIN_CLIENTS

    def given(self, asked: SumId, roster: bytes, origin: Origin | None = None) -> Words | None:
        """The words already sent for a sum; None if it may be answered now (answers.py)."""
        self._members(asked, roster)
        return self.answers.given(asked, origin)

    def answer(
        self,
        asked: SumId,
        roster: bytes,
        contribution: Callable[[], Words],
        origin: Origin | None = None,
        also: Sequence[Span] = (),
    ) -> Words:
        """The masked words for a sum; a FuelsError says why there are none, and quotes no data.

        `roster`: the founder's file, as the server passes it on. `contribution()`: the site's words
        [number], without masks; it is not asked for if this sum was answered before.
        """
        members = self._members(asked, roster)

        def make() -> Words:
            words = contribution().reshape(-1)
            return masked(words, asked, self.site, self.private, members.keys)

        return self.answers.answer(asked, make, origin, also)

    def _members(self, asked: SumId, roster: bytes) -> Roster:
        """The founder's roster, if it allows this sum."""
        members = read_roster(roster, self.ca, self.federation)
        members.check(asked, self.site, public_key(self.private), self.min_clients)
        self.answers.accept(members)
        return members
