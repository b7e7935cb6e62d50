"""What clients contribute to private sums, and what is made of the sums.

Smaller than without noise (statistics.py): few columns, one matrix for all hours, and a mean day in
place of coefficients by hour, so that each number is a sum over many rows. In this order, each from
what was released before:

1. scale: a client's histogram of its values, by powers of sqrt(2); from it, mean and deviation;
2. mean day of all clients, by slot of the period, separately for free days;
3. live mean: deviations from the mean day, step by step, divided by the number of clients;
4. statistics: products of rows of deviations from the mean day.

A row holds the newest value, the differences of the other lags from it, the same of the live mean,
and the change of the target. Rows are clipped to the norm NORM. The upper triangle of the products
is sent, elements beside the diagonal times sqrt(2), which makes its norm that of the row, squared.
Sensitivities are in privacy/sensitivity.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fuels.arrays import Flags, Floats, Integers, window
from fuels.sharing.statistics import Coefficients, Columns

LEAST_POWER, MOST_POWER = -40, 80  # of sqrt(2): 1e-6 to 1e12
BINS = 2 * (MOST_POWER - LEAST_POWER) + 1
SURE = 4.0  # standard deviations of the noise that a count must exceed
CLIP = 2.0  # of a value of the mean day or the live mean, in standard deviations of its client
NORM = 1.0  # of a row
SPLIT = 2.0  # a mean day needs this many standard deviations of noise in values


@dataclass(frozen=True)
class Scale:
    """Means and standard deviations of the clients, and which of them contribute."""

    mean: Floats
    std: Floats
    member: Flags

    def apply(self, values: Floats) -> Floats:
        """Values [client, step] of the contributing clients, on their scale."""
        chosen = values[self.member]
        return (chosen - self.mean[self.member, None]) / self.std[self.member, None]


def histogram(values: Floats) -> Floats:
    """Counts of a client's values [step], by power of sqrt(2) and sign; missing ones not."""
    known = values[~np.isnan(values)]
    least, most = 2.0 ** (LEAST_POWER / 2), MOST_POWER - LEAST_POWER
    with np.errstate(divide="ignore"):
        power = np.floor(2 * np.log2(np.abs(known))) - LEAST_POWER
    place = np.where(np.abs(known) < least, 0, np.sign(known) * (1 + np.clip(power, 0, most - 1)))
    return np.bincount(place.astype(np.int64) + most, minlength=BINS).astype(np.float64)


def middles() -> Floats:
    """The value that stands for each bin of the histogram."""
    powers = 2.0 ** ((np.arange(LEAST_POWER, MOST_POWER) + 0.5) / 2)
    return np.concatenate([-powers[::-1], [0.0], powers])


def scale_of(counts: Floats, sigma: float, least: float) -> Scale:
    """From noised histograms [client, bin]; a client with fewer than `least` values is left out."""
    kept = np.where(counts > SURE * sigma, counts, 0.0)
    number, middle = kept.sum(axis=1), middles()
    safe = np.maximum(number, 1.0)
    mean = kept @ middle / safe
    std = np.sqrt(np.maximum(kept @ middle**2 / safe - mean**2, 0.0))
    return Scale(mean, std, (number >= least) & (std > 0))


def day_sums(scaled: Floats, cell: Integers, cells: int) -> Floats:
    """What a client with values [step] adds to the mean day: sums and counts, [2, cell]."""
    known = ~np.isnan(scaled)
    value = np.clip(scaled[known], -CLIP, CLIP)
    sums = np.bincount(cell[known], value, cells)
    return np.stack([sums, np.bincount(cell[known], minlength=cells)])


def mean_day(total: Floats, sigma: float) -> Floats:
    """The mean day [cell] from noised sums [2, cell]; a free slot without values is as any day."""
    sums, counts = total
    enough = counts > SPLIT * sigma
    slots = len(sums) // 2
    both = sums.reshape(2, slots).sum(0), counts.reshape(2, slots).sum(0)
    usable = both[1] > SPLIT * sigma
    usual = np.where(usable, both[0] / np.where(usable, both[1], 1.0), 0.0)
    found = np.where(enough, sums / np.where(enough, counts, 1.0), np.tile(usual, 2))
    return np.clip(found, -CLIP, CLIP)


def deviations(scaled: Floats, day: Floats, cell: Integers) -> Floats:
    """What clients with values [..., step] add to the live mean; a missing value adds nothing."""
    return np.nan_to_num(np.clip(scaled - day[cell], -CLIP, CLIP), nan=0.0)


def lag_means(day: Floats, cell: Integers, lag: int) -> Floats:
    """The mean day `lag` steps before a step in each cell, [cell]; `cell` is that of each step."""
    now, before = cell[lag:], day[cell[: len(cell) - lag]]
    number = np.bincount(now, minlength=len(day))
    return np.where(number > 0, np.bincount(now, before, len(day)) / np.maximum(number, 1), day)


