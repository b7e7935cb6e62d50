"""What a privacy budget buys, before anything runs: noise, and what it leaves of a pooled ridge.

The noise follows from the sizes. The accuracy is measured on the embedded synthetic data, with as
much noise per client as with the given sizes: the error of the pooled ridge one step and `horizon`
steps ahead over a week after the history, with noise and without, and that of the last value. It
needs no data of the user and says nothing exact about them; it shows whether the noise is small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from fuels.arrays import Floats
from fuels.config import Privacy, Sharing
from fuels.data.synthetic import synthesise
from fuels.errors import FuelsError
from fuels.experts.history import History, make_history
from fuels.experts.horizon import WARM_SHARE
from fuels.experts.private_releases import LEAST_PERIODS, PLANS, cells_of, lags_of
from fuels.experts.shared import POOLED_LIVE, declared
from fuels.privacy.accountant import epsilon_of, loss_for, multipliers
from fuels.privacy.gaussian import share_of_noise
from fuels.privacy.ledger import Release
from fuels.privacy.sensitivity import Protected, relation_of, unit_of
from fuels.sharing import private_statistics as private
from fuels.sharing.protection import DAY, MEAN, SCALE, STATISTICS, releases_per_unit
from fuels.sharing.sums import MIN_CLIENTS

PERIOD, HOUR = 24, 3600
MOST_CLIENTS, MOST_DAYS, TEST_DAYS = 100, 60, 7  # of the synthetic data
DRAWS = 3  # of the noise
BOTH = Sharing(statistics=True, live_mean=True)


@dataclass(frozen=True)
class Sizes:
    """What a user plans; the data are hourly."""

    clients: int
    sites: int
    history: int  # days
    horizon: int
    privacy: Privacy
    colluding: int = 0

    def __post_init__(self) -> None:
        if self.sites > self.clients:
            raise FuelsError(f"{self.sites} sites cannot have {self.clients} clients")
        if self.clients < MIN_CLIENTS:
            raise FuelsError(
                f"{self.clients} clients are too few: a sum needs {MIN_CLIENTS}"
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
    own_day: float  # noise of each time of day, if a client released its own mean day instead
    similarity: float  # rank correlation of distances between such days with those without noise


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
    own = _own_day(sizes)
    similar = _similarity(sizes, own)
    return Plan(sizes, tuple(_lines(sizes, releases)), accuracy, spent, clear, own, similar)


def _own_day(sizes: Sizes) -> float:
    """Noise of each number of a client's mean day, for the whole budget."""
    privacy, steps = sizes.privacy, sizes.history * PERIOD
    protected = Protected(unit_of(privacy.unit), relation_of(privacy.relation), HOUR)
    sensitivity = protected.cells(private.CLIP, steps, PERIOD, PERIOD)
    return sensitivity / sqrt(loss_for(privacy.epsilon, privacy.delta)) / sizes.history


def _similarity(sizes: Sizes, noise: float) -> float:
    """How well distances between noised mean days rank the clients, on synthetic data."""
    from scipy.stats import spearmanr  # slow to import

    history = _history(min(sizes.clients, MOST_CLIENTS), min(sizes.history, MOST_DAYS))
    clipped = np.clip(history.observed, -private.CLIP, private.CLIP)
    whole = clipped[:, : clipped.shape[1] // PERIOD * PERIOD]
    days = np.nanmean(whole.reshape(len(whole), -1, PERIOD), axis=1)
    noised = days + noise * np.random.default_rng(0).normal(size=days.shape)
    pairs = np.triu_indices(len(days), 1)
    far = [np.linalg.norm(x[pairs[0]] - x[pairs[1]], axis=1) for x in (days, noised)]
    return float(spearmanr(*far).statistic)


def _releases(sizes: Sizes, noise: Mapping[str, float]) -> dict[str, Release]:
    privacy, steps = sizes.privacy, sizes.history * PERIOD
    protected = Protected(unit_of(privacy.unit), relation_of(privacy.relation), HOUR)
    history = _history(MIN_CLIENTS, LEAST_PERIODS + 1)
    lags, means = lags_of(history, 1, live=True)
    width = len(lags) + len(means) + 1
    found = {
        DAY: (protected.cells(private.CLIP, steps, PERIOD, PERIOD), 4 * PERIOD),
        MEAN: (protected.values(private.CLIP, steps), steps),
        STATISTICS: (
            protected.products(private.NORM, sizes.fitted * PERIOD, lags),
            width * (width + 1) // 2,
        ),
    }
    if not privacy.scale:
        found = {SCALE: (protected.histogram(steps), private.BINS), **found}
    return {
        name: Release("plan", name, 0, steps * HOUR, sensitivity, noise[name], (numbers,))
        for name, (sensitivity, numbers) in found.items()
    }


def _lines(sizes: Sizes, releases: Mapping[str, Release]) -> Iterator[Line]:
    clients, hours = sizes.clients, sizes.history * PERIOD
    for name, release in releases.items():
        sigma = release.sigma
        if name != SCALE:  # of all sites, more than is needed if none colludes
            sigma *= sqrt(sizes.sites / (sizes.sites - sizes.colluding))
        effect = {
            SCALE: f"{sigma:.2g} in each count of a client's {hours} values, at the client",
            DAY: f"{sigma / (clients * sizes.history / 2):.2g} standard deviations, by time of day",
            MEAN: f"{sigma / clients:.2g} standard deviations at each step",
            STATISTICS: f"{sigma / (clients * sizes.fitted * PERIOD):.1e} of the sum of all rows",
        }[name]
        site = sigma if name == SCALE else sigma / sqrt(sizes.sites)
        yield Line(name, release.numbers, release.sensitivity, sigma, site, effect)


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
        name: share * release.sigma * (1 if name == MEAN else days / sizes.history)
        for name, release in releases.items()
        if name != SCALE
    }
    noised = [_error(history, days, ahead, sigma, seed) for seed in range(DRAWS)]
    free = _error(history, days, ahead, dict.fromkeys(sigma, 0.0), 0)
    first, last = days * PERIOD, history.length
    truth = history.observed[:, first:last]
    naive = float(np.nanmean((truth - history.lagged(first, last, ahead)) ** 2))
    return Accuracy(ahead, free, float(np.mean(noised)), naive)


def _error(history: History, days: int, ahead: int, sigma: Mapping[str, float], seed: int) -> float:
    """The error of the pooled ridge over the days after training, in a simulation of its sums."""
    rng, end = np.random.default_rng(seed), days * PERIOD
    cell, cells = cells_of(history)
    sums = np.sum([private.day_sums(x[:end], cell[:end], cells) for x in history.observed], axis=0)
    noisy_sums = sums + sigma[DAY] * rng.normal(size=sums.shape)
    day = private.mean_day(noisy_sums, sigma[DAY])
    total = private.deviations(history.observed, day, cell).sum(axis=0)
    live = day[cell] + (total + sigma[MEAN] * rng.normal(size=total.shape)) / history.clients
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
    seen = replace(history, live=np.tile(live, (history.clients, 1)))
    made = expert.forecasts(dict(vars(found)), seen, end, history.length, ahead)
    return float(np.nanmean((history.observed[:, end:] - made) ** 2))
