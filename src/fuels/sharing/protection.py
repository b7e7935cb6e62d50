"""How the sums of one run are protected: its budget, its ledger, and what it releases."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fuels.config import Privacy, Sharing
from fuels.errors import FuelsError
from fuels.privacy.accountant import epsilon_of, loss_for, multipliers
from fuels.privacy.ledger import Budget, Ledger, Release
from fuels.privacy.sensitivity import Relation, relation_of, unit_of

LEDGER = "privacy.jsonl"  # in a run folder
SCALE, OWN, DAY = "scale", "own mean day", "mean day"
MEAN, STATISTICS = "live mean", "statistics"

_NEVER = (
    "which clients take part, and the dates of the data",
    "metrics, errors, forecasts and models, if somebody publishes them",
    "other runs on the same data, unless they use the same ledger",
    "several series about one person, such as those of neighbouring cells: each counts separately",
)
NOT_COVERED = {
    Relation.REMOVED: _NEVER,
    Relation.REPLACED: ("which values are missing", *_NEVER),
}


def not_covered(relation: Relation, colluding: int = 0) -> list[str]:
    """What the guarantee does not cover; between sites, of which some may reveal their noise."""
    plural = "site" if colluding == 1 else "sites"
    more = (f"more than {colluding} colluding {plural}",) if colluding else ()
    return [*more, *NOT_COVERED[relation]]


@dataclass(frozen=True)
class Protection:
    """How the sums of one run are protected."""

    settings: Privacy
    ledger: Ledger
    run: str  # identifies the run in the ledger
    horizon: int = 1  # steps ahead, each with its own statistics
    sites: tuple[int, int] = (1, 0)  # that add noise, and how many of them may collude

    def refuse_spent(self, sharing: Sharing, first: int, last: int) -> None:
        """Refuse, before training, a run whose releases the ledger does not allow.

        `first` and `last` are the span of the training part, in seconds since 1970.
        """
        if any(entry.release.run == self.run for entry in self.ledger.entries.values()):
            return  # a resumed run, whose releases are stored
        budget, epsilon = self.ledger.budget, self.settings.epsilon
        names = releases_per_unit(self.settings, sharing, self.horizon)
        noise = multipliers(epsilon, budget.delta, names)
        planned = [
            Release(self.run, name, first, last, 1.0, noise[name], (1,))
            for name, times in names.items()
            for _ in range(times)
        ]
        if not self.ledger.affords(*planned):
            raise FuelsError(
                f"{self.ledger.place}: this run would spend epsilon {epsilon:g}, which the budget"
                f" of {budget.epsilon:g} does not allow: epsilon {self.ledger.epsilon:.3g} is spent"
            )

    def facts(self) -> dict[str, Any]:
        """The guarantee and every release of the run, as in summary.json."""
        budget = self.ledger.budget
        entries = [e for e in self.ledger.entries.values() if e.release.run == self.run]
        own, whole = (
            [entry.release for entry in entries],
            loss_for(self.settings.epsilon, budget.delta),
        )
        groups = next((e.about["groups"] for e in entries if "groups" in e.about), None)
        return {
            "unit": str(budget.unit),
            "relation": str(budget.relation),
            "epsilon": self.settings.epsilon,
            "delta": budget.delta,
            "epsilon_spent": round(epsilon_of(self.ledger.loss_of(own), budget.delta), 6),
            "epsilon_of_all_runs": round(self.ledger.epsilon, 6),
            "ledger": self.ledger.path.name if self.ledger.path else None,
            **({} if groups is None else {"groups": np.bincount(groups).tolist()}),
            "releases": [
                {
                    "name": release.name,
                    "from": str(np.datetime64(release.first, "s")),
                    "to": str(np.datetime64(release.last, "s")),
                    "numbers": release.numbers,
                    "sensitivity": release.sensitivity,
                    "noise": release.sigma,
                    "share_of_budget": round(release.loss / whole, 4),
                }
                for release in own
            ],
            "not_covered": not_covered(budget.relation),
        }

    @classmethod
    def of(cls, settings: Privacy, run: str, horizon: int, folder: Path | None) -> Protection:
        """With the ledger that the settings name, or that of a run folder."""
        if settings.ledger:
            return cls(settings, shared_ledger(settings), run, horizon)
        path = None if folder is None else folder / LEDGER
        return cls(settings, Ledger(budget_of(settings), path), run, horizon)


def budget_of(settings: Privacy) -> Budget:
    unit, relation = unit_of(settings.unit), relation_of(settings.relation)
    return Budget(settings.epsilon, settings.delta, unit, relation)


def shared_ledger(settings: Privacy) -> Ledger:
    """A ledger of several runs, which has its own budget."""
    path = Path(settings.ledger)
    if not path.is_file():
        raise FuelsError(
            f"{path}: no such privacy ledger; create it with fuels privacy new {path} --epsilon 8"
        )
    ledger, wanted = Ledger.opened(path), budget_of(settings)
    for name in ("delta", "unit", "relation"):
        own, other = getattr(ledger.budget, name), getattr(wanted, name)
        if own != other:
            raise FuelsError(f"{path}: this ledger has {name} {own}, and the run {other}")
    return ledger


def releases_per_unit(settings: Privacy, sharing: Sharing, horizon: int) -> dict[str, int]:
    """The releases of a run, and in how many of each the values of one unit are used."""
    found = {} if settings.scale else {SCALE: 1}
    if settings.groups > 1:
        found[OWN] = 1
    found[DAY] = 1
    if sharing.live_mean:
        found[MEAN] = 1
    if sharing.statistics:
        found[STATISTICS] = horizon
    return found
