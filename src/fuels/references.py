"""What an engineer would try in an hour: every table stands beside these.

All forecasts are one step ahead, on the normalised scale, [client, step] of one part. Each uses
only values before the step it forecasts; what was fitted was fitted on the training part.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fuels.data.windows import Dataset

Forecast = NDArray[np.float32]
PENALTIES = 10.0 ** np.arange(-3, 5)  # candidates for the ridge, in units of one squared z-score


def references(dataset: Dataset, part: str) -> dict[str, Forecast]:
    """All references by name; a weekly one only if the data reach back so far."""
    found = {"last value": lagged(dataset, part, 1)}
    found["one period ago"] = lagged(dataset, part, dataset.period)
    week = 7 * 86400 // dataset.panel.step_seconds
    first, last = dataset.split.part(part)
    if week != dataset.period and week <= first and last > first:
        found["one week ago"] = lagged(dataset, part, week)
    found["ridge"] = ridge(dataset, part)
    found["ridge + time of period"] = ridge(dataset, part, phase=True)
    return found


def lagged(dataset: Dataset, part: str, lag: int) -> Forecast:
    """The value `lag` steps earlier, gaps filled from the past as everywhere."""
    first, last = dataset.split.part(part)
    return dataset.series[:, first - lag : last - lag]


def ridge(dataset: Dataset, part: str, phase: bool = False) -> Forecast:
    """Each client's own ridge regression on the lags the encoder sees.

    With `phase`, one indicator per time of the period is added. The penalty of each client is the
    one with the least generalised cross-validation error on its training part.
    """
    clients = np.arange(len(dataset.ids))
    end = dataset.split.train
    x = _features(dataset, 0, end, phase, clients)
    mask = dataset.target[:, :end].astype(np.float64)
    y = dataset.series[:, :end].astype(np.float64)
    count = mask.sum(axis=1)
    x_mean = np.einsum("nst,ns->nt", x, mask) / count[:, None]
    y_mean = (y * mask).sum(axis=1) / count
    x_centred = (x - x_mean[:, None, :]) * mask[:, :, None]
    y_centred = (y - y_mean[:, None]) * mask
    gram = x_centred.transpose(0, 2, 1) @ x_centred
    moment = np.einsum("nst,ns->nt", x_centred, y_centred)
    values, vectors = np.linalg.eigh(gram)  # gram = V diag(values) V'
    rotated = np.einsum("nij,ni->nj", vectors, moment)
    total = (y_centred**2).sum(axis=1)

    scores = []
    for penalty in PENALTIES:
        shrunk = rotated / (values + penalty)
        residual = total - 2 * (shrunk * rotated).sum(axis=1) + (shrunk**2 * values).sum(axis=1)
        freedom = 1 + (values / (values + penalty)).sum(axis=1)
        scores.append(residual / np.maximum(count - freedom, 1.0) ** 2)
    penalty = PENALTIES[np.argmin(np.stack(scores), axis=0)]
    weights = np.einsum("nij,nj->ni", vectors, rotated / (values + penalty[:, None]))

    first, last = dataset.split.part(part)
    wanted = _features(dataset, first, last, phase, clients) - x_mean[:, None, :]
    return (np.einsum("nst,nt->ns", wanted, weights) + y_mean[:, None]).astype(np.float32)


def _features(
    dataset: Dataset, first: int, last: int, phase: bool, clients: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Lags, and with `phase` one indicator per time of the period, [client, step, feature]."""
    x = dataset.inputs(clients, first, last).astype(np.float64)
    if not phase:
        return x
    indicator = np.eye(dataset.period)[np.arange(first, last) % dataset.period]
    return np.concatenate([x, np.broadcast_to(indicator, (len(x), *indicator.shape))], axis=2)
