"""Requests to sites, and their replies: matched, decoded and checked before the round uses them.

Each reply is accepted or refused separately. A refusal has a reason, is counted, and does not
affect the other sites.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Protocol, TypeVar

from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, decode, encode
from fuels.federation.flower.folders import RefusalError, Rules, log
from fuels.federation.flower.members import Members
from fuels.federation.flower.messages import (
    NOTHING,
    Extra,
    read_report,
    read_upload,
    read_withheld,
    request,
)
from fuels.federation.guard import EnvelopeGuard, refusals
from fuels.federation.refusals import Event, Refusals
from fuels.federation.site import Report
from fuels.federation.transport import Failure, Reply
from fuels.methods.base import Method
from fuels.methods.messages import Download, Upload

T = TypeVar("T")


@dataclass(frozen=True)
class Time:
    """The clock of the transport, and how it waits."""

    clock: Callable[[], float] = monotonic
    sleep: Callable[[float], None] = sleep


class Network(Protocol):
    """Carries bytes to sites and back, without reading them."""

    def connected(self) -> set[str]:
        """Names of the sites that can be reached, identified by their verified keys."""
        ...

    def allowed(self) -> set[str]:
        """Names of the sites that may take part at present, connected or not."""
        ...

    def send(self, contents: Mapping[str, bytes], kind: str, number: int, ttl: float) -> list[str]:
        """Send one message to each site; returns a ticket per message, in order."""
        ...

    def collect(self, tickets: Sequence[str]) -> Mapping[str, bytes | FuelsError]:
        """The replies that have arrived, by ticket; each is returned once.

        A RefusalError says why a site gives no reply, any other FuelsError why its reply cannot be
        read.
        """
        ...


@dataclass(frozen=True)
class Request:
    """What a site was asked for, and for which clients.

    Includes the clients of earlier requests of the same round: a site that has trained them repeats
    its reply.
    """

    site: str
    kind: str
    number: int
    asked: tuple[str, ...]


def event(what: str, site: str, kind: str, number: int, content: bytes) -> Event:
    """A message in the audit log."""
    facts = {"site": site, "kind": kind, "round": number}
    digest = hashlib.sha256(content).hexdigest()
    return {"event": what, **facts, "bytes": len(content), "sha256": digest}


class Requests:
    """Sends requests, keeps those without a reply, and decodes the replies."""

    def __init__(
        self,
        network: Network,
        run: str,
        rules: Rules,
        refused: Refusals,
        limit: Callable[[Request], int],
    ) -> None:
        self.network, self.run, self.rules = network, run, rules
        self.refused, self.limit = refused, limit
        self.open: dict[str, Request] = {}  # by ticket, of this round and earlier ones
        self.newest: dict[tuple[str, str], Request] = {}  # of each kind to each site
        self.extra: dict[str, Extra] = {}  # what requests of a kind bring besides a download
        self.size: dict[str, int] = {}  # bytes of the largest reply to requests of a kind
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
        contents = {
            site: encode(
                request(
                    kind,
                    self.run,
                    number,
                    site,
                    ids,
                    download.take(ids),
                    best_round,
                    self.extra.get(kind, NOTHING),
                )
            )
            for site, ids in asked.items()
        }
        # A reply is useless once it would be stale.
        ttl = self.rules.deadline * (1 + self.rules.staleness) + 60
        tickets = self.network.send(contents, kind, number, ttl)
        for (site, ids), ticket in zip(asked.items(), tickets, strict=True):
            before = self.newest.get((site, kind))
            if before is not None and before.number == number:
                ids = tuple(dict.fromkeys((*before.asked, *ids)))
            self.open[ticket] = self.newest[site, kind] = Request(site, kind, number, ids)
            self.counters["messages"] += 1
            self.counters["bytes_down"] += len(contents[site])
        self.refused.note([event("sent", s, kind, number, c) for s, c in contents.items()])

    def collect(self) -> list[tuple[Request, Envelope | Failure]]:
        """The replies to open requests: each a message, or why there is none."""
        replies = self.network.collect(list(self.open)) if self.open else {}
        found = [(self.open.pop(ticket, None), reply) for ticket, reply in replies.items()]
        given = [(sent, reply) for sent, reply in found if sent is not None]
        self.refused.note(
            [
                event("received", sent.site, sent.kind, sent.number, reply)
                for sent, reply in given
                if isinstance(reply, bytes)
            ]
        )
        return [(sent, self._read(sent, reply)) for sent, reply in given]

    def _read(self, sent: Request, reply: bytes | FuelsError) -> Envelope | Failure:
        if isinstance(reply, RefusalError):
            return failed(sent.site, sent.number, str(reply))
        try:
            if isinstance(reply, FuelsError):
                raise reply
            self.counters["bytes_up"] += len(reply)
            limit = self.size.get(sent.kind) or self.limit(sent)
            return reading(lambda: decode(reply, limit))
        except FuelsError as error:
            return self.refused.add(sent.site, sent.number, "message", str(error), fault=True)


@dataclass(frozen=True)
class Inbox:
    """Checks replies: who may send them, what was used already, and what they contain."""

    guard: EnvelopeGuard
    members: Members
    refused: Refusals

    def upload(
        self, method: Method, sent: Request, envelope: Envelope, number: int
    ) -> tuple[Reply | None, list[Failure]]:
        """The upload in a reply, if the guard accepts it and at least one of its clients is usable.

        `number`: the current round. An upload without a usable client does not count towards the
        quorum.
        """
        site, most = sent.site, self.members.periods[sent.site] * method.facts.period
        fault = envelope.site != site  # being late or early is none
        try:
            reason = self.guard.refusal(envelope, site, "train", number, sent.number)
            if reason:
                raise FuelsError(reason)
            _need_same_arrays(method, sent.number, number)
            fault = True
            upload = reading(lambda: read_upload(envelope))
            withheld = set(reading(lambda: read_withheld(envelope)))
            reasons = reading(lambda: _refused_clients(method, upload, sent, most))
        except FuelsError as error:
            return None, [self.refused.add(site, number, "upload", str(error), fault=fault)]
        failures = [
            failed(site, number, f"it withholds client {client}; see the site's log")
            for client in sent.asked
            if client in withheld
        ]
        report = self.report(sent, envelope, method.losses)
        if isinstance(report, Failure):
            failures.append(report)
            report = None
        self.guard.use(envelope)
        return Reply(site, upload, report, sent.asked, reasons=reasons), failures

    def report(
        self, sent: Request, envelope: Envelope, declared: Collection[str] = ()
    ) -> Report | Failure | None:
        """The error figures in a reply, None without any, or why they are refused.

        `declared`: the losses it may contain; an evaluation has none.
        """
        try:
            report = reading(lambda: read_report(envelope, declared))
            if report is not None and not set(report.clients) <= set(sent.asked):
                raise FuelsError("they name clients that were not asked for")
        except FuelsError as error:
            return self.refused.add(sent.site, sent.number, "error figures", str(error), fault=True)
        return report


def _need_same_arrays(method: Method, asked: int, number: int) -> None:
    """A late upload is used in the current round only if it consists of the same arrays."""
    then, now = (
        ({name: sent.shape for name, sent in method.uploads(n).items()}, method.counts(n))
        for n in (asked, number)
    )
    if then != now:
        raise FuelsError(f"late: it is from round {asked}, whose arrays differ from round {number}")


def _refused_clients(method: Method, upload: Upload, sent: Request, most: int) -> dict[str, str]:
    """Why single clients of an upload are refused; raises if all are."""
    declared = method.uploads(sent.number)  # as declared for its own round
    counted = method.counts(sent.number)
    reasons, whole = refusals(upload, declared, set(sent.asked), counted=counted, most_samples=most)
    if whole:
        raise FuelsError(whole)
    if len(reasons) == len(upload.clients):
        raise FuelsError("; ".join(f"client {c!r}: {why}" for c, why in reasons.items()))
    return reasons


def failed(site: str, number: int, reason: str) -> Failure:
    """A site that sent nothing; what it sent and was not accepted is a refusal."""
    log.warning("round %d: %s: %s", number, site, reason)
    return Failure(site, reason)


def reading(read: Callable[[], T]) -> T:
    """Turns any error while reading a message into a reason to refuse it; the round continues."""
    try:
        return read()
    except FuelsError:
        raise
    except Exception as error:
        log.exception("a message could not be read")
        raise FuelsError(f"it cannot be read ({type(error).__name__})") from None
