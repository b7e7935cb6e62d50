"""What sums with a formal guarantee reveal (`--preset private`): the same attacks, with noise.

The attacker knows the released sums and the contributions of all clients but one. It reads that
client's mean day from what is left of the mean day and of the live mean, each weighed by its noise.

An attacker that knows everything but whether one hour, or one day, of one client took part sees
Gaussian noise around one of two known points. The best test is then that of their distance d in
standard deviations, over all releases together: its AUC is Phi(d / sqrt 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fuels.arrays import Floats
from fuels.config import Privacy, Sharing
from fuels.data.windows import Dataset
from fuels.experts.history import history_of
from fuels.experts.private_releases import cells_of, sums_of
from fuels.experts.private_run_sums import Plan, shell_of
from fuels.experts.run_sums import Steps, steps_of
from fuels.privacy.ledger import Entry, Ledger, Release
from fuels.research.audit.observed import mean_days
from fuels.research.audit.reconstruct import r2
from fuels.sharing import private_statistics as private
from fuels.sharing.protection import DAY, MEAN, budget_of

DRAWS = 5  # of the noise
SAMPLES = 200  # hours and days whose presence is guessed
SHARING = Sharing(statistics=True, live_mean=True)


@dataclass(frozen=True)
class Revealed:
    """What attackers read from the noised sums of one run."""

    numbers: int  # that a client sent
    reached: float  # R2 of who knows all other contributions
    hour: float  # AUC of whether one hour of a client took part
    day: float


class Attacked:
    """The noised sums of a dataset's training part, and what its clients added to them."""

    def __init__(self, dataset: Dataset, privacy: Privacy, seed: int) -> None:
        found = steps_of(dataset)
        self.steps = Steps(found.start, found.step, found.period, found.end, found.end)
        history = history_of(dataset)
        self.values = history.observed[:, : found.end]
        self.calendar, self.days = dataset.calendar, mean_days(dataset)
        self.first = dataset.sample.reach_periods * dataset.period
        ledger = Ledger(budget_of(privacy))
        sums = sums_of(privacy, SHARING, 1, found.step, ledger, "audit")
        self.plan = Plan(sums, self.steps, SHARING, 1)
        self.found: list[Entry] = []
        self.parts: list[Floats] = []  # of each release, [client, ...], in steps of its grid
        rng = np.random.default_rng(seed)
        while len(self.found) < len(planned := self.plan.releases(self.found)):
            self._add(planned[len(self.found)], rng)

    def _add(self, release: Release, rng: np.random.Generator) -> None:
        """A release; the noise of an attack need not be cryptographic."""
        own = np.stack([release.rounded(part) for part in self._contributions(release)])
        noise = np.rint(rng.normal(0, release.sigma / release.grid, release.shape))
        message = own.sum(axis=0) + noise.astype(np.int64)
        self.found.append(Entry(release, message, {"clients": len(own), "sites": []}))
        self.parts.append(np.asarray(own * release.grid, dtype=np.float64))

    def _contributions(self, release: Release, values: Floats | None = None) -> list[Floats]:
        scaled = self.values if values is None else values
        return list(self.plan.parts(release, self.found, scaled, self.calendar))

    def reconstruction(self, rng: np.random.Generator) -> float:
        """R2 of an attacker that knows all contributions but one, for each client in turn.

        Each client meets noise of its own: what is the same for all would be no obstacle.
        """
        guess = []
        for client in range(len(self.days)):
            left = [
                parts[client] + rng.normal(0, entry.release.sigma, entry.release.shape)
                for entry, parts in zip(self.found, self.parts, strict=True)
            ]
            guess.append(self._guess(left))
        return r2(np.stack(guess), self.days)

    def _guess(self, left: Sequence[Floats]) -> Floats:
        """A client's mean day [phase], from what is left of each sum."""
        shell, period = shell_of(self.steps, self.calendar), self.steps.period
        cell = cells_of(shell)[0]
        mean_day = private.mean_day(self.found[0].values, self.found[0].release.sigma)
        guess, weight = np.zeros(period), np.zeros(period)
        for entry, rest in zip(self.found, left, strict=True):
            days = self.steps.end / period
            if entry.release.name == DAY:
                found = rest[0].reshape(2, period).sum(axis=0) / days
                noise = np.sqrt(2) * entry.release.sigma / days
            elif entry.release.name == MEAN:
                found = (mean_day[cell] + rest).reshape(-1, period).mean(axis=0)
                noise = entry.release.sigma / np.sqrt(days)
            else:  # products of rows say little of a mean
                continue
            guess += found / noise**2
            weight += 1 / noise**2
        return guess / weight

    def recognised(self, steps: int) -> float:
        """The mean AUC of whether `steps` steps of a client took part, aligned to their length."""
        rng, found = np.random.default_rng(0), []
        for _ in range(SAMPLES):
            client = int(rng.integers(len(self.values)))
            begin = steps * int(rng.integers(self.first // steps, self.steps.end // steps))
            without = self.values[client : client + 1].copy()
            without[:, begin : begin + steps] = np.nan
            distance = 0.0
            for entry, parts in zip(self.found, self.parts, strict=True):
                [other] = self._contributions(entry.release, without)
                distance += float(((parts[client] - other) ** 2).sum()) / entry.release.sigma**2
            found.append(np.sqrt(distance))
        return float(np.mean(_auc(np.array(found))))


def _auc(distance: Floats) -> Floats:
    from scipy.special import ndtr  # slow to import

    return np.asarray(ndtr(distance / np.sqrt(2)))


def revealed(dataset: Dataset, privacy: Privacy) -> Revealed:
    """The attacks on noised sums over all clients of a dataset; R2 over draws of the noise."""
    attacked, rng = Attacked(dataset, privacy, 0), np.random.default_rng(1)
    return Revealed(
        numbers=sum(entry.release.numbers for entry in attacked.found),
        reached=float(np.mean([attacked.reconstruction(rng) for _ in range(DRAWS)])),
        hour=attacked.recognised(max(3600 // attacked.steps.step, 1)),
        day=attacked.recognised(attacked.steps.period),
    )
