"""The server's side of masked uploads: one total for each round, or the round is skipped.

For each round the server chooses a set of sites and their clients, writes it down, and asks only
this set, again and again until the deadline, also after a restart. If a site does not answer, the
masks of the others do not cancel: the round is skipped, the model stays, and the next round has a
new set without that site. The methods and the round loop do not notice: instead of each client's
upload they get the mean, once for every client.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, inf
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fuels.data.files import writing
from fuels.errors import FuelsError
from fuels.federation.audit import Audit
from fuels.federation.codec import Envelope, text_list
from fuels.federation.flower.folders import ServerFolder, log
from fuels.federation.flower.inbox import Network, Request, Time, failed
from fuels.federation.flower.masked_site import MASKED
from fuels.federation.flower.sum_keys import read_server_roster
from fuels.federation.flower.transport import PAUSE, POLL, FlowerTransport
from fuels.federation.guard import OVERHEAD, PER_CLIENT
from fuels.federation.refusals import Refusals
from fuels.federation.transport import Failure, Reply, SkippedError, TooFewError
from fuels.methods.messages import Arrays, Download, Upload
from fuels.runs.settings import ResolvedSettings
from fuels.sharing.masked_uploads import NAME, Mean, Terms, mean_of, shape_of
from fuels.sharing.masks import LEAST_SITES, SumId, total
from fuels.sharing.roster import Roster

FILE = "masked.json"  # in the server's run folder: the set of the round that was asked last
Asked = dict[str, tuple[str, ...]]  # site: the clients it is asked to train


@dataclass(frozen=True)
class Plan:
    """What a round asks for. Sites that have answered repeat their reply, so it must not change."""

    asked: Asked
    terms: Terms

    @property
    def sites(self) -> set[str]:
        return set(self.asked)

    @property
    def clients(self) -> int:
        return sum(map(len, self.asked.values()))

    def save(self, path: Path, number: int) -> None:
        facts = {"round": number, "asked": self.asked, "terms": asdict(self.terms)}
        with writing(path) as temporary:
            temporary.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path, number: int) -> Plan | None:
        """The plan of this round; None if it was not made yet."""
        if not path.exists():
            return None
        try:
            facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            asked = {str(site): tuple(ids) for site, ids in facts["asked"].items()}
            found = cls(asked, Terms(**facts["terms"])), facts["round"]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FuelsError(
                f"{path}: cannot be read; restore it from a backup, or start a new run: sites may"
                " have answered this round with the set that it names"
            ) from None
        return found[0] if found[1] == number else None


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
        self.rounds_done, self.skipped = 0, 0  # rounds with a result; rounds skipped in a row
        self.out: dict[str, str] = {}  # site: why it refuses; until it connects again
        self.misses: dict[str, tuple[int, int]] = {}  # site: how often; the round to ask it again

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
        content, roster = self._roster()
        plan = Plan.load(self.path, round_number)
        if plan is None:
            asked = self._choose(self.members.by_site(tuple(clients)), roster)
            clip = self.settings.defence.clip
            most = self.members.train_periods * self._method.facts.period
            plan = Plan(asked, Terms(most, clip, clip * self.length))
            plan.save(self.path, round_number)
        self.needed = len(plan.sites)
        try:
            found, mean = self._total(plan, content, roster, download)
        except FuelsError as error:
            self._never(roster)
            self._skip(str(error))
        self.length, self.skipped = mean.length, 0
        self.rounds_done += 1
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

    def _choose(self, everyone: Asked, roster: Roster) -> Asked:
        """The sites that can take part, as soon as they are enough; waits until the deadline."""
        end, met = self.clock() + self.rules.deadline, set[str]()
        while True:
            there = self.network.connected()
            self.greeted &= there
            self._greet(there - met, self.round, set())
            met |= there
            for _, reply in self.collect("hello", self.round):
                self.failures += [reply] if isinstance(reply, Failure) else []
            never = self._never(roster)
            away = dict.fromkeys(self.silent, "no reply since it was last asked")
            away |= dict.fromkeys(self.members.sites - there, "not connected")
            needed = ceil(self.rules.quorum * len(everyone.keys() - never.keys()) - 1e-9)
            for out in ({**self._resting(), **away, **never}, {**away, **never}):
                asked = {site: ids for site, ids in sorted(everyone.items()) if site not in out}
                reason = self._too_few(asked, roster, out, needed)
                if not reason:
                    self.failures += [failed(s, self.round, out[s]) for s in sorted(out)]
                    return asked
            if self.clock() >= end:
                break
            self.sleep(POLL)
        reason = f"round {self.round}: {reason}"
        if self.attempt >= self.rules.attempts:
            raise FuelsError(
                f"{reason}; the run stops after {self.attempt} attempts and can be resumed"
            )
        log.warning("%s; attempt %d failed", reason, self.attempt)
        raise TooFewError(reason)

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

    def _resting(self) -> dict[str, str]:
        """Sites that missed rounds sit out twice as many each time: a miss costs all a round."""
        return {
            site: f"it missed {count} of the rounds that it was asked for"
            for site, (count, until) in self.misses.items()
            if self.round < until
        }

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

    def _total(
        self, plan: Plan, content: bytes, roster: Roster, download: Download
    ) -> tuple[dict[str, Envelope], Mean]:
        """The sites' replies and the mean that they make; a FuelsError says why there is none."""
        declared = self._method.uploads(self.round)
        which = SumId(
            roster.federation,
            roster.serial,
            self.run,
            NAME,
            self.round,
            tuple(sorted(plan.sites)),
            shape_of(declared),
        )
        facts = {
            "sites": list(which.sites),
            "clients": plan.clients,
            "most_samples": plan.terms.most_samples,
            "bound": plan.terms.bound,
            "roster": content.decode("utf-8"),
        }
        self.requests.extra["train"] = {MASKED: facts}, {}
        largest = max(map(len, plan.asked.values()))
        self.requests.size["train"] = OVERHEAD + PER_CLIENT * largest + 8 * which.words
        found = self._ask_all(plan.asked, download)
        if refused := [
            f"{site}: {self.out[site]}" for site in sorted(plan.sites & self.out.keys())
        ]:
            raise FuelsError("; ".join(refused))
        words = {}
        for site, reply in found.items():
            numbers = reply.arrays.get("words", np.empty(0))
            if numbers.dtype == np.int64 and numbers.ndim == 1:
                words[site] = numbers.view(np.uint64)
        return found, mean_of(total(which, words), declared)

    def _ask_all(self, plan: Asked, download: Download) -> dict[str, Envelope]:
        """Ask every site of the set until all have replied, one refuses, or the time is up."""
        number = self.round
        self.end = self.clock() + self.rules.deadline
        found: dict[str, Envelope] = {}
        asked: dict[str, float] = {}  # site: when it was asked last, or its reply was unusable
        while True:
            now, there = self.clock(), self.network.connected()
            for site in asked.keys() - there:  # it reconnects with the request lost
                asked[site] = -inf
            due = {s for s in plan.keys() - found.keys() if now >= asked.get(s, -inf) + PAUSE}
            ready = {site: plan[site] for site in sorted(due & there)}
            self.requests.send("train", number, ready, download)
            asked |= dict.fromkeys(ready, now)
            refusals = 0
            for sent, reply in self.collect("train", number):
                if sent.kind != "train" or reply is None:
                    continue
                if isinstance(reply, Failure):
                    self.failures.append(reply)
                elif why := self.guard.refusal(reply, sent.site, "train", number, sent.number):
                    self.failures.append(self.refused.add(sent.site, number, "upload", why))
                elif "refused" in reply.facts:
                    self.out[sent.site] = str(reply.facts["refused"])[:300]
                    self.failures.append(failed(sent.site, number, self.out[sent.site]))
                    refusals += 1
                else:
                    found[sent.site] = reply
                    continue
                asked[sent.site] = now  # it is asked again after a pause
            gone = plan.keys() - found.keys() - self.allowed()
            if found.keys() >= plan.keys() or refusals or gone or self.clock() >= self.end:
                break
            self.sleep(POLL)
        for site in found:
            self.misses.pop(site, None)
        if not refusals and not gone:
            missing = plan.keys() - found.keys()
            self.silent |= missing
            for site in missing:
                count = self.misses.get(site, (0, 0))[0] + 1
                self.misses[site] = count, number + 2**count
        return found

    def _skip(self, reason: str) -> NoReturn:
        """End this round without a result; after too many in a row, the run."""
        self.skipped += 1
        log.warning("round %d is skipped: %s", self.round, reason)
        self.book.add("sum skipped", run=self.run, name=NAME, step=self.round, reason=reason)
        last = self.round == self.rounds and not self.rounds_done
        if last or self.skipped >= self.rules.attempts:
            raise FuelsError(
                f"round {self.round}: {self.skipped} rounds in a row had no result ({reason}); the"
                " run stops and can be resumed"
            )
        raise SkippedError(reason, list(dict.fromkeys(self.failures)))

    def _use_mean(self, sent: Request, envelope: Envelope, parts: Arrays) -> None:
        """A site's reply as if each of its clients had sent the mean."""
        site = sent.site
        self.guard.use(envelope)
        try:
            clients = text_list(envelope.facts.get("clients"), "the list of clients")
            if not set(clients) <= set(sent.asked) or len(set(clients)) != len(clients):
                raise FuelsError("the list of clients is not of those that were asked")
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
        return {**super().state(), MASKED: np.array([self.length, self.rounds_done])}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        super().load(state)
        self.length, self.rounds_done = float(state[MASKED][0]), int(state[MASKED][1])


def at_the_server(settings: ResolvedSettings) -> ResolvedSettings:
    """The settings of the server's method: sites that mask uploads have shortened them already."""
    if not settings.privacy.masked:
        return settings
    return replace(settings, defence=replace(settings.defence, clip=0.0))


def masked_facts(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The masked rounds of a run, from its log: how many had a result, and why others had none."""
    skipped = {str(line["round"]): line["skipped"] for line in history if "skipped" in line}
    return {"rounds": len(history) - len(skipped), "skipped": skipped}