@dataclass(frozen=True)
class Rows:
    """The rows of private statistics: which lags, and what is subtracted from each."""

    lags: tuple[int, ...]
    live_lags: tuple[int, ...]
    day: Floats  # [cell]
    cell: Integers  # of every step
    usual: tuple[Floats, ...]  # of every column, [cell]

    @classmethod
    def of(
        cls, lags: Sequence[int], live_lags: Sequence[int], day: Floats, cell: Integers, until: int
    ) -> Rows:
        """`until`: the calendar up to this step is used."""
        usual = tuple(lag_means(day, cell[:until], lag) for lag in (*lags, *live_lags))
        return cls(tuple(lags), tuple(live_lags), day, cell, usual)

    @property
    def width(self) -> int:
        return len(self.lags) + len(self.live_lags) + 1

    @property
    def numbers(self) -> int:
        return self.width * (self.width + 1) // 2

    def make(self, scaled: Floats, live: Floats | None, first: int, last: int) -> Floats:
        """Clipped rows [client, step, column] of values in first..last-1; NaN if incomplete.

        `live`, [step] or for each client, is public and may reach back further.
        """
        own = np.full_like(scaled, np.nan)
        own[:, first:last] = scaled[:, first:last]
        cell, columns = self.cell[first:last], []
        for lag, usual in zip(self.lags, self.usual, strict=False):
            columns.append(window(own, first - lag, last - lag) - usual[cell])
        for lag, usual in zip(self.live_lags, self.usual[len(self.lags) :], strict=True):
            assert live is not None
            known = window(np.atleast_2d(live), first - lag, last - lag) - usual[cell]
            columns.append(np.broadcast_to(known, (len(own), last - first)))
        columns.append(own[:, first:last] - self.day[cell])
        rows: Floats = np.stack(columns, axis=2)
        newest = rows[:, :, 0].copy()
        rows[:, :, [*range(1, len(self.lags)), -1]] -= newest[:, :, None]
        if self.live_lags:
            place = len(self.lags)
            rows[:, :, place + 1 : -1] -= rows[:, :, place, None]
        length = np.linalg.norm(rows, axis=2, keepdims=True)
        clipped: Floats = rows * np.minimum(1.0, NORM / np.maximum(length, 1e-300))
        return clipped

    def packed(self, rows: Floats) -> Floats:
        """What a client with rows [step, column] contributes."""
        complete = rows[~np.isnan(rows).any(axis=1)]
        upper = np.triu_indices(self.width)
        weight = np.where(upper[0] == upper[1], 1.0, np.sqrt(2))
        return (complete.T @ complete)[upper] * weight

    def coefficients(
        self, packed: Floats, sigma: float, columns: Columns, lags: Sequence[int], live: bool
    ) -> Coefficients:
        """A ridge on some lags, as coefficients of the declared columns of its forecasts."""
        upper = np.triu_indices(self.width)
        products = np.zeros((self.width, self.width))
        products[upper] = packed / np.where(upper[0] == upper[1], 1, np.sqrt(2))
        products = products + np.triu(products, 1).T
        own, means = len(self.lags), len(self.live_lags) if live else 0
        used = [i for i in range(own) if self.lags[i] in lags] + list(range(own, own + means))
        weights = _solve(products[np.ix_([*used, -1], [*used, -1])], sigma)
        every = np.zeros(self.width - 1)
        every[used] = weights
        every[0] += 1 - every[1:own].sum()
        if means:
            every[own] -= every[own + 1 :].sum()
        inputs = np.zeros(len(columns.lags) + len(columns.live_lags))
        for i, lag in enumerate(self.lags):
            inputs[columns.lags.index(lag)] = every[i]
        for i, lag in enumerate(self.live_lags if live else ()):
            inputs[len(columns.lags) + columns.live_lags.index(lag)] = every[own + i]
        level = self.day - sum(w * u for w, u in zip(every, self.usual, strict=True))
        constant, free = level.reshape(2, -1)
        slots = len(constant)
        return Coefficients(np.tile(inputs, (slots, 1)), free - constant, constant)


def _solve(products: Floats, sigma: float) -> Floats:
    """Ridge coefficients from noised products; the penalty is the size of the noise."""
    values, vectors = np.linalg.eigh(products)
    cleaned = (vectors * np.maximum(values, 0.0)) @ vectors.T
    size = len(products) - 1
    penalty = max(1.0, sigma * np.sqrt(size))
    return np.linalg.solve(cleaned[:-1, :-1] + penalty * np.eye(size), cleaned[:-1, -1])
