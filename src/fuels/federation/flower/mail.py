"""Letters to sites and what became of them: which are open, how large an answer may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, decode, encode
from fuels.federation.flower.letters import request
from fuels.federation.flower.parties import Rules, log
from fuels.federation.flower.post import Answer, Post
from fuels.federation.refusals import Refusals
from fuels.federation.transport import Failure
from fuels.methods.messages import Download

T = TypeVar("T")


@dataclass(frozen=True)
class Letter:
    """What was asked of a site, and for which clients.

    Also those that an earlier letter of the same round asked for: a site that has trained them
    repeats its answer.
    """

    site: str
    kind: str
    number: int
    asked: tuple[str, ...]


@dataclass(frozen=True)
class Arrival:
    """What became of a letter: an envelope or a failure."""

    sent: Letter
    envelope: Envelope | None
    failure: Failure | None


class Mail:
    """Sends letters, keeps those without an answer, and reads the answers."""

    def __init__(
        self, post: Post, run: str, rules: Rules, refused: Refusals, limit: Callable[[Letter], int]
    ) -> None:
        self.post, self.run, self.rules, self.refused, self.limit = post, run, rules, refused, limit
        self.open: dict[str, Letter] = {}  # tickets without an answer, of this round and before
        self.newest: dict[tuple[str, str], Letter] = {}  # of each kind to each site
        self.counters = {"bytes_up": 0, "bytes_down": 0, "messages": 0}

    def send(
        self,
        kind: str,
        number: int,
        asked: Mapping[str, tuple[str, ...]],
        download: Download,
        best_round: int = 0,
    ) -> None:
        if not asked:
            return
        letters = {
            site: encode(request(kind, self.run, number, site, ids, download.take(ids), best_round))
            for site, ids in asked.items()
        }
        # An answer to a round is of no use once it would be stale.
        ttl = self.rules.deadline * (1 + self.rules.staleness) + 60
        for (site, ids), ticket in zip(
            asked.items(), self.post.send(letters, kind, number, ttl), strict=True
        ):
            before = self.newest.get((site, kind))
            if before is not None and before.number == number:
                ids = tuple(dict.fromkeys((*before.asked, *ids)))
            self.open[ticket] = self.newest[site, kind] = Letter(site, kind, number, ids)
            self.counters["messages"] += 1
            self.counters["bytes_down"] += len(letters[site])

    def collect(self) -> list[Arrival]:
        """What came in for any open letter."""
        answers = self.post.collect(list(self.open)) if self.open else ()
        found = [(self.open.pop(answer.ticket, None), answer) for answer in answers]
        return [self._read(sent, answer) for sent, answer in found if sent is not None]

    def _read(self, sent: Letter, answer: Answer) -> Arrival:
        """An answer, decoded; what cannot be read is refused."""
        site, number = sent.site, sent.number
        if answer.content is None and not answer.refused:
            return Arrival(sent, None, failed(site, number, answer.reason))
        try:
            if answer.content is None:
                raise FuelsError(answer.reason)
            content = answer.content
            self.counters["bytes_up"] += len(content)
            envelope = reading(lambda: decode(content, self.limit(sent)))
        except FuelsError as error:
            return Arrival(sent, None, self.refused.add(site, number, "message", str(error)))
        return Arrival(sent, envelope, None)


def failed(site: str, number: int, reason: str) -> Failure:
    """A site that gave nothing; what it gave and was not taken is a refusal."""
    log.warning("round %d: %s: %s", number, site, reason)
    return Failure(site, reason)


def reading(read: Callable[[], T]) -> T:
    """Whatever a message does to its reader, it is a reason to refuse it and the round goes on."""
    try:
        return read()
    except FuelsError:
        raise
    except Exception as error:
        log.exception("a message made its reader stumble")
        raise FuelsError(f"it cannot be read ({type(error).__name__})") from None
