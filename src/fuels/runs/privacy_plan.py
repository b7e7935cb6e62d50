"""What a privacy budget buys, before anything runs: noise, and what it leaves of a pooled ridge.

The noise follows from the sizes. The accuracy is measured on the embedded synthetic data, with as
much noise per client as with the given sizes: the error of the pooled ridge one step and `horizon`
steps ahead over a week after the history, with noise and without, and that of the last value. It
needs no data of the user and says nothing exact about them; it shows whether the noise is small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt

import numpy as np

from fuels.arrays import Floats
from fuels.config import Privacy, Sharing
from fuels.data.synthetic import synthesise
from fuels.errors import FuelsError
from fuels.experts.history import History, make_history
from fuels.experts.horizon import WARM_SHARE
from fuels.experts.private_releases import LEAST_PERIODS, PLANS, cells_of, lags_of
from fuels.experts.shared import POOLED_LIVE, declared, slots
from fuels.privacy.accountant import epsilon_of, loss_for, multipliers
from fuels.privacy.gaussian import share_of_noise
from fuels.privacy.ledger import Release
from fuels.privacy.sensitivity import Protected, relation_of, unit_of
from fuels.sharing import private_statistics as private
from fuels.sharing.protection import DAY, MEAN, OWN, SCALE, STATISTICS, releases_per_unit
from fuels.sharing.similar_clients import grouped, own_days
from fuels.sharing.sums import MIN_CLIENTS

PERIOD, HOUR = 24, 3600
MOST_CLIENTS, MOST_DAYS, TEST_DAYS = 100, 60, 7  # of the synthetic data
DRAWS = 3  # of the noise
BOTH = Sharing(statistics=True, live_mean=True)
ALONE = (SCALE, OWN)  # noise at the client, in no sum


@dataclass(frozen=True)
class Sizes:
    """What a user plans; the data are hourly."""

    clients: int
    sites: int
    history: int  # days
    horizon: int
    privacy: Privacy
    colluding: int = 0

    @property
    def groups(self) -> int:
        return self.privacy.groups

    def __post_init__(self) -> None:
        if self.sites > self.clients:
            raise FuelsError(f"{self.sites} sites cannot have {self.clients} clients")
        if self.groups < 1 or (self.groups > 1 and self.sites > 1):
            raise FuelsError(
                f"privacy.groups must be at least 1, and 1 with several sites; it is {self.groups}"
            )
        if self.clients < (least := self.groups * MIN_CLIENTS):
            raise FuelsError(
                f"{self.clients} clients are too few: a sum needs {MIN_CLIENTS}"
                f" (sharing.min_clients), and {self.groups} groups need {least}"
                if self.groups > 1
                else f"{self.clients} clients are too few: a sum needs {MIN_CLIENTS}"
                " (sharing.min_clients)"
            )
        if self.history <= LEAST_PERIODS:
            raise FuelsError(
                f"a client contributes with more than {LEAST_PERIODS} days of history, not"
                f" {self.history}"
            )
        share_of_noise(1.0, self.sites, self.colluding)  # refuses too many

    @property
    def fitted(self) -> int:
        """Days that the statistics use: those before the experts' warm-up."""
        return self.history - max(1, round(WARM_SHARE * self.history))


@dataclass(frozen=True)
class Line:
    """One release of the plan."""

    name: str
    numbers: int
    share: float  # of the budget
    sensitivity: float
    noise: float  # on the sum, standard deviation
    site: float  # what each site adds of it
    effect: str


@dataclass(frozen=True)
class Accuracy:
    """Mean squared errors of the pooled ridge on synthetic data, z-scored."""

    ahead: int
    free: float
    noised: float
    last_value: float

    @property
    def cost(self) -> float:
        return self.noised / self.free - 1


@dataclass(frozen=True)
class Plan:
    sizes: Sizes
    lines: tuple[Line, ...]
    accuracy: tuple[Accuracy, ...]
    spent: float
    contributes: bool  # whether the scale of a client can be told from noise
    similarity: float | None  # rank correlation of distances between clients, noised with exact


