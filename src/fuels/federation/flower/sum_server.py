"""The server's side of the sums of a run: exchanged before training, sent to all sites at the end.

First the live mean, then the shared statistics, which need it. For each sum the server chooses one
set of sites, writes it down, and asks only this set, again and again until the deadline of a round:
a site repeats its reply. If one does not answer, the masks of the others do not cancel, and the sum
is skipped: experts that need it are left out, and the run says so. It never fails the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats
from fuels.config import Settings
from fuels.errors import FuelsError
from fuels.experts.run_sums import (
    LIVE_MEAN,
    SETTINGS,
    STATISTICS,
    Steps,
    common_steps,
    has_rows,
    mostly_known,
    shape_of,
)
from fuels.federation.audit import Audit
from fuels.federation.codec import Envelope, text_list
from fuels.federation.flower.folders import ServerFolder, log
from fuels.federation.flower.messages import SUMS
from fuels.federation.flower.sum_keys import read_server_roster
from fuels.federation.flower.transport import POLL, FlowerTransport
from fuels.federation.guard import OVERHEAD
from fuels.federation.transport import Failure
from fuels.methods.messages import Download
from fuels.runs.settings import ResolvedSettings
from fuels.sharing.fixed_point import Words
from fuels.sharing.masks import LEAST_SITES, SumId, total
from fuels.sharing.protection import MEAN
from fuels.sharing.roster import Roster
from fuels.storage.checkpoint import load_state, prefixed, save_state

FILE = "sums.safetensors"  # in the server's run folder
SHORT = {LIVE_MEAN: "live", STATISTICS: "statistics"}  # names of arrays
CONSENT = {LIVE_MEAN: "live_mean", MEAN: "live_mean"}  # what a site consents to, where not sums
AGAIN = 10.0  # seconds before a site that did not answer is asked for the same sum again
Offers = Mapping[
    str, tuple[Steps, tuple[str, ...]]
]  # by site: its steps, and the sums it consents to


def wanted(settings: Settings) -> list[str]:
    """The names of the sums that a run uses, in the order of their exchange."""
    if not settings.mixture.on:
        return []
    return [name for name, key in SETTINGS.items() if getattr(settings.sharing, key)]


def words_in(replies: Mapping[str, Envelope]) -> dict[str, Words]:
    """The masked words of each site."""
    words: dict[str, Words] = {}
    for site, reply in replies.items():
        found = reply.arrays.get("words", np.empty(0))
        if found.dtype == np.int64 and found.ndim == 1:
            words[site] = found.view(np.uint64)
    return words


def summary_of(arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The sums of a run as people read them, from what is on disk."""
    if "found" in facts:
        return _noised(arrays, facts)
    done = {
        SETTINGS[name]: {"sites": sites, "numbers": int(arrays[SHORT[name]].size)}
        for name, sites in facts["sets"].items()
        if SHORT[name] in arrays
    }
    skipped = {SETTINGS[name]: reason for name, reason in facts["notes"].items()}
    return {**done, "skipped": skipped, **facts["bytes"]}


