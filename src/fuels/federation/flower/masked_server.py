"""The server's side of masked uploads: one total for each round, from one set of sites.

For each model the server chooses a set of sites and their clients, asks all of them whether they
would answer, writes the set down, and asks only this set to train: again and again, in every
attempt at the round, after a restart and when the run is resumed. A site answers for one set from
one model, because a second set would reveal the difference. So without one of its sites a round
waits, and after the last attempt the run stops. The methods and the round loop do not notice:
instead of each client's upload they get the mean, once for every client.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.data.files import writing
from fuels.errors import FuelsError
from fuels.federation.audit import Audit
from fuels.federation.codec import Envelope, text_list
from fuels.federation.flower.folders import ServerFolder, log
from fuels.federation.flower.inbox import Network, Request, Time, failed
from fuels.federation.flower.masked_site import CHECK, MASKED
from fuels.federation.flower.sum_keys import read_server_roster
from fuels.federation.flower.transport import PAUSE, POLL, FlowerTransport
from fuels.federation.guard import OVERHEAD, PER_CLIENT
from fuels.federation.refusals import Refusals
from fuels.federation.transport import Failure, Reply, TooFewError
from fuels.methods.messages import Arrays, Download, Upload
from fuels.runs.settings import ResolvedSettings
from fuels.sharing.masked_uploads import NAME, Mean, Terms, digest_of, mean_of, shape_of
from fuels.sharing.masks import LEAST_SITES, SumId, total
from fuels.sharing.roster import Roster, parse

FILE = "masked.json"  # in the server's run folder: what was asked last
Asked = dict[str, tuple[str, ...]]  # site: the clients it is asked to train


@dataclass(frozen=True)
class Plan:
    """What sites are asked for from a model. Those that have answered answer nothing else."""

    model: str  # its digest
    asked: Asked
    terms: Terms
    roster: str  # the founder's file: a new one is for the next set

    @property
    def sites(self) -> set[str]:
        return set(self.asked)

    @property
    def clients(self) -> dict[str, int]:
        """How many clients each site is asked to train."""
        return {site: len(ids) for site, ids in self.asked.items()}

    def save(self, path: Path, number: int) -> None:
        facts = {"round": number, **asdict(self)}
        with writing(path) as temporary:
            temporary.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path, model: str) -> Plan | None:
        """The plan for this model; None if it was not made yet."""
        if not path.exists():
            return None
        try:
            facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            asked = {str(site): tuple(ids) for site, ids in facts["asked"].items()}
            found = cls(facts["model"], asked, Terms(**facts["terms"]), facts["roster"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FuelsError(
                f"{path}: cannot be read; restore it from a backup, or start a new run with another"
                " seed: sites may have answered this round with the set that it names"
            ) from None
        return found if found.model == model else None


class MaskedTransport(FlowerTransport):
    """Sites that send masked sums over their clients instead of uploads."""

    def __init__(
        self,
        network: Network,
        run: str,
        folder: ServerFolder,
        settings: ResolvedSettings,
        time: Time,
        refused: Refusals,
        book: Audit,
    ) -> None:
        super().__init__(network, run, folder.config.rules, settings.training.rounds, time, refused)
        self.folder, self.settings, self.book = folder, settings, book
        self.path = folder.runs / run / FILE
        self.length = 0.0  # the mean length of the updates of the last round with a result
        self.out: dict[str, str] = {}  # site: why it refuses; until it connects again
        self.agreed: Plan | None = None  # that all its sites would answer

    def train(
        self, round_number: int, clients: Sequence[str], download: Download
    ) -> tuple[list[Reply], list[Failure]]:
        """The replies to a round, all with the same mean."""
        if round_number != self.round:
            self.round, self.attempt, self.failures = round_number, 0, []
        self.attempt += 1
        self.replies = {}
        self.late.clear()
        self.failures += self.exclusion.look(round_number)
        plan = Plan.load(self.path, digest_of(download.shared))
        if plan is None:
            plan = self._choose(self.members.by_site(tuple(clients)), download)
            plan.save(self.path, round_number)
        self.needed = len(plan.sites)
        found, mean = self._total(plan, download)
        self.length = mean.length
        self.book.add("sum", run=self.run, name=NAME, step=self.round, sites=sorted(plan.sites))
        for site, envelope in sorted(found.items()):
            sent = Request(site, "train", self.round, plan.asked[site])
            self._use_mean(sent, envelope, mean.parts)
        return list(self.replies.values()), list(dict.fromkeys(self.failures))

    # -- the set -------------------------------------------------------------------------------

    def _roster(self) -> tuple[bytes, Roster]:
        found = read_server_roster(self.folder)
        if found is None:
            raise FuelsError(
                "masked uploads need a roster: the server's folder has no roster.json, which the"
                " founder signs with fuels federation roster"
            )
        return found

    def _choose(self, everyone: Asked, download: Download) -> Plan:
        """The sites that would answer, as soon as they are enough; waits until the deadline."""
        content, roster = self._roster()
        clip = self.settings.defence.clip
        most = self.members.train_periods * self._method.facts.period
        model, terms = digest_of(download.shared), Terms(most, clip, clip * self.length)
        end, met = self.clock() + self.rules.deadline, set[str]()
        failing: set[str] = set()  # sites that did not say whether they would answer
        while True:
            there = self.network.connected()
            self.greeted &= there
            self._greet(there - met, self.round, set())
            met |= there
            for _, reply in self.collect("hello", self.round):
                self.failures += [reply] if isinstance(reply, Failure) else []
            never = self._never(roster)
            away = dict.fromkeys(self.silent | failing, "no reply since it was last asked")
            away |= dict.fromkeys(self.members.sites - there, "not connected")
            needed = ceil(self.rules.quorum * len(everyone.keys() - never.keys()) - 1e-9)
            out = {**away, **never}
            asked = {site: ids for site, ids in sorted(everyone.items()) if site not in out}
            reason = self._too_few(asked, roster, out, needed)
            if not reason:
                plan = Plan(model, asked, terms, content.decode("utf-8"))
                missing = self._missing(plan, download)
                if not missing:
                    self.failures += [failed(s, self.round, out[s]) for s in sorted(out)]
                    return plan
                failing |= missing
            elif self.clock() >= end:
                raise self._failed(reason)
            else:
                self.sleep(POLL)

    def _missing(self, plan: Plan, download: Download) -> set[str]:
        """Sites that do not say that they would answer: once some have, there is no other set.

        Sites that agreed before need not be asked about the same set, or one with more clients.
        """
        before = self.agreed
        if (
            before is not None
            and (before.sites, before.roster) == (plan.sites, plan.roster)
            and sum(before.clients.values()) <= sum(plan.clients.values())
        ):
            return set()
        self._prepare(CHECK, plan)
        end = self.clock() + min(PAUSE, self.rules.deadline)
        found, refusing = self._ask_all(CHECK, plan, download, end), self.out.keys()
        if found.keys() == plan.sites:
            self.agreed = plan
            return set()
        # If one refuses, the others have perhaps had no time to answer.
        return plan.sites & refusing or plan.sites - found.keys()

    def _never(self, roster: Roster) -> dict[str, str]:
        """The sites that cannot take part however long the server waits, and why.

        If the others are too few, the run stops. When it is resumed, this round is asked again.
        """
        sites, allowed = self.members.sites, self.allowed()
        never = dict.fromkeys(sites - roster.members.keys(), "not in the founder's roster")
        never |= {site: reason for site, reason in self.out.items() if site in sites}
        never |= dict.fromkeys(sites - allowed, "it may no longer take part")
        able = {site: self.members.of(site) for site in sites - never.keys()}
        if reason := self._too_few(able, roster, never):
            raise FuelsError(f"round {self.round}: {reason}; the run stops and can be resumed")
        return never

    def _too_few(
        self, asked: Asked, roster: Roster, out: Mapping[str, str], needed: int = LEAST_SITES
    ) -> str:
        """Why these sites cannot answer a round together; "" if they can."""
        reasons = "; ".join(f"{site}: {why}" for site, why in sorted(out.items()))
        why = f" ({reasons})" if reasons else ""
        needed, least = max(needed, LEAST_SITES), self.settings.sharing.min_clients
        if len(asked) < needed:
            return f"{len(asked)} sites can send masked uploads, and {needed} are needed{why}"
        clients = min(sum(map(len, asked.values())), roster.clients(tuple(asked)))
        if clients < least:
            return (
                f"the sites that can send masked uploads have {clients} clients to train, and at"
                f" least {least} are needed (sharing.min_clients){why}"
            )
        return ""

    # -- the total -----------------------------------------------------------------------------

    def _prepare(self, kind: str, plan: Plan) -> None:
        """What requests of this kind bring. All sites get the same, or the masks do not cancel."""
        facts = {
            "clients": plan.clients,
            "most_samples": plan.terms.most_samples,
            "bound": plan.terms.bound,
            "roster": plan.roster,
        }
        self.requests.extra[kind] = {MASKED: facts}, {}

    def _total(self, plan: Plan, download: Download) -> tuple[dict[str, Envelope], Mean]:
        """The sites' replies and the mean that they make."""
        declared, roster = self._method.uploads(self.round), parse(plan.roster.encode())[0]
        which = SumId(
            roster.federation,
            roster.serial,
            self.run,
            NAME,
            self.round,
            tuple(sorted(plan.sites)),
            shape_of(declared),
        )
        self._prepare("train", plan)
        largest = max(map(len, plan.asked.values()))
        self.requests.size["train"] = OVERHEAD + PER_CLIENT * largest + 8 * which.words
        self.end = self.clock() + self.rules.deadline
        found = self._ask_all("train", plan, download, self.end)
        words = {}
        for site, reply in found.items():
            numbers = reply.arrays.get("words", np.empty(0))
            if numbers.dtype == np.int64 and numbers.ndim == 1:
                words[site] = numbers.view(np.uint64)
        missing = plan.sites - (words.keys() & self.members.sites)
        gone = dict.fromkeys(missing - self.allowed(), "it may no longer take part")
        if never := {**gone, **{site: self.out[site] for site in missing & self.out.keys()}}:
            reasons = "; ".join(f"{site}: {why}" for site, why in sorted(never.items()))
            raise self._stopped(
                f"no sum without {', '.join(never)} ({reasons}); the run stops and can be resumed"
            )
        if missing:
            self.silent |= missing
            raise self._failed(f"no sum without {', '.join(sorted(missing))}")
        try:
            return found, mean_of(total(which, words), declared)
        except FuelsError as error:  # asked again, the sites would repeat what they sent
            raise self._stopped(f"{error}; start a new run") from None

    def _ask_all(
        self, kind: str, plan: Plan, download: Download, end: float
    ) -> dict[str, Envelope]:
        """Ask every site of the set until all have replied, one refuses, or the time is up."""
        number, sites = self.round, plan.sites
        found: dict[str, Envelope] = {}
        asked: dict[str, float] = {}  # site: when it was asked last, or its reply was unusable
        met = self.network.connected() & self.members.sites
        while True:
            now, there = self.clock(), self.network.connected()
            self._greet(there - met, number, set(asked))
            met |= there
            for site in asked.keys() - there:  # it reconnects with the request lost
                asked[site] = -inf
            due = {s for s in sites - found.keys() if now >= asked.get(s, -inf) + PAUSE}
            ready = {site: plan.asked[site] for site in sorted(due & there)}
            self.requests.send(kind, number, ready, download)
            asked |= dict.fromkeys(ready, now)
            refusals = 0
            for sent, reply in self.collect(kind, number):
                if sent.kind != kind or reply is None:
                    continue
                if isinstance(reply, Failure):
                    self.failures.append(reply)
                elif kind == CHECK and reply.facts.get("about") != plan.clients:
                    continue  # a late reply about another set, which one of its sites refused
                elif why := self.guard.refusal(reply, sent.site, kind, number, sent.number):
                    self.failures.append(self.refused.add(sent.site, number, "upload", why))
                elif "refused" in reply.facts:
                    self.out[sent.site] = str(reply.facts["refused"])[:300]
                    self.failures.append(failed(sent.site, number, self.out[sent.site]))
                    refusals += 1
                else:
                    found[sent.site] = reply
                    self.silent.discard(sent.site)
                    continue
                asked[sent.site] = now  # it is asked again after a pause
            complete = found.keys() >= sites and sites <= self.members.sites
            gone = sites - found.keys() - self.allowed()
            if complete or refusals or gone or self.clock() >= end:
                return found
            self.sleep(POLL)

    def _stopped(self, reason: str) -> FuelsError:
        """The end of the run, before its last round."""
        self.book.add("sum failed", run=self.run, name=NAME, step=self.round, reason=reason)
        return FuelsError(f"round {self.round}: {reason}")

    def _failed(self, reason: str) -> FuelsError:
        """The end of an attempt: another follows, or the run stops."""
        if self.attempt >= self.rules.attempts:
            return self._stopped(
                f"{reason}; the run stops after {self.attempt} attempts and can be resumed"
            )
        log.warning("round %d: %s; attempt %d failed", self.round, reason, self.attempt)
        self.book.add("sum failed", run=self.run, name=NAME, step=self.round, reason=reason)
        return TooFewError(f"round {self.round}: {reason}")

    def _use_mean(self, sent: Request, envelope: Envelope, parts: Arrays) -> None:
        """A site's reply as if each of its clients had sent the mean."""
        site = sent.site
        self.guard.use(envelope)
        try:
            clients = text_list(envelope.facts.get("clients"), "the list of clients")
            if not set(clients) <= set(sent.asked) or len(set(clients)) != len(clients):
                raise FuelsError("its list of clients has some that were not asked")
        except FuelsError as error:
            failure = self.refused.add(site, sent.number, "upload", str(error), fault=True)
            self.failures.append(failure)
            clients = sent.asked  # its numbers are in the mean, whatever it says about them
        report = self.inbox.report(sent, envelope, self._method.losses)
        if isinstance(report, Failure):
            self.failures.append(report)
            report = None
        self.failures += [
            failed(site, sent.number, f"it withholds client {client}; see the site's log")
            for client in sent.asked
            if client not in clients
        ]
        if not clients:
            return
        count = len(clients)
        rows = {n: np.broadcast_to(part, (count, *part.shape)) for n, part in parts.items()}
        # Equal rows have the same mean with any weights.
        samples = np.ones(count, dtype=np.int64) if self._method.counts(sent.number) else None
        upload = Upload(clients, rows, samples)
        self.replies[site] = Reply(site, upload, report, sent.asked, reasons={})

    def _introduce(self, sent: Request, envelope: Envelope) -> Failure | None:
        self.out.pop(sent.site, None)  # it may consent by now
        return super()._introduce(sent, envelope)

    # -- state ---------------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray[Any]]:
        return {**super().state(), MASKED: np.array([self.length])}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        super().load(state)
        self.length = float(state[MASKED][0])


def at_the_server(settings: ResolvedSettings) -> ResolvedSettings:
    """The settings of the server's method: sites that mask uploads have shortened them already."""
    if not settings.privacy.masked:
        return settings
    return replace(settings, defence=replace(settings.defence, clip=0.0))
