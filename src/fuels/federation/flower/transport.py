"""The transport between the round loop and sites on other machines.

A round asks the sites of its clients and closes when all have answered or its deadline is over.
Below the quorum it is asked again: a site that has trained the round already only repeats its
answer. An answer that comes after its round closed is used in the next one if it is fresh enough
and its site has nothing newer; otherwise it is refused as stale. A site seen for the first time is
asked who its clients are, beside the round; they train from the next one on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, decode, encode
from fuels.federation.flower.letters import read_report, read_upload, request
from fuels.federation.flower.members import Members
from fuels.federation.flower.parties import Rules, log
from fuels.federation.guard import OVERHEAD, Gate, refusals, size_limit
from fuels.federation.site import Report
from fuels.federation.transport import Failure, Reply
from fuels.messages import Download, Upload
from fuels.methods.base import Method

POLL = 0.5  # seconds between two looks for answers
MOST_HELLO = 8 * 2**20  # bytes of a site's list of clients


@dataclass(frozen=True)
class Answer:
    """What came back for a ticket: bytes, or the reason why there are none."""

    ticket: str
    content: bytes | None
    reason: str = ""


@dataclass(frozen=True)
class Time:
    """How the transport knows the time and lets it pass."""

    clock: Callable[[], float] = monotonic
    sleep: Callable[[float], None] = sleep


class Post(Protocol):
    """Carries bytes to sites and back, without looking at them."""

    def connected(self) -> set[str]:
        """Names of the sites that can be reached, by the keys they proved to have."""
        ...

    def send(self, letters: Mapping[str, bytes], kind: str, number: int, ttl: float) -> list[str]:
        """Send one letter to each site; returns a ticket per letter, in order."""
        ...

    def collect(self, tickets: Sequence[str]) -> list[Answer]:
        """The answers that have arrived, each given out once."""
        ...


@dataclass(frozen=True)
class _Sent:
    site: str
    kind: str
    number: int
    asked: tuple[str, ...]


class FlowerTransport:
    """Sites on other machines; see the module's docstring."""

    method: Method  # set once the sites said what the method must know

    def __init__(
        self,
        post: Post,
        run: str,
        rules: Rules,
        rounds: int,
        time: Time,
    ) -> None:
        self.post, self.run, self.rules, self.rounds = post, run, rules, rounds
        self.clock, self.sleep = time.clock, time.sleep
        self.gate = Gate(run, rules.staleness)
        self.members = Members()
        self.open: dict[str, _Sent] = {}  # tickets without an answer, of this round and before
        self.late: dict[str, tuple[_Sent, Envelope]] = {}  # site: newest answer of an earlier round
        self.counters = {"bytes_up": 0, "bytes_down": 0, "refused": 0, "messages": 0}

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
            for sent, envelope, failure in self._arrivals():
                if failure is None and envelope is not None:
                    failure = self._introduce(sent.site, envelope)
                if failure is not None:
                    failures[failure.site] = failure.reason
            missing = expected - self.members.sites - set(failures)
            if not missing or self.clock() >= end:
                break
            self.sleep(POLL)
        failures |= dict.fromkeys(missing, f"not connected within {self.rules.join:g} s")
        for site, reason in sorted(failures.items()):
            log.warning("%s did not join: %s", site, reason)
        there = len(self.members.sites)
        if there < self.rules.quorum * len(expected):
            reasons = "; ".join(f"{site}: {reason}" for site, reason in sorted(failures.items()))
            raise FuelsError(f"{there} of {len(expected)} sites joined ({reasons})")
        self.members.sort()

    def _introduce(self, site: str, envelope: Envelope) -> Failure | None:
        try:
            self.members.introduce(site, envelope)
        except FuelsError as error:
            return Failure(site, str(error))
        log.info("%s joins with %d clients", site, len(self.members.of(site)))
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
                "round %d, attempt %d: %d of %d sites answered, %d are needed (%s)",
                round_number, attempt, len(replies), len(asked), needed,
                "; ".join(f"{f.site}: {f.reason}" for f in failures[:5]),
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
        failures = [Failure(s, "not connected") for s in sorted(asked) if s not in connected]
        waiting = {site: ids for site, ids in asked.items() if site in connected}
        self._send("train", number, waiting, download)
        strangers = connected - self.members.sites
        self._send("hello", number, dict.fromkeys(strangers, ()), Download())
        pending = set(waiting)
        while True:
            for sent, envelope, failure in self._arrivals():
                if sent.kind == "train" and sent.number == number:
                    pending.discard(sent.site)
                if failure is not None and sent.number == number:
                    failures.append(failure)
                elif failure is not None:
                    log.info(
                        "%s: nothing comes of round %d: %s", sent.site, sent.number, failure.reason
                    )
                elif envelope is not None:
                    self._take(sent, envelope, number, replies, failures)
            if not pending or self.clock() >= end:
                break
            self.sleep(POLL)
        failures += [
            Failure(site, f"no answer within {self.rules.deadline:g} s") for site in sorted(pending)
        ]
        if not pending and not waiting:
            self.sleep(min(self.rules.deadline, 5.0))  # nobody there: do not spin through attempts
        self._use_late(number, replies, failures)
        return failures

    def _take(
        self,
        sent: _Sent,
        envelope: Envelope,
        number: int,
        replies: dict[str, Reply],
        failures: list[Failure],
    ) -> None:
        """Sort an answer that arrived in time, late, or from a site that joins."""
        if sent.kind == "hello":
            failure = self._introduce(sent.site, envelope)
            failures += [] if failure is None else [failure]
        elif sent.kind == "train" and sent.site in replies:
            log.info("%s: another upload of round %d is not needed", sent.site, sent.number)
        elif sent.kind == "train" and sent.number == number:
            self._use(sent, envelope, number, replies, failures)
        elif sent.kind == "train":
            self.late[sent.site] = (sent, envelope)

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
        reason = self.gate.refusal(envelope, sent.site, "train", number)
        if reason:
            self._refuse(sent.site, reason, failures)
            return
        try:
            upload = read_upload(envelope)
            self._need_one_good_client(upload, sent, number)
        except FuelsError as error:
            self._refuse(sent.site, str(error), failures)
            return
        try:
            report = read_report(envelope)
            if report is not None and not set(report.clients) <= set(sent.asked):
                raise FuelsError("error figures of clients that were not asked")
        except FuelsError as error:
            report = None
            self._refuse(sent.site, str(error), failures)
        self.gate.use(envelope)
        replies[sent.site] = Reply(sent.site, upload, report, sent.asked)

    def _need_one_good_client(self, upload: Upload, sent: _Sent, number: int) -> None:
        facts = self.method.facts
        most = facts.train_periods * facts.period
        reasons, whole = refusals(
            upload, self.method.uploads(number), set(sent.asked), most_samples=most
        )
        if whole:
            raise FuelsError(f"upload of round {number}: {whole}")
        if len(reasons) == len(upload.clients):
            raise FuelsError("; ".join(f"client {c}: {why}" for c, why in reasons.items()))

    def _refuse(self, site: str, reason: str, failures: list[Failure]) -> None:
        self.counters["refused"] += 1
        failures.append(Failure(site, f"refused: {reason}"))

    # -- evaluation and end --------------------------------------------------------------------

    def evaluate(self, round_number: int, download: Download) -> list[Report]:
        if round_number % self.rules.evaluate_every and round_number != self.rounds:
            return []
        reports = []
        for sent, envelope in self._ask_all("evaluate", round_number, download):
            report = None
            try:
                report = read_report(envelope)
            except FuelsError as error:
                log.warning("%s: its evaluation is refused: %s", sent.site, error)
            if report is not None and set(report.clients) <= set(self.members.of(sent.site)):
                reports.append(report)
        return reports

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
            for sent, envelope, failure in self._arrivals():
                if sent.kind != kind or sent.number != number:
                    if envelope is not None and sent.kind == "train":
                        self.late[sent.site] = (sent, envelope)
                    continue
                pending.discard(sent.site)
                reason = failure.reason if failure is not None else ""
                if envelope is not None:
                    reason = self.gate.refusal(envelope, sent.site, kind, number)
                    if not reason:
                        found.append((sent, envelope))
                if reason:
                    log.warning("%s: %s of round %d: %s", sent.site, kind, number, reason)
            if self.clock() >= end:
                break
            self.sleep(POLL)
        return sorted(found, key=lambda pair: pair[0].site)

    # -- letters -------------------------------------------------------------------------------

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

    def _arrivals(self) -> list[tuple[_Sent, Envelope | None, Failure | None]]:
        """Answers that came in, decoded; what cannot be read is a failure of its site."""
        arrived: list[tuple[_Sent, Envelope | None, Failure | None]] = []
        if not self.open:
            return arrived
        for answer in self.post.collect(list(self.open)):
            sent = self.open.pop(answer.ticket, None)
            if sent is None:
                continue
            if answer.content is None:
                arrived.append((sent, None, Failure(sent.site, answer.reason)))
                continue
            self.counters["bytes_up"] += len(answer.content)
            try:
                arrived.append((sent, decode(answer.content, self._limit(sent)), None))
            except FuelsError as error:
                self.counters["refused"] += 1
                arrived.append((sent, None, Failure(sent.site, f"refused: {error}")))
        return arrived

    def _limit(self, sent: _Sent) -> int:
        if sent.kind == "hello":
            return MOST_HELLO
        if sent.kind == "train":
            return size_limit(len(sent.asked), self.method.uploads(sent.number))
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
