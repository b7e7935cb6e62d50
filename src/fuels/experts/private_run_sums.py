"""The noised sums of a run across organisations: which there are, what a site adds, and their use.

    plan = Plan(sums_of(privacy, sharing, horizon, seconds, ledger, run), steps, sharing, horizon)
    plan.releases(found)                        # in order, given those found so far
    plan.parts(release, found, scaled, ...)     # what the clients of a site add to one of them
    FederatedExperts(...)                       # the experts of a site, from the totals

As on one machine: mean day, live mean, statistics, each from the noised sums before it. All spans
are those of the sites together, so that every site derives the same sensitivities and noise. What
travels is a whole number of steps of a release's grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fuels.arrays import Floats
from fuels.config import Privacy, Sharing
from fuels.data.calendar import Calendar
from fuels.experts.history import History, steps_in_week
from fuels.experts.horizon import warm_up_begins
from fuels.experts.linear import Arrays
from fuels.experts.private import PrivateExperts
from fuels.experts.private_releases import (
    cells_of,
    day_from,
    day_release,
    fitted,
    live_from,
    live_release,
    rows_of,
    span_of,
    statistics_name,
    statistics_release,
)
from fuels.experts.run_sums import ReceivedSums, Steps, offset_of
from fuels.experts.shared import SharedExperts
from fuels.privacy.ledger import Entry, Ledger, Release
from fuels.sharing import private_statistics as private
from fuels.sharing.private_sums import PrivateSums
from fuels.sharing.protection import (
    DAY,
    LEDGER,
    MEAN,
    STATISTICS,
    Protection,
    budget_of,
    not_covered,
)
from fuels.sharing.sums import LocalSums


@dataclass(frozen=True)
class Plan:
    """The releases of one run over the steps of several sites."""

    sums: PrivateSums
    steps: Steps
    sharing: Sharing
    horizon: int

    def releases(self, found: Sequence[Entry]) -> list[Release]:
        """All of them, in order; with a live mean `found`, the statistics have columns for it."""
        steps, shell = self.steps, shell_of(self.steps)
        cells = cells_of(shell)[1]
        training = span_of(shell, 0, steps.end)
        made = [day_release(self.sums, training, steps.end, steps.period, cells)]
        if self.sharing.live_mean:
            for span in (training, span_of(shell, steps.end, steps.count)):
                pieces = self.sums.pieces(*span)
                made += [live_release(self.sums, piece, steps.end) for piece in pieces]
        if self.sums.protected.unit == "client":  # a second live mean would cost as much again
            made = [release for release in made if release.last <= training[1]]
        for horizon in range(1, self.horizon + 1) if self.sharing.statistics else ():
            end = self.fitted(horizon)
            rows = self.rows(shell, horizon, np.zeros(cells), has_live(found, steps))
            if end > max(rows.lags):
                span = span_of(shell, 0, end)
                made.append(statistics_release(self.sums, span, end, rows, horizon))
        return made

    def fitted(self, horizon: int) -> int:
        """Steps of the statistics: those before the experts' warm-up."""
        return warm_up_begins(self.steps.end, self.steps.period, horizon)

    def rows(self, shell: History, horizon: int, day: Floats, live: bool) -> private.Rows:
        return rows_of(shell, horizon, day, cells_of(shell)[0], self.steps.end, live=live)

    def parts(
        self, release: Release, found: Sequence[Entry], scaled: Floats, calendar: Calendar
    ) -> Iterator[Floats]:
        """What each client adds, from its values [client, step] on its scale, step 0 first."""
        shell, end = shell_of(self.steps, calendar), self.steps.end
        cell, cells = cells_of(shell)
        if release.name == DAY:
            yield from (private.day_sums(own[:end], cell[:end], cells) for own in scaled)
            return
        day = _day(found)
        if release.name == MEAN:
            begin, seconds = span_of(shell, 0, 0)[0], self.steps.step
            first, last = ((time - begin) // seconds for time in (release.first, release.last))
            yield from private.deviations(scaled, day, cell)[:, first:last]
            return
        live = _live(found, shell, day) if has_live(found, self.steps) else None
        ahead = range(1, self.horizon + 1)
        horizon = next(h for h in ahead if statistics_name(h) == release.name)
        rows = self.rows(shell, horizon, day, live is not None)
        yield from map(rows.packed, rows.make(scaled, live, 0, self.fitted(horizon)))


def shell_of(steps: Steps, calendar: Calendar | None = None) -> History:
    """A history of no clients over the steps of all sites."""
    nothing, week = np.empty((0, steps.count)), steps_in_week(steps.step, steps.period)
    clock = steps.first, np.timedelta64(steps.step, "s"), calendar or Calendar()
    return History(nothing, nothing, steps.period, week, *clock)


def on_common_steps(history: History, steps: Steps) -> Floats:
    """A history's values [client, step] over the steps of all sites; NaN before and after."""
    at = offset_of(history, steps)
    wide = np.full((history.clients, steps.count), np.nan)
    wide[:, at : at + history.length] = history.observed
    return wide


def has_live(found: Sequence[Entry], steps: Steps) -> bool:
    """Whether the live mean is known for most of the training part."""
    means = (e.release for e in found if e.release.name == MEAN)
    end = steps.time(steps.end)
    return 2 * sum(max(min(r.last, end) - r.first, 0) for r in means) > steps.end * steps.step


def _day(found: Sequence[Entry]) -> Floats:
    return day_from(next(entry for entry in found if entry.release.name == DAY))


def _live(found: Sequence[Entry], history: History, day: Floats) -> Floats:
    means = (entry for entry in found if entry.release.name == MEAN)
    known = ((e.release, e.values[None] / max(int(e.about["clients"]), 1)) for e in means)
    return live_from(history, day[cells_of(history)[0]], known)


# -- what a site receives --------------------------------------------------------------------------


@dataclass
class FederatedExperts(PrivateExperts):
    """Experts from the noised sums of a federation: these are all there will ever be."""

    steps: Steps | None = None
    spent: float = 0.0  # epsilon of all runs of this site, when this one ended

    @classmethod
    def received_from(
        cls, settings: Privacy, run: str, horizon: int, steps: Steps, ledger: Ledger, **own: Any
    ) -> FederatedExperts:
        """`ledger` has the totals; `own` are other fields."""
        names = {key[1].partition(",")[0] for key in ledger.entries}
        least = own.pop("min_clients")
        return cls(
            LocalSums(least),
            statistics=STATISTICS in names,
            live_mean=MEAN in names,
            min_clients=least,
            protection=Protection(settings, ledger, run, horizon),
            steps=steps,
            **own,
        )

    def facts(self) -> dict[str, Any]:
        assert self.steps is not None
        return {**super().facts(), "sites": {**self.steps.facts(), "spent": self.spent}}

    @classmethod
    def restored(
        cls, facts: Mapping[str, Any], folder: Path, scale: tuple[Floats, Floats]
    ) -> FederatedExperts:
        made = PrivateExperts.restored(facts, folder, scale)
        common = dict(facts["sites"])
        spent = float(common.pop("spent"))
        return cls(**vars(made), steps=Steps.from_facts(common), spent=spent)

    def guarantee(self) -> dict[str, Any]:
        found, colluding = super().guarantee(), self._protection.settings.colluding
        every = [each.about["sites"] for each in self._found]
        return {
            **found,
            "epsilon_of_all_runs": round(self.spent, 6),
            "ledger": LEDGER,
            "sites": sorted({site for sites in every for site in sites}),
            "colluding": colluding,
            "not_covered": not_covered(self._protection.ledger.budget.relation, colluding),
        }

    @property
    def _found(self) -> list[Entry]:
        kept = self._protection
        return [e for e in kept.ledger.entries.values() if e.release.run == kept.run]

    def coefficients(
        self, history: History, ids: Sequence[str], end: int, horizon: int = 1
    ) -> dict[str, Arrays]:
        assert self.steps is not None
        known = self._protection.ledger.find(self._protection.run, statistics_name(horizon))
        if not known or known[0].release.last > span_of(history, 0, end)[1]:
            return {}
        shell, live = shell_of(self.steps, history.calendar), has_live(self._found, self.steps)
        cell = cells_of(shell)[0]
        rows = rows_of(shell, horizon, self.day, cell, self.steps.end, live=live)
        return fitted(rows, known[0], self.pooled, history, horizon, live=live)

    @property
    def day(self) -> Floats:
        """The mean day [cell]."""
        return _day(self._found)

    def _live(self, history: History, ids: Sequence[str]) -> Floats | None:
        """The live mean of the training run, and that of a live series since."""
        live = _live(self._found, history, self.day)
        if self.received is not None:
            seen = self.received.on(history.start, history.length)
            usual = self.day[cells_of(history)[0]]
            live = np.where(np.isnan(seen), live, usual + seen)
        return live


@dataclass(frozen=True)
class ReceivedPrivateSums(ReceivedSums):
    """The noised sums of a run that a site has received, and why some are missing."""

    private: FederatedExperts | None = None

    @property
    def experts(self) -> SharedExperts | None:
        return self.private

    def save(self, folder: Path) -> None:
        """Write the totals into a run folder, in the form of a ledger."""
        if self.private is not None:
            kept = self.private.protection
            assert kept is not None
            Ledger(budget_of(kept.settings), folder / LEDGER).keep(kept.ledger.entries.values())
