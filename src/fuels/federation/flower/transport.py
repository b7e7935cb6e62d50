"""The transport between the round loop and sites on other machines.

A round asks the sites of its clients and closes when all have answered or its deadline is over.
Below the quorum it waits until then for whoever comes back, and is asked again: a site that has
trained the round already only repeats its answer. An answer that comes after its round closed is
used in the next one if it is fresh enough and its site has nothing newer; otherwise it is refused
as stale. A site that comes, or comes back, is asked who its clients are, beside the round; new ones
train from the next one on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import ceil, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.federation.codec import Envelope
from fuels.federation.flower.folders import Rules, log
from fuels.federation.flower.inbox import Inbox, Network, Request, Requests, Time, failed, reading
from fuels.federation.flower.members import Members
from fuels.federation.flower.messages import agreed, need_equal
from fuels.federation.guard import OVERHEAD, Gate, size_limit
from fuels.federation.refusals import Refusals
from fuels.federation.site import Report
from fuels.federation.transport import Chosen, Failure, Reply, TooFewError
from fuels.methods.base import Method
from fuels.methods.messages import Download

POLL = 0.5  # seconds between two looks for answers
JUDGING = 5.0  # seconds that sites have at least to judge a new model
PAUSE = 60.0  # seconds before a site that failed is asked for the same round again
MOST_HELLO = 8 * 2**20  # bytes of a site's list of clients


class FlowerTransport:
    """Sites on other machines; see the module's docstring."""

    method: Method | None = None  # known once the sites said how long their training parts are

    def __init__(
        self, network: Network, run: str, rules: Rules, rounds: int, time: Time, refused: Refusals
    ) -> None:
        self.network, self.run, self.rules, self.rounds = network, run, rules, rounds
        self.clock, self.sleep = time.clock, time.sleep
        self.gate = Gate(run, rules.staleness)
        self.members, self.refused = Members(), refused
        self.inbox = Inbox(self.gate, self.members, refused)
        self.greeted: set[str] = set()  # sites that are there and said who they are
        self.requests = Requests(network, run, rules, refused, self._limit)
        # By site: the newest answer of an earlier round.
        self.late: dict[str, tuple[Request, Envelope]] = {}
        self.silent: set[str] = set()  # sites that left a question to train open, no sign since
        # The round at work: how often it was asked, what came of it, until when it lasts.
        self.round, self.attempt, self.end = 0, 0, 0.0
        self.replies: dict[str, Reply] = {}
        self.lost: set[str] = set()  # sites that were asked in it and gave nothing to use
        self.failures: list[Failure] = []  # of all its attempts

    @property
    def clients(self) -> tuple[str, ...]:
        return self.members.clients

    # -- joining -------------------------------------------------------------------------------

    def join(self, expected: set[str]) -> None:
        """Before the first round: wait for the expected sites, at most `rules.join` seconds."""
        failures = self._gather(expected, 0)
        there = len(self.members.sites)
        if there < self.rules.quorum * len(expected):
            reasons = "; ".join(f"{site}: {reason}" for site, reason in sorted(failures.items()))
            raise FuelsError(f"{there} of {len(expected)} sites joined ({reasons})")
        self.members.sort()

    def rejoin(self, number: int) -> None:
        """Before the first round of a run that goes on: wait likewise for those who take part.

        After a power cut sites come back in their own time. Whoever is missing is waited for in the
        round as well, but a draw among few would not be that of an uninterrupted run.
        """
        self._gather(self.members.sites & self.network.allowed(), number)

    def _gather(self, expected: set[str], number: int) -> dict[str, str]:
        """Ask who comes for its clients until all expected have said; why some have not."""
        end = self.clock() + self.rules.join
        asked: set[str] = set()
        failures: dict[str, str] = {}
        while True:
            new = self.network.connected() - asked
            self.requests.send("hello", number, dict.fromkeys(sorted(new), ()), Download())
            asked |= new
            for _, reply in self._collect("hello", number):
                if isinstance(reply, Failure):
                    failures[reply.site] = reply.reason
            missing = expected - self.greeted - set(failures)
            if not missing or self.clock() >= end:
                break
            self.sleep(POLL)
        for site in sorted(missing):
            failures[site] = f"not connected within {self.rules.join:g} s"
            failed(site, number, failures[site])
        return failures

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

    def _greet(self, came: set[str], number: int, at_work: set[str]) -> None:
        """Ask those who came, or came back and may have changed, who their clients are.

        Also those who were silent and have nothing else to answer: they can be drawn again if they
        do.
        """
        unknown = came - self.greeted | (came & self.silent - at_work)
        # An answer may take until the round after: only then is the question taken for lost.
        hellos = [sent for sent in self.requests.open.values() if sent.kind == "hello"]
        new = unknown - {sent.site for sent in hellos if sent.number >= number - 1}
        self.requests.send("hello", number, dict.fromkeys(sorted(new), ()), Download())

    def _introduce(self, sent: Request, envelope: Envelope) -> Failure | None:
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
        self.silent.discard(site)
        return None

    # -- rounds --------------------------------------------------------------------------------

    def reachable(self) -> set[str]:
        """Clients that can be asked at present: of sites that are there and did not just fail.

        Where there is no such site, those that may take part: some may come back.
        """
        allowed = self.network.allowed() & self.members.sites
        there = allowed & self.network.connected()
        sites = there - self.silent - self.lost or there or allowed
        return {client for site in sites for client in self.members.of(site)}

    def train(
        self, round_number: int, clients: Sequence[str], download: Download
    ) -> tuple[list[Reply], list[Failure]]:
        """One attempt at a round; TooFewError if another may be made, of the same or others."""
        if round_number != self.round:
            self.round, self.attempt, self.replies, self.lost = round_number, 0, {}, set()
            self.failures = []
        self.attempt += 1
        allowed = self.network.allowed()
        everyone = self.members.by_site(tuple(clients))
        asked = {site: ids for site, ids in everyone.items() if site in allowed}
        # Who is asked besides those drawn may stay silent without an effect on the round.
        extra = clients.extra if isinstance(clients, Chosen) else frozenset()
        counted = {site for site, ids in asked.items() if not extra.issuperset(ids)}
        needed = max(1, ceil(self.rules.quorum * len(counted) - 1e-9))
        self.failures += self._absent(allowed & self.members.sites - asked.keys())
        self.failures += self._attempt(asked, download, counted, needed)
        there = len(self.replies.keys() & counted)  # others may have sent what was late
        if there >= needed:
            self.lost = set()
            failures = list(
                dict.fromkeys(self.failures)
            )  # an attempt repeats what the last one saw
            return [self.replies[site] for site in sorted(self.replies)], failures
        self.lost |= asked.keys() - self.replies.keys()
        told = f"round {self.round}: {there} of {len(counted)} sites answered, {needed} are needed"
        if self.attempt >= self.rules.attempts:
            raise FuelsError(
                f"{told}; after {self.attempt} attempts the run stops here and can be resumed"
            )
        log.warning("%s; attempt %d is over", told, self.attempt)
        raise TooFewError(told)

    def _absent(self, sites: set[str]) -> list[Failure]:
        """Of sites that are not asked: those that could not be, named like those that fail."""
        away, silent = sites - self.network.connected(), sites & self.silent
        reasons = dict.fromkeys(silent, "silent since it was last asked") | dict.fromkeys(
            away, "not connected"
        )
        return [failed(site, self.round, reasons[site]) for site in sorted(reasons)]

    def _attempt(
        self,
        asked: Mapping[str, tuple[str, ...]],
        download: Download,
        counted: set[str],
        needed: int,
    ) -> list[Failure]:
        """Ask, and wait until all have answered or the deadline is over.

        Below the quorum it is the deadline in any case: until then whoever comes back is asked, and
        whoever failed is asked again after a pause.
        """
        number, replies = self.round, self.replies
        self.end = self.clock() + self.rules.deadline
        failures: list[Failure] = []
        pending: set[str] = set()
        heard: dict[str, float] = {}  # site: when it last answered, or failed to
        met: set[str] = set()  # sites that were there at some moment
        while True:
            waiting = asked.keys() - replies.keys() - pending
            if len(replies.keys() & counted) < needed and (waiting or not pending):
                connected = self.network.connected()
                if waiting - connected and not met:
                    log.info("round %d: not there: %s", number, sorted(waiting - connected))
                due = {site for site in waiting if self.clock() >= heard.get(site, -inf) + PAUSE}
                ready = {site: asked[site] for site in sorted(due & connected)}
                self.requests.send("train", number, ready, download)
                pending |= ready.keys()
                self.greeted &= connected
                self._greet(connected - met, number, pending)
                met |= connected
            for sent, reply in self._collect("train", number):
                if sent.kind == "train":
                    pending.discard(sent.site)
                    heard[sent.site] = self.clock()
                if isinstance(reply, Failure):
                    failures.append(reply)
                elif reply is not None:
                    failures += self._use(sent, reply)
            enough = len(replies.keys() & counted) >= needed
            if (enough and not pending) or self.clock() >= self.end:
                break
            self.sleep(POLL)
        away = asked.keys() - replies.keys() - pending - heard.keys()
        silent = f"no answer within {self.rules.deadline:g} s"
        failures += [failed(site, number, "not connected") for site in sorted(away)]
        failures += [failed(site, number, silent) for site in sorted(pending)]
        self.silent = (self.silent - asked.keys()) | pending | away
        return failures + self._use_late()

    def _use_late(self) -> list[Failure]:
        failures: list[Failure] = []
        for site, (sent, envelope) in sorted(self.late.items()):
            if site in self.replies:
                log.info("%s: its late upload of round %d is not needed", site, sent.number)
            else:
                log.info("%s: its late upload of round %d stands in", site, sent.number)
                failures += self._use(sent, envelope)
        self.late.clear()
        return failures

    def _use(self, sent: Request, envelope: Envelope) -> list[Failure]:
        """Let an upload into the round at work; returns what of it is not used."""
        if sent.site in self.replies:
            log.info("%s: one upload of round %d is enough", sent.site, self.round)
            return []
        found, failures = self.inbox.upload(self._method, sent, envelope, self.round)
        if found is not None:
            self.replies[sent.site] = found
        return failures

    # -- evaluation and end --------------------------------------------------------------------

    def evaluate(self, round_number: int, download: Download) -> Sequence[Report | Failure]:
        """What the sites say of the new model, within the deadline of the round.

        It is theirs for training and judging; where training took all of it, judging has a tenth
        more.
        """
        if round_number % self.rules.evaluate_every and round_number != self.rounds:
            return []
        # Whoever did not answer in time has a round's deadline behind it and gets no second one.
        sites = self.members.sites - self.silent
        end = max(self.end, self.clock() + max(JUDGING, self.rules.deadline / 10))
        answers, failures = self._ask("evaluate", round_number, sites, download, end)
        reports = [self.inbox.report(sent, envelope) for sent, envelope in answers]
        return [*(report for report in reports if report is not None), *failures]

    def finish(
        self, round_number: int, sites: set[str], download: Download, best_round: int = 0
    ) -> set[str]:
        """Let these sites write their models; returns those that did not confirm it.

        `best_round`: of the model in `download`, where it is not the last one.
        """
        end = self.clock() + self.rules.deadline
        answers, _ = self._ask("finish", round_number, sites, download, end, best_round)
        return sites - {sent.site for sent, _ in answers}

    def _ask(
        self,
        kind: str,
        number: int,
        sites: set[str],
        download: Download,
        end: float,
        best_round: int = 0,
    ) -> tuple[list[tuple[Request, Envelope]], list[Failure]]:
        """The answers until all have come or time is over, and who gave none that can be used.

        Nobody waits for a site that was silent before or is gone: it is asked, and its answer is
        taken if it comes while others are waited for.
        """
        asked = {site: self.members.of(site) for site in sorted(sites & self.network.connected())}
        self.requests.send(kind, number, asked, download, best_round)
        pending, found, failures = set(asked), [], []
        while True:
            for sent, reply in self._collect(kind, number):
                if sent.kind == kind:
                    pending.discard(sent.site)
                if isinstance(reply, Failure):
                    failures.append(reply)
                if not isinstance(reply, Envelope):
                    continue
                reason = self.gate.refusal(reply, sent.site, kind, number, sent.number)
                if reason:
                    failures.append(self.refused.add(sent.site, number, kind, reason))
                else:
                    found.append((sent, reply))
            waited_for = (pending - self.silent) & self.network.connected()
            if not waited_for or self.clock() >= end:
                break
            self.sleep(POLL)
        failures += [failed(site, number, f"no answer to {kind}") for site in sorted(pending)]
        return sorted(found, key=lambda pair: pair[0].site), failures

    # -- letters -------------------------------------------------------------------------------

    @property
    def _method(self) -> Method:
        assert self.method is not None, "a round before the method is known"
        return self.method

    def _collect(self, kind: str, number: int) -> list[tuple[Request, Envelope | Failure | None]]:
        """The replies to requests of this kind and round; others are handled here.

        A site that lists its clients becomes a member, and an upload of an earlier round is kept
        until the end of this one. A failed introduction is returned in the round of its request.
        """
        found: list[tuple[Request, Envelope | Failure | None]] = []
        for sent, reply in self.requests.collect():
            if sent.kind == "hello" and isinstance(reply, Envelope):
                found_here: Envelope | Failure | None = self._introduce(sent, reply)
            else:
                found_here = reply
            if sent.number == number and sent.kind in (kind, "hello"):
                found.append((sent, found_here))
            elif sent.kind == "train" and isinstance(reply, Envelope):
                self.silent.discard(sent.site)
                kept = self.late.get(sent.site)
                if kept is None or kept[0].number < sent.number:
                    self.late[sent.site] = (sent, reply)
        return found

    def _limit(self, sent: Request) -> int:
        if sent.kind == "hello":
            return MOST_HELLO
        if sent.kind == "train":
            return size_limit(len(sent.asked), self._method.uploads(sent.number))
        return OVERHEAD + size_limit(len(self.members.of(sent.site)), {})

    # -- state ---------------------------------------------------------------------------------

    def changed_rows(self) -> NDArray[np.int64] | None:
        return None

    def state(self) -> dict[str, NDArray[Any]]:
        facts = {
            "members": self.members.state(),
            "used": self.gate.used,
            "counters": self.requests.counters,
        }
        return {"facts": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        facts = json.loads(state["facts"].tobytes())
        self.members.load(facts["members"])
        self.gate.used = facts["used"]
        self.count(facts["counters"])

    def count(self, before: Mapping[str, int]) -> None:
        """Go on counting where an earlier process stopped."""
        self.requests.counters = {name: before[name] for name in self.requests.counters}
