"""What sums over clients reveal: nothing beyond the typical day, unless all other terms are known.

The sums of shared statistics (sharing/statistics.py) include, for each phase, the sum of the values
and their number. An attacker that knows the contributions of all clients but one subtracts them; so
does one that sees two sums of which a single client is missing in one.
"""

from __future__ import annotations

import numpy as np

from fuels.arrays import Floats
from fuels.data.windows import Dataset
from fuels.research.audit.observed import mean_days
from fuels.research.audit.reconstruct import r2
from fuels.sharing.statistics import Columns, Totals, moments, unpack


def sums_of(dataset: Dataset) -> list[Totals]:
    """The contribution of every client: of the smallest declared row."""
    first, last = dataset.sample.reach_periods * dataset.period, dataset.split.train
    columns = Columns(lags=(1,), live_lags=(), slots=dataset.period)
    values = np.where(dataset.observed, dataset.series, np.nan).astype(np.float64)
    free = np.zeros(dataset.series.shape[1], dtype=np.bool_)
    rows = columns.rows(values, None, free, first, last)
    slot = np.arange(first, last) % dataset.period
    return [unpack(columns, moments(columns, own, slot)) for own in rows]


def day_of(total: Totals) -> Floats:
    """The mean day of the clients in a sum, [phase]."""
    counts = np.maximum(total.products[:, -2, -2], 1.0)
    return np.asarray(total.products[:, -2, -1] / counts)


def reconstruction(dataset: Dataset, known: int) -> float:
    """R2 of an attacker that knows the contributions of so many clients of one sum.

    Every unseen client is taken for the mean of the unseen ones. With one unseen client, each
    client is that one in turn.
    """
    parts, days = sums_of(dataset), mean_days(dataset)
    count = len(parts)
    whole = sum(parts[1:], parts[0]).products
    guess = np.empty_like(days)
    for client in range(count):
        others = [(client + 1 + i) % count for i in range(known)]
        rest = whole - sum(parts[i].products for i in others) if others else whole
        guess[client] = day_of(Totals(parts[0].columns, rest))
    if known < count - 1:  # the same guess for all that are unseen: nothing beyond their mean
        guess[:] = guess[0]
    return r2(guess, days)