def _noised(arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The same of sums with noise, of which there may be several of a name."""
    done: dict[str, Any] = {}
    for number, one in enumerate(facts["found"]):
        name = str(one["name"]).partition(",")[0].replace(" ", "_")
        before = done.get(name, {"numbers": 0})["numbers"]
        done[name] = {"sites": one["sites"], "numbers": before + int(arrays[str(number)].size)}
    return {**done, "skipped": dict(facts["notes"]), **facts["bytes"]}


class RunSums:
    """The sums of one run, on disk from the moment that their sets are chosen."""

    def __init__(
        self,
        folder: ServerFolder,
        run: str,
        settings: ResolvedSettings,
        transport: FlowerTransport,
        book: Audit,
    ) -> None:
        self.folder, self.run, self.settings = folder, run, settings
        self.transport, self.book = transport, book
        self.path: Path = folder.runs / run / FILE
        self.steps: Steps | None = None
        self.live = False  # whether the statistics have columns for the live mean
        self.sets: dict[str, tuple[str, ...]] = {}  # by name, of the sums that were asked for
        self.totals: dict[str, Floats] = {}
        self.notes: dict[str, str] = {}  # name: why there is no sum
        self.declined: dict[str, str] = {}  # site: why it takes part in no sum
        self.bytes = {"bytes_up": 0, "bytes_down": 0}
        if self.path.exists():
            self._load()

    def exchange(self) -> None:
        """Exchange the sums that the run uses and that are neither there nor skipped."""
        names = [n for n in wanted(self.settings) if n not in self.totals and n not in self.notes]
        if not names:
            return
        with self._counted():
            roster = self._roster()
            if isinstance(roster, str):
                for name in names:
                    self._skip(name, roster)
            else:
                offers = self._offers()
                for name in names:
                    self._sum(name, offers, *roster)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count the bytes of an exchange, and save what came of it."""
        before = dict(self.transport.requests.counters)
        yield
        for key in self.bytes:
            self.bytes[key] += self.transport.requests.counters[key] - before[key]
        self._save()

    def _roster(self) -> tuple[bytes, Roster] | str:
        """The founder's roster, or why there is none."""
        try:
            found = read_server_roster(self.folder)
        except FuelsError as error:
            return str(error)
        return found or (
            "the server's folder has no roster.json, which the founder signs with fuels federation"
            " roster"
        )

    def message(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Facts and arrays that the last request of the run brings to every site."""
        if not wanted(self.settings):
            return {}, {}
        sets = {name: list(self.sets[name]) for name in self.totals}
        steps = None if self.steps is None else self.steps.facts()
        facts = {"steps": steps, "live": self.live, "sets": sets, "notes": self.notes}
        arrays = {SHORT[name]: values for name, values in self.totals.items()}
        return {SUMS: facts}, prefixed(SUMS, arrays)

    def summary(self) -> dict[str, Any]:
        """For summary.json; nothing if the run uses no sums."""
        return {"sums": summary_of(*self._state())} if wanted(self.settings) else {}

    # -- one exchange --------------------------------------------------------------------------

    def _offers(self) -> Offers:
        """The steps of the members' data, and the sums that each consents to."""
        transport = self.transport
        found: dict[str, tuple[Steps, tuple[str, ...]]] = {}
        replies = self._ask(transport.members.sites, {"name": ""}, {}, transport.rules.join)
        for site, reply in replies.items():
            offer: Any = reply.facts.get("offer")
            try:
                if not isinstance(offer, dict):
                    raise FuelsError(str(reply.facts.get("refused", "no offer"))[:300])
                steps = Steps.from_facts(offer.get("steps"))
                found[site] = steps, text_list(offer.get("consent"), "the consent to sums")
            except FuelsError as error:
                self.transport.refused.add(site, 0, "offer of sums", str(error))
                self.declined[site] = str(error)
        return found

    def _sum(
        self,
        name: str,
        offers: Offers,
        content: bytes,
        roster: Roster,
    ) -> None:
        """Exchange one sum, or note why it is skipped."""
        try:
            if name not in self.sets:
                self._choose(name, offers, roster)
                self._save()
            self.totals[name] = self._collect(name, content, roster)
        except FuelsError as error:
            self._skip(name, str(error))
            return
        if name == LIVE_MEAN:
            assert self.steps is not None
            least = self.settings.sharing.min_clients
            self.live = mostly_known(self.steps, self.totals[name], least)
        sites = self.sets[name]
        self.book.add("sum", run=self.run, name=name, sites=list(sites))
        log.info("%s: added up over %s (%d clients)", name, ", ".join(sites), roster.clients(sites))
        self._save()

    def _choose(self, name: str, offers: Offers, roster: Roster, kind: str = "") -> None:
        """The set of a sum: every site that can take part; FuelsError if they are too few.

        `kind`: what a site consents to; default: the sum's name.
        """
        kind = kind or name
        out = dict.fromkeys(self.transport.members.sites - offers.keys(), "no reply")
        out |= self.declined
        out |= dict.fromkeys(offers.keys() - roster.members.keys(), "not in the founder's roster")
        key = CONSENT.get(kind, "sums")
        no = {site: f"no consent (consent.{key})" for site, o in offers.items() if kind not in o[1]}
        out |= no
        away = offers.keys() - self.transport.network.connected()
        out |= dict.fromkeys(away, "not connected")
        fitting = {site: offer[0] for site, offer in offers.items() if site not in out}
        if fitting:
            every = {site: offer[0] for site, offer in offers.items()}
            steps, other = common_steps(every, fitting, LEAST_SITES)
            self.steps = replace(self.steps or steps, rows_first=steps.rows_first)
            out |= other
        sites = tuple(sorted(fitting.keys() - out.keys()))
        reasons = "; ".join(f"{site}: {why}" for site, why in sorted(out.items()))
        if len(sites) < LEAST_SITES:
            raise FuelsError(
                f"{len(sites)} of {len(out) + len(sites)} sites can take part, and at least"
                f" {LEAST_SITES} are needed{f' ({reasons})' if reasons else ''}"
            )
        least = self.settings.sharing.min_clients
        if (clients := roster.clients(sites)) < least:
            raise FuelsError(
                f"the sites that can take part have {clients} clients, and at least {least} are"
                " needed (sharing.min_clients)"
            )
        assert self.steps is not None
        if name == STATISTICS and not has_rows(self.steps, self.settings.sample.horizon):
            raise FuelsError(
                f"the training part that at least {LEAST_SITES} sites share is shorter than the"
                " longest lag"
            )
        if reasons:
            log.warning("%s: without %s", name, reasons)
        self.sets[name] = sites

    def _collect(self, name: str, content: bytes, roster: Roster) -> Floats:
        """The sum over its set; raises FuelsError if it cannot be decoded."""
        steps, sites = self.steps, self.sets[name]
        assert steps is not None
        horizon = self.settings.sample.horizon
        shape = shape_of(name, steps, horizon, self.live)
        moment = steps.time(steps.count if name == LIVE_MEAN else steps.end)
        federation = roster.federation
        asked = SumId(federation, roster.serial, self.run, name, moment, sites, shape)
        facts: dict[str, Any] = {"name": name, "steps": steps.facts(), "sites": list(sites)}
        facts |= {"roster": content.decode("utf-8"), "live": self.live}
        arrays: dict[str, NDArray[Any]] = {}
        if name == STATISTICS and self.live:
            facts["live sites"] = list(self.sets[LIVE_MEAN])
            arrays = prefixed(SUMS, {"live": self.totals[LIVE_MEAN]})
        return total(asked, words_in(self._contributions(asked, facts, arrays)))

    def _contributions(
        self, asked: SumId, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> dict[str, Envelope]:
        """The replies of a set to a sum; raises FuelsError if one refuses."""
        self.transport.requests.size["sum"] = OVERHEAD + 8 * asked.words
        replies = self._ask(set(asked.sites), facts, arrays, self.transport.rules.deadline)
        refused = {s: str(r.facts["refused"])[:300] for s, r in replies.items()
                   if "refused" in r.facts}  # fmt: skip
        if refused:
            raise FuelsError("; ".join(f"{site}: {why}" for site, why in sorted(refused.items())))
        return replies

    def _ask(
        self,
        sites: set[str],
        facts: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
        seconds: float,
    ) -> dict[str, Envelope]:
        """Ask these sites until all have replied, one refuses, or the time is up."""
        transport = self.transport
        transport.requests.extra["sum"] = facts, arrays
        end = transport.clock() + seconds
        found: dict[str, Envelope] = {}
        asked: dict[str, float] = {}  # site: when it was asked last
        while True:
            now, connected = transport.clock(), transport.network.connected()
            for site in asked.keys() - connected:  # it reconnects with the request lost
                asked[site] = -inf
            due = {s for s in sites - found.keys() if now >= asked.get(s, -inf) + AGAIN}
            ready = dict.fromkeys(sorted(due & connected), ())
            transport.requests.send("sum", 0, ready, Download())
            asked |= dict.fromkeys(ready, now)
            for sent, reply in transport.collect("sum", 0):
                if sent.kind != "sum" or sent.site not in sites or reply is None:
                    continue
                if isinstance(reply, Failure):
                    asked[sent.site] = now  # it is asked again after a pause
                elif transport.guard.refusal(reply, sent.site, "sum", 0, sent.number):
                    continue
                # A site that was asked twice replies twice, perhaps when it is asked for more.
                elif all(reply.facts.get(key) == facts.get(key) for key in ("name", "first")):
                    found[sent.site] = reply
            refused = any("refused" in reply.facts for reply in found.values())
            if found.keys() >= sites or refused or transport.clock() >= end:
                return found
            transport.sleep(POLL)

    def _skip(self, name: str, reason: str) -> None:
        self.notes[name] = reason
        self.book.add("sum skipped", run=self.run, name=name, reason=reason)
        log.warning("no %s in this run: %s", name, reason)

    # -- on disk -------------------------------------------------------------------------------

    def _save(self) -> None:
        save_state(self.path, *self._state())

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        facts = {
            "steps": None if self.steps is None else self.steps.facts(),
            "live": self.live,
            "sets": {name: list(sites) for name, sites in self.sets.items()},
            "notes": self.notes,
            "bytes": self.bytes,
        }
        return {SHORT[name]: total for name, total in self.totals.items()}, facts

    def _load(self) -> None:
        try:
            arrays, facts = load_state(self.path)
        except FuelsError as error:
            log.error("%s", error)
            damaged = "the server's record of this run's sums is damaged"
            self.notes = dict.fromkeys(wanted(self.settings), damaged)
            return
        self.steps = None if facts["steps"] is None else Steps.from_facts(facts["steps"])
        self.live, self.notes, self.bytes = facts["live"], facts["notes"], facts["bytes"]
        self.sets = {name: tuple(sites) for name, sites in facts["sets"].items()}
        self.totals = {name: arrays[SHORT[name]] for name in SHORT if SHORT[name] in arrays}