def plan(sizes: Sizes) -> Plan:
    """The noise of every release, and the accuracy it leaves."""
    privacy = sizes.privacy
    names = releases_per_unit(privacy, BOTH, sizes.horizon)
    noise = multipliers(privacy.epsilon, privacy.delta, names)
    spent = epsilon_of(sum(n * noise[name] ** -2 for name, n in names.items()), privacy.delta)
    releases = _releases(sizes, noise)
    steps = sorted({1, sizes.horizon})
    accuracy = tuple(_accuracy(sizes, releases, ahead) for ahead in steps)
    scale = releases.get(SCALE)
    # A client's values fill about ten bins of its histogram.
    clear = scale is None or private.SURE * scale.sigma < sizes.history * PERIOD / 10
    similar = _similarity(sizes, releases[OWN].sigma) if OWN in releases else None
    return Plan(sizes, tuple(_lines(sizes, releases)), accuracy, spent, clear, similar)


def _similarity(sizes: Sizes, sigma: float) -> float:
    """How well distances between noised mean days rank the clients, on synthetic data."""
    from scipy.stats import spearmanr  # slow to import

    days = min(sizes.history, MOST_DAYS)
    history, rng = _history(min(sizes.clients, MOST_CLIENTS), days), np.random.default_rng(0)
    end = days * PERIOD
    exact = _days(history, end)
    noised = exact + sigma * days / sizes.history * rng.normal(size=exact.shape)
    pairs = np.triu_indices(len(exact), 1)
    far = [np.linalg.norm(x[pairs[0]] - x[pairs[1]], axis=1) for x in (exact, noised)]
    return float(spearmanr(*far).statistic)


def _days(history: History, end: int) -> Floats:
    """What each client would release as its own mean day, without noise, [client, slot]."""
    return own_days(history.observed[:, :end], slots(history, 0, end), PERIOD)


def _releases(sizes: Sizes, noise: Mapping[str, float]) -> dict[str, Release]:
    privacy, steps = sizes.privacy, sizes.history * PERIOD
    protected = Protected(unit_of(privacy.unit), relation_of(privacy.relation), HOUR)
    history = _history(MIN_CLIENTS, LEAST_PERIODS + 1)
    lags, means = lags_of(history, 1, live=True)
    width = len(lags) + len(means) + 1
    found = {
        DAY: (protected.cells(private.CLIP, steps, PERIOD, PERIOD), 4 * PERIOD),
        MEAN: (protected.values(private.CLIP, steps), sizes.groups * steps),
        STATISTICS: (
            protected.products(private.NORM, sizes.fitted * PERIOD, lags),
            width * (width + 1) // 2,
        ),
    }
    if sizes.groups > 1:
        own = protected.cells(private.CLIP, steps, PERIOD, PERIOD, counts=False)
        found = {OWN: (own, PERIOD), **found}
    if not privacy.scale:
        found = {SCALE: (protected.histogram(steps), private.BINS), **found}
    return {
        name: Release("plan", name, 0, steps * HOUR, sensitivity, noise[name], (numbers,))
        for name, (sensitivity, numbers) in found.items()
    }


def _lines(sizes: Sizes, releases: Mapping[str, Release]) -> Iterator[Line]:
    clients, hours = sizes.clients, sizes.history * PERIOD
    whole = loss_for(sizes.privacy.epsilon, sizes.privacy.delta)
    times = releases_per_unit(sizes.privacy, BOTH, sizes.horizon)
    for name, release in releases.items():
        sigma = release.sigma
        if name not in ALONE:  # of all sites, more than is needed if none colludes
            sigma *= sqrt(sizes.sites / (sizes.sites - sizes.colluding))
        effect = {
            SCALE: f"{sigma:.2g} in each count of a client's {hours} values, at the client",
            OWN: f"{sigma / sizes.history:.2g} standard deviations, by time of day, at the client",
            DAY: f"{sigma / (clients * sizes.history / 2):.2g} standard deviations, by time of day",
            MEAN: f"{sigma * sizes.groups / clients:.2g} standard deviations at each step",
            STATISTICS: f"{sigma / (clients * sizes.fitted * PERIOD):.1e} of the sum of all rows",
        }[name]
        site = sigma if name in ALONE else sigma / sqrt(sizes.sites)
        share = times[name] * release.loss / whole
        yield Line(name, release.numbers, share, release.sensitivity, sigma, site, effect)


