"""The server's side of sums with noise: as in sum_server.py, one after the other.

Mean day, live mean, statistics: each request carries the totals so far, which are public. The
server cannot remove noise: each site adds its share before it masks its words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.experts.private_releases import sums_of
from fuels.experts.private_run_sums import Plan
from fuels.experts.run_sums import SETTINGS, Steps
from fuels.federation.flower.folders import log
from fuels.federation.flower.messages import SUMS
from fuels.federation.flower.private_messages import found_facts, read_found, title
from fuels.federation.flower.sum_server import Offers, RunSums, words_in
from fuels.privacy.gaussian import share_of_noise
from fuels.privacy.ledger import Entry, Ledger, Release
from fuels.sharing.masks import SumId, added_up
from fuels.sharing.protection import DAY, MEAN, STATISTICS, budget_of, not_covered
from fuels.sharing.roster import Roster
from fuels.storage.checkpoint import load_state, prefixed


class PrivateRunSums(RunSums):
    """The noised sums of one run."""

    def __init__(self, *parties: Any) -> None:
        self.found: list[Entry] = []
        super().__init__(*parties)

    def exchange(self) -> None:
        """Exchange what the plan has and what is neither there nor skipped."""
        if self.notes if self.steps is None else self._next() is None:
            return
        with self._counted():
            roster = self._roster()
            if isinstance(roster, str):
                self._skip_rest(roster)
                return
            offers = self._offers()
            try:
                self._begin(offers, roster[1])
            except FuelsError as error:
                self._skip_rest(str(error))
                return
            while (release := self._next()) is not None:
                self._release(release, offers, *roster)
            self._note_short()

    def message(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        steps = None if self.steps is None else self.steps.facts()
        facts = {"steps": steps, "found": found_facts(self.found), "notes": self.notes}
        return {SUMS: facts}, prefixed(SUMS, self._arrays())

    def summary(self) -> dict[str, Any]:
        """For summary.json: the sums, and what is guaranteed for them."""
        privacy = self.settings.privacy
        names = ("unit", "relation", "epsilon", "delta", "colluding")
        budget = budget_of(privacy)
        guarantee = {
            **{name: getattr(privacy, name) for name in names},
            "releases": [
                {
                    "name": entry.release.name,
                    "from": str(np.datetime64(entry.release.first, "s")),
                    "to": str(np.datetime64(entry.release.last, "s")),
                    "numbers": entry.release.numbers,
                    "noise": entry.release.sigma,
                    "sites": entry.about["sites"],
                    "clients": entry.about["clients"],
                }
                for entry in self.found
            ],
            "not_covered": not_covered(budget.relation, privacy.colluding),
        }
        return {**super().summary(), "privacy": guarantee}

    # -- one exchange --------------------------------------------------------------------------

    def _plan(self) -> Plan:
        assert self.steps is not None
        settings, horizon = self.settings, self.settings.sample.horizon
        ledger = Ledger(budget_of(settings.privacy))
        facts = settings.sharing, horizon, self.steps.step, ledger, self.run
        return Plan(sums_of(settings.privacy, *facts), self.steps, settings.sharing, horizon)

    def _next(self) -> Release | None:
        """The first release that is neither found nor skipped; nothing without a mean day."""
        done = {entry.release.key for entry in self.found}
        if not done and self.notes:
            return None
        for release in self._plan().releases(self.found):
            if release.key not in done and _key(release) not in self.notes:
                return release
        return None

    def _begin(self, offers: Offers, roster: Roster) -> None:
        """The set of the first sum, and with it the steps of all."""
        if DAY not in self.sets:
            self._choose(DAY, offers, roster, DAY)
            self._save()
        self._plan().releases([])  # refuses a training part that is too short

    def _release(self, release: Release, offers: Offers, content: bytes, roster: Roster) -> None:
        """Exchange one sum, or note why it is skipped."""
        name = release.name if release.name == DAY else f"{release.name} from {release.first}"
        try:
            if name not in self.sets:
                self._choose(name, offers, roster, release.name.partition(",")[0])
                self._save()
            self.found.append(self._entry(release, self.sets[name], content, roster))
        except FuelsError as error:
            if release.name == DAY:
                self._skip_rest(str(error))
            else:
                self._skip(_key(release), str(error))
            return
        sites = list(self.sets[name])
        self.book.add("noised sum", run=self.run, name=release.name, sites=sites)
        log.info("%s, with noise: added up over %s", release.name, ", ".join(sites))
        self._save()

    def _entry(
        self, release: Release, sites: tuple[str, ...], content: bytes, roster: Roster
    ) -> Entry:
        """The total over a set; raises FuelsError if it cannot be decoded."""
        assert self.steps is not None
        share_of_noise(1.0, len(sites), self.settings.privacy.colluding)  # refuses too few
        step, name = release.last, title(release, self.run)
        asked = SumId(roster.federation, roster.serial, self.run, name, step, sites, release.shape)
        facts: dict[str, Any] = {"name": release.name, "first": release.first}
        facts |= {"steps": self.steps.facts(), "sites": list(sites)}
        facts |= {"roster": content.decode("utf-8"), "found": found_facts(self.found)}
        replies = self._contributions(asked, facts, prefixed(SUMS, self._arrays()))
        total = added_up(asked, words_in(replies)).view(np.int64).reshape(release.shape)
        clients = sum(_contributing(replies[site].facts) for site in sites)
        if clients < (least := self.settings.sharing.min_clients):
            raise FuelsError(
                f"the noise hides the scale of all but {clients} clients, and a sum needs {least}"
                " (sharing.min_clients); see fuels privacy plan"
            )
        return Entry(release, total, {"sites": list(sites), "clients": clients})

    def _note_short(self) -> None:
        """Say so if the plan has no statistics because their lags do not fit."""
        names = {entry.release.name for entry in self.found}
        wanted = self.settings.sharing.statistics and "statistics" not in self.notes
        if wanted and STATISTICS not in names:
            self._skip("statistics", "the training part is shorter than their longest lag")

    def _skip_rest(self, reason: str) -> None:
        for key in SETTINGS.values():
            if getattr(self.settings.sharing, key) and key not in self.notes:
                self._skip(key, reason)

    # -- on disk -------------------------------------------------------------------------------

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {str(number): entry.message for number, entry in enumerate(self.found)}

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        _, facts = super()._state()
        return self._arrays(), {**facts, "found": found_facts(self.found)}

    def _load(self) -> None:
        try:
            arrays, facts = load_state(self.path)
            self.steps = None if facts["steps"] is None else Steps.from_facts(facts["steps"])
            self.notes, self.bytes = facts["notes"], facts["bytes"]
            self.sets = {name: tuple(sites) for name, sites in facts["sets"].items()}
            self.found = read_found(self._plan(), facts, dict(arrays)) if facts["found"] else []
        except FuelsError as error:
            log.error("%s", error)
            self._skip_rest("the server's record of this run's sums is damaged")


def _key(release: Release) -> str:
    """The setting that asks for a release."""
    return {MEAN: "live_mean", STATISTICS: "statistics"}.get(
        release.name.partition(",")[0], "mean_day"
    )


def _contributing(facts: Mapping[str, Any]) -> int:
    clients = facts.get("clients")
    if type(clients) is not int or not 0 <= clients <= 10**6:
        raise FuelsError("a site does not say how many of its clients contribute")
    return clients
