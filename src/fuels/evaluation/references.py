"""Reference forecasts that an engineer would try within an hour; every table includes them.

All are one step ahead, on the normalised scale, [client, step] of one part. Each uses only values
before the step it forecasts, and coefficients fitted on the training part.
"""

from __future__ import annotations

import numpy as np

from fuels.arrays import Floats, Floats32, Integers
from fuels.data.windows import Dataset
from fuels.experts.ridge import fit_ridge

CHUNK = 64  # clients fitted at once, to limit the memory for their features


def references(dataset: Dataset, part: str) -> dict[str, Floats32]:
    """All references by name; the weekly one only if the data reach back far enough."""
    found = {"last value": lagged(dataset, part, 1)}
    found["one period ago"] = lagged(dataset, part, dataset.period)
    week = 7 * 86400 // dataset.panel.step_seconds
    first, last = dataset.split.part(part)
    if week != dataset.period and week <= first and last > first:
        found["one week ago"] = lagged(dataset, part, week)
    found["ridge"] = ridge(dataset, part)
    found["ridge + time of period"] = ridge(dataset, part, phase=True)
    return found


def lagged(dataset: Dataset, part: str, lag: int) -> Floats32:
    """The value `lag` steps earlier, or the last value if that is not known."""
    first, last = dataset.split.part(part)
    known = dataset.known[:, first - lag : last - lag]
    newest = dataset.series[:, first - 1 : last - 1]
    return np.where(known, dataset.series[:, first - lag : last - lag], newest)


def ridge(dataset: Dataset, part: str, phase: bool = False) -> Floats32:
    """A ridge regression per client on the encoder's lags.

    `phase` adds one indicator per time of the period. Generalised cross-validation on the training
    part chooses the penalty of each client.
    """
    end, (first, last) = dataset.split.train, dataset.split.part(part)
    forecasts = []
    for low in range(0, len(dataset.ids), CHUNK):
        clients = np.arange(low, min(low + CHUNK, len(dataset.ids)))
        y = dataset.series[clients, :end].astype(np.float64)
        x = _features(dataset, 0, end, phase, clients)
        fitted = fit_ridge(x, y, dataset.target[clients, :end])
        wanted = _features(dataset, first, last, phase, clients)
        forecasts.append(fitted.predict(wanted).astype(np.float32))
    return np.concatenate(forecasts)


def _features(dataset: Dataset, first: int, last: int, phase: bool, clients: Integers) -> Floats:
    """Lags, and with `phase` one indicator per time of the period, [client, step, feature]."""
    x = dataset.inputs(clients, first, last).astype(np.float64)
    if not phase:
        return x
    indicator = np.eye(dataset.period)[np.arange(first, last) % dataset.period]
    return np.concatenate([x, np.broadcast_to(indicator, (len(x), *indicator.shape))], axis=2)
