"""Which uploads a server uses: those whose direction is not far from the others'. Not in the paper.

The divergence of two uploads is one minus the cosine, for prototypes the mean over their rows. (It
is what L_inter sees of a prototype; the softmax of the Jensen-Shannon divergence does not notice a
constant that is added to every entry.) A client whose median divergence to the others is beyond
median + k MAD of all clients is left out. If sites vote (`defence.votes`), the clients of a site
share one vote in these medians.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuels.arrays import Flags, Floats, Floats32

FEWEST = 5  # clients from which a median says who is far from the others
# Median divergence from which a prototype is false rather than unusual: nearly at a right angle to
# most others. On the embedded data honest ones stay below it; negated and random ones do not.
FALSE = 0.9
BLOCK = 512  # clients whose divergences are computed at once


def unit_rows(prototypes: Floats32) -> Floats32:
    """Every row [client, row, width] with length 1; a row of zeros stays."""
    squares = np.square(prototypes, dtype=np.float64).sum(axis=-1, keepdims=True)
    unit: Floats32 = (prototypes / np.sqrt(np.maximum(squares, 1e-300))).astype(np.float32)
    return unit


def shares_of_votes(sites: Sequence[Any]) -> Floats:
    """One vote per site, shared by its clients, [client]."""
    count = Counter(sites)
    return np.array([1 / count[site] for site in sites])


def median(values: Floats, votes: Floats | None) -> Any:
    """The median along the last axis; with votes [value], the value at half of them."""
    if votes is None:
        return np.median(values, axis=-1)
    order = np.argsort(values, axis=-1, kind="stable")
    reached = np.cumsum(votes[order], axis=-1)
    at = (reached >= reached[..., -1:] / 2 - 1e-12).argmax(axis=-1)
    row = np.take_along_axis(order, at[..., None], axis=-1)
    return np.take_along_axis(values, row, axis=-1)[..., 0]


def admitted(uploads: Floats32, k: float, votes: Floats | None = None) -> Flags:
    """Whether each upload [client, row, width] is close enough to the others."""
    if not k or len(uploads) < FEWEST:
        return np.ones(len(uploads), dtype=np.bool_)
    return close(divergences(uploads, votes), k, votes)


def close(distance: Floats, k: float, votes: Floats | None = None) -> Flags:
    """Which of these median divergences are at most median + k MAD."""
    middle = median(distance, votes)
    spread = median(np.abs(distance - middle), votes)
    near: Flags = distance <= middle + k * spread
    return near


def divergences(uploads: Floats32, votes: Floats | None = None) -> Floats:
    """The median divergence of each upload to the others."""
    count, rows = uploads.shape[:2]
    flat = unit_rows(uploads).reshape(count, -1)
    found = np.empty(count)
    for start in range(0, count, BLOCK):
        cosines = (flat[start : start + BLOCK] @ flat.T) / rows
        here = np.arange(len(cosines))
        if votes is not None:
            for row in here:  # not to itself
                others = np.delete(np.arange(count), start + row)
                found[start + row] = 1 - median(cosines[row, others], votes[others])
            continue
        cosines[here, start + here] = np.inf  # not to itself: it comes last and is cut off
        others = np.sort(cosines, axis=1)[:, :-1]
        found[start : start + BLOCK] = 1 - np.median(others, axis=1)
    return found