# -- accuracy on synthetic data ----------------------------------------------------------------


def _history(clients: int, days: int) -> History:
    panel = synthesise("net", clients=clients, days=days + TEST_DAYS, seed=1)
    train = panel.values[: days * PERIOD]
    std = np.maximum(train.std(axis=0), 1e-9)
    return make_history(panel, PERIOD, train.mean(axis=0), std)


def _accuracy(sizes: Sizes, releases: Mapping[str, Release], ahead: int) -> Accuracy:
    clients, days = min(sizes.clients, MOST_CLIENTS), min(sizes.history, MOST_DAYS)
    history = _history(clients, days)
    # Fewer clients and days than planned have as much less noise.
    collusion = sqrt(sizes.sites / (sizes.sites - sizes.colluding))
    share = clients / sizes.clients * collusion
    sigma = {
        name: (1 if name in ALONE else share)
        * release.sigma
        * (1 if name == MEAN else days / sizes.history)
        for name, release in releases.items()
        if name != SCALE
    }
    made = partial(_error, history, days, ahead, sizes.groups)
    noised = [made(sigma, seed) for seed in range(DRAWS)]
    free = made(dict.fromkeys(sigma, 0.0), 0)
    first, last = days * PERIOD, history.length
    truth = history.observed[:, first:last]
    naive = float(np.nanmean((truth - history.lagged(first, last, ahead)) ** 2))
    return Accuracy(ahead, free, float(np.mean(noised)), naive)


def _error(
    history: History, days: int, ahead: int, groups: int, sigma: Mapping[str, float], seed: int
) -> float:
    """The error of the pooled ridge over the days after training, in a simulation of its sums."""
    rng, end = np.random.default_rng(seed), days * PERIOD
    cell, cells = cells_of(history)
    sums = np.sum([private.day_sums(x[:end], cell[:end], cells) for x in history.observed], axis=0)
    noisy_sums = sums + sigma[DAY] * rng.normal(size=sums.shape)
    day = private.mean_day(noisy_sums, sigma[DAY])
    group = np.zeros(history.clients, dtype=np.int64)
    if groups > 1:
        own = _days(history, end)
        noised_days = own + sigma[OWN] * rng.normal(size=own.shape)
        group = grouped(noised_days, groups, MIN_CLIENTS)
    parts, sizes = private.deviations(history.observed, day, cell), np.bincount(group)
    total = np.stack([parts[group == g].sum(axis=0) for g in range(len(sizes))])
    noised = total + sigma[MEAN] * rng.normal(size=total.shape)
    live = (day[cell] + noised / sizes[:, None])[group]
    lags, means = lags_of(history, ahead, live=True)
    rows = private.Rows.of(lags, means, day, cell, end)
    fitted = max(end - round(WARM_SHARE * days) * PERIOD, LEAST_PERIODS * PERIOD)
    packed: Floats = np.sum(
        [rows.packed(own) for own in rows.make(history.observed, live, 0, fitted)], axis=0
    )
    packed = packed + sigma[STATISTICS] * rng.normal(size=packed.shape)
    columns = declared(history, ahead, live=True)
    expert = next(e for e in POOLED_LIVE if e.change and e.lags is PLANS[0])
    used = expert.lags(history, ahead)
    found = rows.coefficients(packed, sigma[STATISTICS], columns, used, live=True)
    seen = replace(history, live=live)
    made = expert.forecasts(dict(vars(found)), seen, end, history.length, ahead)
    return float(np.nanmean((history.observed[:, end:] - made) ** 2))
