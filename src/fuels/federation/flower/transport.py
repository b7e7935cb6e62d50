"""The transport between the round loop and sites on other machines.

A round asks the sites of its clients and closes when all have answered or its deadline is over.
Below the quorum it is asked again: a site that has trained the round already only repeats its
answer. An answer that comes after its round closed is used in the next one if it is fresh enough
and its site has nothing newer; otherwise it is refused as stale. A site that comes, or comes back,
is asked who its clients are, beside the round; new ones train from the next one on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.federation.codec import Envelope
from fuels.federation.flower.declaration import agreed, need_equal
from fuels.federation.flower.letters import read_report, read_upload, read_withheld
from fuels.federation.flower.mail import Arrival, Letter, Mail, failed, reading
from fuels.federation.flower.members import Members
from fuels.federation.flower.parties import Rules, log
from fuels.federation.flower.post import Post, Time
from fuels.federation.guard import OVERHEAD, Gate, refusals, size_limit
from fuels.federation.refusals import Refusals
from fuels.federation.site import Report
from fuels.federation.transport import Failure, Reply
from fuels.messages import Download, Upload
from fuels.methods.base import Method

POLL = 0.5  # seconds between two looks for answers
MOST_HELLO = 8 * 2**20  # bytes of a site's list of clients


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
        self.mail = Mail(post, run, rules, refused, self._limit)
        # By site: the newest answer of an earlier round.
        self.late: dict[str, tuple[Letter, Envelope]] = {}
        self.silent: set[str] = set()  # sites that did not answer the newest question to train

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
            self.mail.send("hello", 0, dict.fromkeys(sorted(new), ()), Download())
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
            failed(site, 0, failures[site])
        there = len(self.members.sites)
        if there < self.rules.quorum * len(expected):
            reasons = "; ".join(f"{site}: {reason}" for site, reason in sorted(failures.items()))
            raise FuelsError(f"{there} of {len(expected)} sites joined ({reasons})")
        self.members.sort()

    def use(self, method: Method) -> Method:
        """The method of the run, in the size that the members' training parts give it.

        A site whose uploads would be of another size than those of most is no member.
        """
        self.method = agreed(method, self.members.periods)
        for site, periods in sorted(self.members.periods.items()):
            try:
                need_equal(self.method, {site: periods})
            except FuelsError as error:
                self.refused.add(site, 0, "introduction", str(error))
                self.members.remove(site)
                self.greeted.discard(site)
        return self.method

    def _greet(self, connected: set[str], number: int) -> None:
        """Ask those who came, or came back and may have changed, who their clients are."""
        self.greeted &= connected
        # An answer may take until the round after: only then is the question taken for lost.
        hellos = [sent for sent in self.mail.open.values() if sent.kind == "hello"]
        asked = {sent.site for sent in hellos if sent.number >= number - 1}
        new = connected - self.greeted - asked
        self.mail.send("hello", number, dict.fromkeys(sorted(new), ()), Download())

    def _introduce(self, sent: Letter, envelope: Envelope) -> Failure | None:
        """Let a site say who its clients are: when it comes, and when it comes back."""
        site = sent.site
        try:
            reason = self.gate.refusal(envelope, site, "hello", sent.number, sent.number)
            if reason:
                raise FuelsError(reason)
            clients, periods = reading(lambda: self.members.check(site, envelope, self.rules))
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
        allowed = self.post.allowed()
        everyone = self.members.by_site(tuple(clients))
        asked = {site: ids for site, ids in everyone.items() if site in allowed}
        replies: dict[str, Reply] = {}
        failures: list[Failure] = []
        needed = max(1, int(np.ceil(self.rules.quorum * len(asked) - 1e-9)))
        for attempt in range(1, self.rules.attempts + 1):
            waiting = {site: asked[site] for site in asked if site not in replies}
            failures = self._round(round_number, waiting, download, replies)
            there = len(replies.keys() & asked.keys())  # others may have sent what was late
            if there >= needed:
                return [replies[site] for site in sorted(replies)], failures
            log.warning(
                "round %d, attempt %d: %d of %d sites answered, %d are needed",
                round_number, attempt, there, len(asked), needed,
            )  # fmt: skip
        raise FuelsError(
            f"round {round_number}: {there} of {len(asked)} sites answered, {needed} are"
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
        failures = [failed(site, number, "not connected") for site in away]
        waiting = {site: ids for site, ids in asked.items() if site in connected}
        self.mail.send("train", number, waiting, download)
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
        failures += [failed(site, number, silent) for site in sorted(pending)]
        self.silent = pending | set(away)
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
        sent: Letter,
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
            reason = self.gate.refusal(envelope, site, "train", number, sent.number)
            if reason:
                raise FuelsError(reason)
            upload = reading(lambda: read_upload(envelope))
            withheld = set(reading(lambda: read_withheld(envelope)))
            self._need_same_arrays(sent.number, number)
            reading(lambda: self._need_one_good_client(upload, sent, most))
        except FuelsError as error:
            failures.append(self.refused.add(site, number, "upload", str(error)))
            return
        failures += [
            failed(site, number, f"it withholds client {client}; its own log says why")
            for client in sent.asked
            if client in withheld
        ]
        report = self._report(envelope, sent, sent.asked)
        if isinstance(report, Failure):
            failures.append(report)
            report = None
        self.gate.use(envelope)
        replies[site] = Reply(site, upload, report, sent.asked, most, sent.number)

    def _need_same_arrays(self, asked: int, number: int) -> None:
        """A late upload joins those of the present round only if it is made of the same arrays."""
        method = self._method
        then, now = (
            ({name: sent.shape for name, sent in method.uploads(n).items()}, method.counts(n))
            for n in (asked, number)
        )
        if then != now:
            raise FuelsError(
                f"late: it is of round {asked}, whose arrays are not those of round {number}"
            )

    def _need_one_good_client(self, upload: Upload, sent: Letter, most: int) -> None:
        declared = self._method.uploads(sent.number)  # as its own round has it
        counted = self._method.counts(sent.number)
        reasons, whole = refusals(
            upload, declared, set(sent.asked), counted=counted, most_samples=most
        )
        if whole:
            raise FuelsError(whole)
        if len(reasons) == len(upload.clients):
            raise FuelsError("; ".join(f"client {c!r}: {why}" for c, why in reasons.items()))

    def _report(
        self, envelope: Envelope, sent: Letter, expected: Sequence[str]
    ) -> Report | Failure | None:
        """The error figures in an answer, None without any, or why they are refused."""
        try:
            report = reading(lambda: read_report(envelope))
            if report is not None and not set(report.clients) <= set(expected):
                raise FuelsError("they speak of clients that were not asked")
        except FuelsError as error:
            return self.refused.add(sent.site, sent.number, "error figures", str(error))
        return report

    # -- evaluation and end --------------------------------------------------------------------

    def evaluate(self, round_number: int, download: Download) -> list[Report]:
        if round_number % self.rules.evaluate_every and round_number != self.rounds:
            return []
        # Whoever did not answer in time has a round's deadline behind it and gets no second one.
        sites = self.members.sites - self.silent
        answers = self._ask("evaluate", round_number, sites, download)
        reports = [self._report(envelope, sent, sent.asked) for sent, envelope in answers]
        return [report for report in reports if isinstance(report, Report)]

    def finish(self, round_number: int, sites: set[str], download: Download) -> set[str]:
        """Let these sites write their models; returns those that did not confirm it."""
        answers = self._ask("finish", round_number, sites, download)
        return sites - {sent.site for sent, _ in answers}

    def _ask(
        self, kind: str, number: int, sites: set[str], download: Download
    ) -> list[tuple[Letter, Envelope]]:
        """The answers until all have come or the deadline is over.

        Nobody waits for a site that was silent before or is gone: it is asked, and its answer is
        taken if it comes while others are waited for.
        """
        asked = {site: self.members.of(site) for site in sorted(sites & self.post.connected())}
        self.mail.send(kind, number, asked, download)
        pending, found = set(asked), []
        end = self.clock() + self.rules.deadline
        while True:
            for arrival in self._arrivals(kind, number):
                sent, envelope = arrival.sent, arrival.envelope
                if sent.kind == kind:
                    pending.discard(sent.site)
                if envelope is None:
                    continue
                reason = self.gate.refusal(envelope, sent.site, kind, number, sent.number)
                if reason:
                    self.refused.add(sent.site, number, kind, reason)
                else:
                    found.append((sent, envelope))
            waited_for = (pending - self.silent) & self.post.connected()
            if not waited_for or self.clock() >= end:
                break
            self.sleep(POLL)
        for site in sorted(pending):
            failed(site, number, f"no answer to {kind}")
        return sorted(found, key=lambda pair: pair[0].site)

    # -- letters -------------------------------------------------------------------------------

    @property
    def _method(self) -> Method:
        assert self.method is not None, "a round before the method is known"
        return self.method

    def _arrivals(self, kind: str, number: int) -> list[Arrival]:
        """What came in for the letters of this kind and round; the rest is put where it belongs.

        A site that says who it is becomes a member, an upload of an earlier round is kept for the
        end of this one. A failed introduction is given out in the round of its letter.
        """
        arrived = []
        for arrival in self.mail.collect():
            sent = arrival.sent
            now = (sent.kind, sent.number) == (kind, number)
            if sent.kind == "hello" and arrival.envelope is not None:
                failure = self._introduce(sent, arrival.envelope)
                arrival = Arrival(sent, None, failure)
            if now or (sent.kind == "hello" and sent.number == number):
                arrived.append(arrival)
            elif sent.kind == "train" and arrival.envelope is not None:
                self.late[sent.site] = (sent, arrival.envelope)
                self.silent.discard(sent.site)
        return arrived

    def _limit(self, sent: Letter) -> int:
        if sent.kind == "hello":
            return MOST_HELLO
        if sent.kind == "train":
            return size_limit(len(sent.asked), self._method.uploads(sent.number))
        return OVERHEAD + size_limit(len(self.members.of(sent.site)), {})

    # -- state ---------------------------------------------------------------------------------

    def touched(self) -> NDArray[np.int64] | None:
        return None

    def state(self) -> dict[str, NDArray[Any]]:
        facts = {
            "members": self.members.state(),
            "used": self.gate.used,
            "counters": self.mail.counters,
        }
        return {"facts": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        facts = json.loads(state["facts"].tobytes())
        self.members.load(facts["members"])
        self.gate.used = facts["used"]
        self.count(facts["counters"])

    def count(self, before: Mapping[str, int]) -> None:
        """Go on counting where an earlier process stopped."""
        self.mail.counters = {name: before[name] for name in self.mail.counters}
