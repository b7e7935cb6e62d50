"""The transport between the round loop and sites on other machines.

A round asks the sites of its clients and closes when all have answered or its deadline is over.
Below the quorum it is asked again: a site that has trained the round already only repeats its
answer. An answer that comes after its round closed is used in the next one if it is fresh enough
and its site has nothing newer; otherwise it is refused as stale. A site that comes, or comes back,
is asked who its clients are, beside the round; new ones train from the next one on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, decode, encode
from fuels.federation.flower.declaration import need_equal
from fuels.federation.flower.letters import read_report, read_upload, request
from fuels.federation.flower.members import Members
from fuels.federation.flower.parties import Rules, log
from fuels.federation.flower.post import Answer, Post, Time
from fuels.federation.guard import OVERHEAD, Gate, refusals, size_limit
from fuels.federation.refusals import Refusals
from fuels.federation.site import Report
from fuels.federation.transport import Failure, Reply
from fuels.messages import Download, Upload
from fuels.methods.base import Method

POLL = 0.5  # seconds between two looks for answers
MOST_HELLO = 8 * 2**20  # bytes of a site's list of clients

T = TypeVar("T")


@dataclass(frozen=True)
class _Sent:
    site: str
    kind: str
    number: int
    asked: tuple[str, ...]


@dataclass(frozen=True)
class _Arrival:
    """What became of something sent: an envelope or a failure."""

    sent: _Sent
    envelope: Envelope | None
    failure: Failure | None


class FlowerTransport:
    """Sites on other machines; see the module's docstring."""

    method: Method | None = None  # known once the sites said how long their training parts are

    def __init__(
        self, post: Post, run: str, rules: Rules, rounds: int, time: Time, refused: Refusals
    ) -> None:
        self.post, self.run, self.rules, self.rounds = post, run, rules, rounds
        self.clock, self.sleep = time.clock, time.sleep
        self.gate = Gate(run, rules.staleness)
        self.members, self.refused = Members(), refused
        self.greeted: set[str] = set()  # sites that are there and said who they are
        self.open: dict[str, _Sent] = {}  # tickets without an answer, of this round and before
        self.late: dict[str, tuple[_Sent, Envelope]] = {}  # site: newest answer of an earlier round
        self.counters = {"bytes_up": 0, "bytes_down": 0, "messages": 0}

    @property
    def clients(self) -> tuple[str, ...]:
        return self.members.clients

    # -- joining -------------------------------------------------------------------------------

    def join(self, expected: set[str]) -> None:
        """Before the first round: wait for the expected sites, at most `rules.join` seconds."""
        end = self.clock() + self.rules.join
        asked: set[str] = set()
        failures: dict[str, str] = {}
        while True:
            new = self.post.connected() - asked
            self._send("hello", 0, dict.fromkeys(new, ()), Download())
            asked |= new
            for arrival in self._arrivals("hello", 0):
                if arrival.failure is not None:
                    failures[arrival.failure.site] = arrival.failure.reason
            missing = expected - self.members.sites - set(failures)
            if not missing or self.clock() >= end:
                break
            self.sleep(POLL)
        for site in sorted(missing):
            failures[site] = f"not connected within {self.rules.join:g} s"
            self._fail(site, 0, failures[site])
        there = len(self.members.sites)
        if there < self.rules.quorum * len(expected):
            reasons = "; ".join(f"{site}: {reason}" for site, reason in sorted(failures.items()))
            raise FuelsError(f"{there} of {len(expected)} sites joined ({reasons})")
        self.members.sort()

    def use(self, method: Method) -> None:
        """The method of the run, now that the members' training parts are known."""
        need_equal(method, self.members.periods)
        self.method = method

    def _greet(self, connected: set[str], number: int) -> None:
        """Ask those who came, or came back and may have changed, who their clients are."""
        self.greeted &= connected
        # An answer may take until the round after: only then is the question taken for lost.
        open_ = {s.site for s in self.open.values() if s.kind == "hello" and s.number >= number - 1}
        self._send("hello", number, dict.fromkeys(connected - self.greeted - open_, ()), Download())

    def _introduce(self, sent: _Sent, envelope: Envelope) -> Failure | None:
        """Let a site say who its clients are: when it comes, and when it comes back."""
        site = sent.site
        try:
            reason = self.gate.refusal(envelope, site, "hello", sent.number)
            if reason:
                raise FuelsError(reason)
            clients, periods = _reading(lambda: self.members.check(site, envelope, self.rules))
            if self.method is not None:
                need_equal(self.method, {site: periods})
        except FuelsError as error:
            return self.refused.add(site, sent.number, "introduction", str(error))
        if site not in self.members.sites:
            log.info("%s joins with %d clients", site, len(clients))
        self.members.introduce(site, clients, periods)
        self.greeted.add(site)
        return None

    # -- rounds --------------------------------------------------------------------------------

    def train(
        self, round_number: int, clients: Sequence[str], download: Download
    ) -> tuple[list[Reply], list[Failure]]:
        asked = self.members.by_site(tuple(clients))
        replies: dict[str, Reply] = {}
        failures: list[Failure] = []
        needed = max(1, int(np.ceil(self.rules.quorum * len(asked) - 1e-9)))
        for attempt in range(1, self.rules.attempts + 1):
            waiting = {site: asked[site] for site in asked if site not in replies}
            failures = self._round(round_number, waiting, download, replies)
            if len(replies) >= needed:
                return [replies[site] for site in sorted(replies)], failures
            log.warning(
                "round %d, attempt %d: %d of %d sites answered, %d are needed",
                round_number, attempt, len(replies), len(asked), needed,
            )  # fmt: skip
        raise FuelsError(
            f"round {round_number}: {len(replies)} of {len(asked)} sites answered, {needed} are"
            f" needed; after {self.rules.attempts} attempts the run stops here and can be resumed"
        )

    def _round(
        self,
        number: int,
        asked: Mapping[str, tuple[str, ...]],
        download: Download,
        replies: dict[str, Reply],
    ) -> list[Failure]:
        """Ask once and wait until all have answered or the deadline is over."""
        end = self.clock() + self.rules.deadline
        connected = self.post.connected()
        away = sorted(set(asked) - connected)
        failures = [self._fail(site, number, "not connected") for site in away]
        waiting = {site: ids for site, ids in asked.items() if site in connected}
        self._send("train", number, waiting, download)
        self._greet(connected, number)
        pending = set(waiting)
        while True:
            for arrival in self._arrivals("train", number):
                if arrival.sent.kind == "train":
                    pending.discard(arrival.sent.site)
                if arrival.failure is not None:
                    failures.append(arrival.failure)
                elif arrival.envelope is not None and arrival.sent.site in replies:
                    log.info("%s: one upload of round %d is enough", arrival.sent.site, number)
                elif arrival.envelope is not None:
                    self._use(arrival.sent, arrival.envelope, number, replies, failures)
            if not pending or self.clock() >= end:
                break
            self.sleep(POLL)
        silent = f"no answer within {self.rules.deadline:g} s"
        failures += [self._fail(site, number, silent) for site in sorted(pending)]
        if not pending and not waiting:
            self.sleep(min(self.rules.deadline, 5.0))  # nobody there: do not spin through attempts
        self._use_late(number, replies, failures)
        return failures

    def _use_late(self, number: int, replies: dict[str, Reply], failures: list[Failure]) -> None:
        for site, (sent, envelope) in sorted(self.late.items()):
            if site in replies:
                log.info("%s: its late upload of round %d is not needed", site, sent.number)
            else:
                log.info("%s: its late upload of round %d stands in", site, sent.number)
                self._use(sent, envelope, number, replies, failures)
        self.late.clear()

    def _use(
        self,
        sent: _Sent,
        envelope: Envelope,
        number: int,
        replies: dict[str, Reply],
        failures: list[Failure],
    ) -> None:
        """Let an upload in if the gate does and something in it can be used.

        Which of its clients are refused is for the loop to say; an upload without any good one does
        not count towards the quorum.
        """
        site, most = sent.site, self.members.periods[sent.site] * self._method.facts.period
        try:
            reason = self.gate.refusal(envelope, site, "train", number)
            if reason:
                raise FuelsError(reason)
            upload = _reading(lambda: read_upload(envelope))
            _reading(lambda: self._need_one_good_client(upload, sent, number, most))
        except FuelsError as error:
            failures.append(self.refused.add(site, number, "upload", str(error)))
            return
        report = self._report(envelope, sent, sent.asked)
        if isinstance(report, Failure):
            failures.append(report)
            report = None
        self.gate.use(envelope)
        replies[site] = Reply(site, upload, report, sent.asked, most)

    def _need_one_good_client(self, upload: Upload, sent: _Sent, number: int, most: int) -> None:
        declared = self._method.uploads(number)
        reasons, whole = refusals(upload, declared, set(sent.asked), most_samples=most)
        if whole:
            raise FuelsError(whole)
        if len(reasons) == len(upload.clients):
            raise FuelsError("; ".join(f"client {c!r}: {why}" for c, why in reasons.items()))

    def _report(
        self, envelope: Envelope, sent: _Sent, expected: Sequence[str]
    ) -> Report | Failure | None:
        """The error figures in an answer, None without any, or why they are refused."""
        try:
            report = _reading(lambda: read_report(envelope))
            if report is not None and not set(report.clients) <= set(expected):
                raise FuelsError("they speak of clients that were not asked")
        except FuelsError as error:
            return self.refused.add(sent.site, sent.number, "error figures", str(error))
        return report

    # -- evaluation and end --------------------------------------------------------------------

    def evaluate(self, round_number: int, download: Download) -> list[Report]:
        if round_number % self.rules.evaluate_every and round_number != self.rounds:
            return []
        answers = self._ask_all("evaluate", round_number, download)
        reports = [self._report(envelope, sent, sent.asked) for sent, envelope in answers]
        return [report for report in reports if isinstance(report, Report)]

    def finish(self, round_number: int, download: Download) -> set[str]:
        """Let every site write its models; returns the sites that confirmed it."""
        done = {sent.site for sent, _ in self._ask_all("finish", round_number, download)}
        for site in sorted(self.members.sites - done):
            log.warning("%s did not confirm the end; resume the run when it is back", site)
        return done

    def _ask_all(self, kind: str, number: int, download: Download) -> list[tuple[_Sent, Envelope]]:
        connected = self.post.connected()
        asked = {site: self.members.of(site) for site in sorted(self.members.sites & connected)}
        self._send(kind, number, asked, download)
        pending, found = set(asked), []
        end = self.clock() + self.rules.deadline
        while pending:
            for arrival in self._arrivals(kind, number):
                sent, envelope = arrival.sent, arrival.envelope
                if sent.kind == kind:
                    pending.discard(sent.site)
                if envelope is None:
                    continue
                reason = self.gate.refusal(envelope, sent.site, kind, number)
                if reason:
                    self.refused.add(sent.site, number, kind, reason)
                else:
                    found.append((sent, envelope))
            if self.clock() >= end:
                break
            self.sleep(POLL)
        for site in sorted(pending):
            self._fail(site, number, f"no answer to {kind} within {self.rules.deadline:g} s")
        return sorted(found, key=lambda pair: pair[0].site)

    # -- letters -------------------------------------------------------------------------------

    @property
    def _method(self) -> Method:
        assert self.method is not None, "a round before the method is known"
        return self.method

    def _fail(self, site: str, number: int, reason: str) -> Failure:
        """A site that gave nothing; what it gave and was not taken is a refusal."""
        log.warning("round %d: %s: %s", number, site, reason)
        return Failure(site, reason)

    def _send(
        self, kind: str, number: int, asked: Mapping[str, tuple[str, ...]], download: Download
    ) -> None:
        if not asked:
            return
        letters = {
            site: encode(request(kind, self.run, number, site, ids, download.take(ids)))
            for site, ids in asked.items()
        }
        # An answer to a round is of no use once it would be stale.
        ttl = self.rules.deadline * (1 + self.rules.staleness) + 60
        for (site, ids), ticket in zip(
            asked.items(), self.post.send(letters, kind, number, ttl), strict=True
        ):
            self.open[ticket] = _Sent(site, kind, number, ids)
            self.counters["messages"] += 1
            self.counters["bytes_down"] += len(letters[site])

    def _arrivals(self, kind: str, number: int) -> list[_Arrival]:
        """What came in for the letters of this kind and round; the rest is put where it belongs.

        A site that says who it is becomes a member, an upload of an earlier round is kept for the
        end of this one. A failed introduction is given out in the round of its letter.
        """
        arrived = []
        for answer in self.post.collect(list(self.open)) if self.open else ():
            sent = self.open.pop(answer.ticket, None)
            if sent is None:
                continue
            arrival = self._read(sent, answer)
            now = (sent.kind, sent.number) == (kind, number)
            if sent.kind == "hello" and arrival.envelope is not None:
                failure = self._introduce(sent, arrival.envelope)
                arrival = _Arrival(sent, None, failure)
            if now or (sent.kind == "hello" and sent.number == number):
                arrived.append(arrival)
            elif sent.kind == "train" and arrival.envelope is not None:
                self.late[sent.site] = (sent, arrival.envelope)
        return arrived

    def _read(self, sent: _Sent, answer: Answer) -> _Arrival:
        """An answer, decoded; what cannot be read is refused."""
        site, number = sent.site, sent.number
        if answer.content is None and not answer.refused:
            return _Arrival(sent, None, self._fail(site, number, answer.reason))
        try:
            if answer.content is None:
                raise FuelsError(answer.reason)
            content = answer.content
            self.counters["bytes_up"] += len(content)
            envelope = _reading(lambda: decode(content, self._limit(sent)))
        except FuelsError as error:
            return _Arrival(sent, None, self.refused.add(site, number, "message", str(error)))
        return _Arrival(sent, envelope, None)

    def _limit(self, sent: _Sent) -> int:
        if sent.kind == "hello":
            return MOST_HELLO
        if sent.kind == "train":
            return size_limit(len(sent.asked), self._method.uploads(sent.number))
        return OVERHEAD + size_limit(len(self.members.of(sent.site)), {})

    # -- state ---------------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray[Any]]:
        facts = {
            "members": self.members.state(),
            "used": self.gate.used,
            "counters": self.counters,
        }
        return {"facts": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        facts = json.loads(state["facts"].tobytes())
        self.members.load(facts["members"])
        self.gate.used = facts["used"]
        self.counters = facts["counters"]


def _reading(read: Callable[[], T]) -> T:
    """Whatever a message does to its reader, it is a reason to refuse it and the round goes on."""
    try:
        return read()
    except FuelsError:
        raise
    except Exception as error:
        log.exception("a message made its reader stumble")
        raise FuelsError(f"it cannot be read ({type(error).__name__})") from None
