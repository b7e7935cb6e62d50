"""What the server makes of the models of a round: a mean, or a rule that bounds false ones.

Clipping bounds the length of each update, a client's model minus the global one, by median norms
of the round (Karimireddy et al., "Learning from History for Byzantine Robust Optimization", ICML
2021, clip around the previous state in the same way). It also bounds the weight of each client by
the median: a sample count is a claim. `jointly_bounded` bounds what several clients do together:
attackers who all push in one direction in every round need no long updates. It cuts what is unusual
along the principal directions of the updates; DnC (Shejwalkar and Houmansadr, NDSS 2021) leaves out
the clients that are unusual along the first of them. The rules replace the weighted mean and ignore
sample counts: coordinate-wise trimmed mean and median (Yin et al., ICML 2018), and multi-Krum
(Blanchard et al., NeurIPS 2017), the mean of the models that are closest to the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Flags, Floats, Floats32, Integers
from fuels.config import Defence
from fuels.methods.admission import FEWEST, admitted, median
from fuels.methods.base import weighted_mean
from fuels.methods.messages import Arrays

COLUMNS = 4096  # parameters whose rows are sorted or compared at once
SMALLEST = 1e-9  # of the largest eigenvalue; what is below is rounding


def aggregated(
    models: Arrays,
    weights: NDArray[Any],
    before: Arrays,
    defence: Defence,
    votes: Floats | None = None,
) -> Arrays:
    """The new global parts [size] from the clients' parts [client, size]."""
    if defence.clip:
        models = clipped(models, before, defence.clip, votes)
        if votes is None:  # the clients of a site share its one vote, whatever they claim
            weights = np.minimum(weights, np.median(weights))
    if defence.joint:
        models = jointly_bounded(models, before, defence.joint, votes)
    if defence.aggregation == "mean":
        return {name: weighted_mean(rows, weights) for name, rows in models.items()}
    if defence.aggregation == "krum":
        kept = krum(models, defence.tolerated)
        return {name: _mean(rows[kept]) for name, rows in models.items()}
    cut = false_clients(len(weights), defence.tolerated)
    if defence.aggregation == "median":
        cut = (len(weights) - 1) // 2
    return {name: trimmed_mean(rows, cut) for name, rows in models.items()}


def weights_by_site(samples: Integers, sites: Sequence[str]) -> Floats:
    """Samples as a share of those of the client's site: every site weighs the same."""
    names = np.array(sites)
    return np.array([n / samples[names == s].sum() for n, s in zip(samples, names, strict=True)])


def admitted_models(models: Arrays, before: Arrays, k: float, votes: Floats | None = None) -> Flags:
    """Whether the update of each client points in a direction like the others'."""
    updates = np.concatenate([rows - before[name] for name, rows in models.items()], axis=1)
    return admitted(updates[:, None, :], k, votes)


def false_clients(clients: int, share: float) -> int:
    """How many of these clients may be false; always fewer than half."""
    return min(ceil(share * clients - 1e-9), (clients - 1) // 2)


def clipped(models: Arrays, before: Arrays, medians: float, votes: Floats | None = None) -> Arrays:
    """Models whose updates are at most so many times as long as the median update."""
    norms = update_norms(models, before)
    return shortened(models, before, norms, medians * float(median(norms, votes)))


def shortened(models: Arrays, before: Arrays, norms: Floats, bound: float) -> Arrays:
    """Models whose updates, of lengths `norms` [client], are at most as long as `bound`."""
    short = np.where(norms > bound, bound / np.maximum(norms, 1e-300), 1.0)
    if (short == 1).all():
        return models
    result = {}
    for name, rows in models.items():
        old = before[name].astype(np.float64)
        result[name] = np.stack(
            [
                row if factor == 1 else (old + factor * (row - old)).astype(np.float32)
                for row, factor in zip(rows, short, strict=True)
            ]
        )
    return result


def jointly_bounded(
    models: Arrays, before: Arrays, k: float, votes: Floats | None = None
) -> Arrays:
    """Models that move along every principal direction by the median of all clients +- k MAD.

    The principal directions are the right singular vectors of the updates [client, parameter]. What
    several clients have in common and others do not is one of them, and only those clients move far
    along it. Honest clients that differ, each in its own way, are spread over all directions.
    """
    if len(next(iter(models.values()))) < FEWEST:
        return models
    values, vectors = np.linalg.eigh(inner_products(models, before))
    real = values > SMALLEST * values[-1]
    lengths, vectors = np.sqrt(values[real]), vectors[:, real]
    moves = vectors * lengths  # [client, direction]
    middle = median(moves.T, votes)
    spread = k * median(np.abs(moves - middle).T, votes)
    cut = np.clip(moves, middle - spread, middle + spread)
    if (cut == moves).all():
        return models
    # What to add to each client's model, as shares of all updates.
    changes = (((cut - moves) / lengths) @ vectors.T).astype(np.float32)
    result = {}
    for name, rows in models.items():
        result[name] = np.empty_like(rows)
        for start in range(0, rows.shape[1], COLUMNS):
            here = slice(start, start + COLUMNS)
            result[name][:, here] = rows[:, here] + changes @ (rows[:, here] - before[name][here])
    return result


def update_norms(models: Arrays, before: Arrays) -> Floats:
    """The length of each client's update over all parts, [client]."""
    squares = [
        [float(np.square(row - before[name].astype(np.float64)).sum()) for row in rows]
        for name, rows in models.items()
    ]
    norms: Floats = np.sqrt(np.sum(squares, axis=0))
    return norms


def trimmed_mean(rows: Floats32, cut: int) -> Floats32:
    """The mean of each parameter without its `cut` smallest and largest values, [size]."""
    result = np.empty(rows.shape[1], dtype=np.float32)
    for start in range(0, rows.shape[1], COLUMNS):
        part = np.sort(rows[:, start : start + COLUMNS], axis=0)
        result[start : start + COLUMNS] = _mean(part[cut : len(part) - cut])
    return result


def krum(models: Arrays, share: float) -> Integers:
    """The clients whose models are closest to their nearest neighbours, all but the false ones.

    The score of a model is the sum of the squared distances to its n - f - 2 nearest.
    """
    apart = squared_distances(models)
    count = len(apart)
    false = false_clients(count, share)
    np.fill_diagonal(apart, np.inf)
    nearest = np.sort(apart, axis=1)[:, : max(1, count - false - 2)]
    scores = nearest.sum(axis=1)
    return np.sort(np.argsort(scores, kind="stable")[: count - false])


def squared_distances(models: Arrays) -> Floats:
    """Between all pairs of clients, over all parts, [client, client]."""
    # Relative to their mean, distances are the same, and rounding gets smaller.
    means = {name: rows.mean(axis=0, dtype=np.float64) for name, rows in models.items()}
    products = inner_products(models, means)
    own = np.diagonal(products)
    return np.maximum(own[:, None] + own[None, :] - 2 * products, 0.0)


def inner_products(models: Arrays, origin: Mapping[str, NDArray[Any]]) -> Floats:
    """Of all pairs of clients, over all parts, relative to an origin [size], [client, client]."""
    count = len(next(iter(models.values())))
    products = np.zeros((count, count))
    for name, rows in models.items():
        for start in range(0, rows.shape[1], COLUMNS):
            here = slice(start, start + COLUMNS)
            part = rows[:, here].astype(np.float64) - origin[name][here]
            products += part @ part.T
    return products


def _mean(rows: Floats32) -> Floats32:
    mean: Floats32 = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    return mean
