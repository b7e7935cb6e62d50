"""The transport between the round loop and sites on other machines.

A round asks the sites of its clients to train and closes when all have replied or at its deadline.
Below the quorum it waits for returning sites until the deadline, and is then attempted again: a
site that has already trained the round only repeats its reply. A reply that arrives after its round
has closed is used in the next round if it is recent enough and the site has sent nothing newer;
otherwise it is refused as stale. A site that connects or reconnects is asked for its clients while
the round goes on; new clients train from the next round on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import ceil, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Integers
from fuels.errors import FuelsError
from fuels.federation.codec import Envelope
from fuels.federation.flower.exclusion import Exclusion
from fuels.federation.flower.folders import Rules, log
from fuels.federation.flower.inbox import Inbox, Network, Request, Requests, Time, failed, reading
from fuels.federation.flower.members import Members
from fuels.federation.flower.messages import agreed, need_equal
from fuels.federation.guard import OVERHEAD, EnvelopeGuard, size_limit
from fuels.federation.refusals import Refusals
from fuels.federation.site import Report
from fuels.federation.transport import Chosen, Failure, Reply, TooFewError
from fuels.methods.base import Method
from fuels.methods.messages import Download

POLL = 0.1  # seconds between two checks for replies
EVALUATION = 5.0  # seconds that sites have at least to evaluate a new model
PAUSE = 60.0  # seconds before a site that failed is asked for the same round again
MOST_HELLO = 8 * 2**20  # bytes of a site's list of clients


class FlowerTransport:
    """Sites on other machines; see the module's docstring."""

    method: Method | None = None  # known once the sites have stated their training parts
    needed = 0  # sites that must reply to the current round

    def __init__(
        self, network: Network, run: str, rules: Rules, rounds: int, time: Time, refused: Refusals
    ) -> None:
        self.network, self.run, self.rules, self.rounds = network, run, rules, rounds
        self.clock, self.sleep = time.clock, time.sleep
        self.guard = EnvelopeGuard(run, rules.staleness)
        self.members, self.refused = Members(), refused
        self.exclusion = Exclusion(self.members, refused)
        self.inbox = Inbox(self.guard, self.members, refused)
        self.greeted: set[str] = set()  # connected sites that have stated their clients
        self.requests = Requests(network, run, rules, refused, self._limit)
        # By site: the newest reply of an earlier round.
        self.late: dict[str, tuple[Request, Envelope]] = {}
        self.silent: set[str] = set()  # sites that left a request to train unanswered until now
        # The current round: its attempts so far, its deadline, and its usable replies.
        self.round, self.attempt, self.end = 0, 0, 0.0
        self.replies: dict[str, Reply] = {}
        self.lost: set[str] = set()  # sites that were asked in it without a usable reply
        self.failures: list[Failure] = []  # of all its attempts

    @property
    def clients(self) -> tuple[str, ...]:
        return self.members.clients

    def allowed(self) -> set[str]:
        """The sites that may take part at present, connected or not."""
        return self.network.allowed() - self.exclusion.reasons.keys()

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
        """Before the first round of a resumed run: wait in the same way for its members.

        After a power cut, sites reconnect at different times, and a draw among a few of them would
        differ from that of an uninterrupted run.
        """
        self._gather(self.members.sites & self.allowed(), number)

    def _gather(self, expected: set[str], number: int) -> dict[str, str]:
        """Ask connecting sites for their clients; returns why expected ones have not replied."""
        end = self.clock() + self.rules.join
        asked: set[str] = set()
        failures: dict[str, str] = {}
        while True:
            new = self.network.connected() - asked
            self.requests.send("hello", number, dict.fromkeys(sorted(new), ()), Download())
            asked |= new
            for _, reply in self.collect("hello", number):
                if isinstance(reply, Failure):
                    failures[reply.site] = reply.reason
            missing = expected - self.greeted - set(failures)
            if not missing or self.clock() >= end:
                break
            self.sleep(POLL)
        late = f"not connected within {self.rules.join:g} s"
        return failures | {site: failed(site, number, late).reason for site in sorted(missing)}

    def use(self, method: Method) -> Method:
        """The method of the run, sized for the members' training parts.

        A site whose uploads would differ in size from those of the majority is removed.
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
        """Ask sites that connected, or reconnected and may have changed, for their clients.

        This includes silent sites without another open request: if they reply, they can be drawn
        again.
        """
        unknown = came - self.greeted | (came & self.silent - at_work)
        # A reply may take until the following round; only then is the request considered lost.
        hellos = [sent for sent in self.requests.open.values() if sent.kind == "hello"]
        new = unknown - {sent.site for sent in hellos if sent.number >= number - 1}
        self.requests.send("hello", number, dict.fromkeys(sorted(new), ()), Download())

    def _introduce(self, sent: Request, envelope: Envelope) -> Failure | None:
        """Handle a site's list of clients."""
        site = sent.site
        try:
            reason = self.guard.refusal(envelope, site, "hello", sent.number, sent.number)
            if reason:
                raise FuelsError(reason)
            clients, periods = reading(lambda: self.members.check(site, envelope, self.rules))
            if self.method is not None:
                need_equal(self.method, {site: periods})
        except FuelsError as error:
            return self.refused.add(site, sent.number, "introduction", str(error))
        if site not in self.members.sites:
            log.info("%s joins with %d clients", site, len(clients))
        self.refused.note([{"event": "joined", "site": site, "clients": len(clients)}])
        self.members.introduce(site, clients, periods)
        self.greeted.add(site)
        self.silent.discard(site)
        return None

    # -- rounds --------------------------------------------------------------------------------

    def reachable(self) -> set[str]:
        """Clients that can currently be asked: of connected sites that did not just fail.

        If there is no such site, the clients of all sites that may take part: some may reconnect.
        """
        allowed = self.allowed() & self.members.sites
        there = allowed & self.network.connected()
        sites = there - self.silent - self.lost or there or allowed
        return {client for site in sites for client in self.members.of(site)}

    def train(
        self, round_number: int, clients: Sequence[str], download: Download
    ) -> tuple[list[Reply], list[Failure]]:
        """One attempt at a round; TooFewError if another may follow, perhaps with other clients."""
        if round_number != self.round:
            self.round, self.attempt, self.replies, self.lost = round_number, 0, {}, set()
            self.failures = []
        self.attempt += 1
        self.failures += self.exclusion.look(round_number)
        allowed = self.allowed()
        everyone = self.members.by_site(tuple(clients))
        asked = {site: ids for site, ids in everyone.items() if site in allowed}
        # Sites asked only for extra clients do not count towards the quorum.
        extra = clients.extra if isinstance(clients, Chosen) else frozenset()
        counted = {site for site, ids in asked.items() if not extra.issuperset(ids)}
        self.needed = needed = max(1, ceil(self.rules.quorum * len(counted) - 1e-9))
        self.failures += self._absent(allowed & self.members.sites - asked.keys())
        self.failures += self._attempt(asked, download, counted, needed)
        there = len(self.replies.keys() & counted)  # late uploads of other sites do not count
        if there >= needed:
            self.lost = set()
            # Without repeats: an attempt may fail for the same reason as the previous one.
            failures = list(dict.fromkeys(self.failures))
            return [self.replies[site] for site in sorted(self.replies)], failures
        self.lost |= asked.keys() - self.replies.keys()
        reason = f"round {self.round}: {there} of {len(counted)} sites replied, {needed} are needed"
        if self.attempt >= self.rules.attempts:
            raise FuelsError(
                f"{reason}; the run stops after {self.attempt} attempts and can be resumed"
            )
        log.warning("%s; attempt %d failed", reason, self.attempt)
        raise TooFewError(reason)

    def _absent(self, sites: set[str]) -> list[Failure]:
        """Failures of the sites that are not asked because they are away or silent."""
        away, silent = sites - self.network.connected(), sites & self.silent
        reasons = dict.fromkeys(silent, "no reply since it was last asked")
        reasons |= dict.fromkeys(away, "not connected")
        return [failed(site, self.round, reasons[site]) for site in sorted(reasons)]

    def _attempt(
        self,
        asked: Mapping[str, tuple[str, ...]],
        download: Download,
        counted: set[str],
        needed: int,
    ) -> list[Failure]:
        """Ask sites to train, and wait until all have replied or the deadline has passed.

        Below the quorum, sites that reconnect are asked, and failed ones again after a pause.
        """
        number, replies = self.round, self.replies
        self.end = self.clock() + self.rules.deadline
        failures: list[Failure] = []
        pending: set[str] = set()
        replied: dict[str, float] = {}  # site: when it last replied, or reported a failure
        met: set[str] = set()  # sites that were connected at some time
        while True:
            waiting = asked.keys() - replies.keys() - pending
            if len(replies.keys() & counted) < needed and (waiting or not pending):
                connected = self.network.connected()
                if waiting - connected and not met:
                    log.info("round %d: not connected: %s", number, sorted(waiting - connected))
                due = {site for site in waiting if self.clock() >= replied.get(site, -inf) + PAUSE}
                ready = {site: asked[site] for site in sorted(due & connected)}
                self.requests.send("train", number, ready, download)
                pending |= ready.keys()
                self.greeted &= connected
                self._greet(connected - met, number, pending)
                met |= connected
            for sent, reply in self.collect("train", number):
                if sent.kind == "train":
                    pending.discard(sent.site)
                    replied[sent.site] = self.clock()
                if isinstance(reply, Failure):
                    failures.append(reply)
                elif reply is not None:
                    failures += self._use(sent, reply)
            enough = len(replies.keys() & counted) >= needed
            if (enough and not pending) or self.clock() >= self.end:
                break
            self.sleep(POLL)
        away = asked.keys() - replies.keys() - pending - replied.keys()
        silent = f"no reply within {self.rules.deadline:g} s"
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
                log.info("%s: using its late upload of round %d", site, sent.number)
                failures += self._use(sent, envelope)
        self.late.clear()
        return failures

    def _use(self, sent: Request, envelope: Envelope) -> list[Failure]:
        """Use an upload in the current round; returns the parts that are not used, as failures."""
        if sent.site in self.replies:
            log.info("%s: it has already sent an upload of round %d", sent.site, self.round)
            return []
        found, failures = self.inbox.upload(self._method, sent, envelope, self.round)
        if found is not None:
            self.replies[sent.site] = found
        return failures

    # -- evaluation and end --------------------------------------------------------------------

    def evaluate(self, round_number: int, download: Download) -> Sequence[Report | Failure]:
        """The sites' errors with the new model, within the deadline of the round.

        Training and evaluation share the deadline; if training took all of it, evaluation gets
        another tenth.
        """
        if round_number % self.rules.evaluate_every and round_number != self.rounds:
            return []
        # A site that missed the deadline of the round does not get a second one.
        sites = (self.members.sites & self.allowed()) - self.silent
        end = max(self.end, self.clock() + max(EVALUATION, self.rules.deadline / 10))
        answers, failures = self._ask("evaluate", round_number, sites, download, end)
        reports = [self.inbox.report(sent, envelope) for sent, envelope in answers]
        return [*(report for report in reports if report is not None), *failures]

    def finish(
        self, round_number: int, sites: set[str], download: Download, best_round: int = 0
    ) -> set[str]:
        """Ask these sites to save their models; returns those that did not confirm it."""
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
        """Ask sites and collect their replies until the deadline `end`; also returns the failures.

        A site that was silent before or has disconnected is asked but not waited for.
        """
        asked = {site: self.members.of(site) for site in sorted(sites & self.network.connected())}
        self.requests.send(kind, number, asked, download, best_round)
        pending, found, failures = set(asked), [], []
        while True:
            for sent, reply in self.collect(kind, number):
                if sent.kind == kind:
                    pending.discard(sent.site)
                if isinstance(reply, Failure):
                    failures.append(reply)
                if not isinstance(reply, Envelope):
                    continue
                reason = self.guard.refusal(reply, sent.site, kind, number, sent.number)
                if reason:
                    failures.append(self.refused.add(sent.site, number, kind, reason))
                else:
                    found.append((sent, reply))
            waited_for = (pending - self.silent) & self.network.connected()
            if not waited_for or self.clock() >= end:
                break
            self.sleep(POLL)
        failures += [failed(site, number, f"no reply to {kind}") for site in sorted(pending)]
        return sorted(found, key=lambda pair: pair[0].site), failures

    # -- replies -------------------------------------------------------------------------------

    @property
    def _method(self) -> Method:
        assert self.method is not None, "a round before the method is known"
        return self.method

    def collect(self, kind: str, number: int) -> list[tuple[Request, Envelope | Failure | None]]:
        """The replies to requests of this kind and round, and this round's failed introductions.

        A site that lists its clients becomes a member; late uploads are kept until the round ends.
        """
        found: list[tuple[Request, Envelope | Failure | None]] = []
        for sent, reply in self.requests.collect():
            use: Envelope | Failure | None = reply
            if sent.kind == "hello" and isinstance(reply, Envelope):
                use = self._introduce(sent, reply)
            if sent.number == number and sent.kind in (kind, "hello"):
                found.append((sent, use))
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

    def changed_rows(self) -> Integers | None:
        return None

    def state(self) -> dict[str, NDArray[Any]]:
        facts = {
            "members": self.members.state(),
            "used": self.guard.used,
            "counters": self.requests.counters,
            "excluded": self.exclusion.reasons,
        }
        return {"facts": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        facts = json.loads(state["facts"].tobytes())
        self.members.load(facts["members"])
        self.guard.used = facts["used"]
        self.exclusion.load(facts.get("excluded", {}))
        self.count(facts["counters"])

    def count(self, before: Mapping[str, int]) -> None:
        """Continue counting where an earlier process stopped."""
        self.requests.counters = {name: before[name] for name in self.requests.counters}
