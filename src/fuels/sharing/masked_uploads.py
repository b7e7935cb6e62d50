"""Uploads as sums: what a site adds up for its clients, and the mean that the total makes.

Each client adds, with its share s = samples / unit,

    s,  s x the length of its update,  s x every number of its model,

and the total of all sites, divided by its first number, is the weighted mean of the models, which
is all that the method needs, and the mean length of an update. `unit` is a power of two that no
client's samples exceed, so shares are at most 1 and rounded to nothing (fixed_point.py): the mean
differs from the exact one by at most 2^-33 / the mean share.

The server cannot shorten updates that it does not see. It announces a bound, `clip` times the mean
length of the last round that had a result, and each site shortens its own clients' updates. A
length counts at most so much that the bound can double from one round to the next.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from fuels.arrays import Floats, Floats32
from fuels.errors import FuelsError
from fuels.methods.aggregation import shortened, update_norms
from fuels.methods.base import Sent
from fuels.methods.messages import Arrays, Upload
from fuels.sharing.fixed_point import LARGEST, Words, to_words

NAME = "uploads"  # of the sum
FIRST = 2  # the share and the length, before the numbers of the model
GROWTH = 2.0  # of the bound, at most, from one round to the next


@dataclass(frozen=True)
class Terms:
    """What all sites of a round must use alike."""

    most_samples: int  # of a client
    clip: float = 0.0  # defence.clip
    bound: float = 0.0  # on the length of an update; 0: none

    def __post_init__(self) -> None:
        if not 1 <= self.most_samples <= 2**32:
            raise FuelsError("the largest number of samples of a client must be between 1 and 2^32")
        if not 0 <= self.bound < np.inf:
            raise FuelsError("the bound on updates must be finite and not negative")

    @property
    def unit(self) -> int:
        return 1 << (self.most_samples - 1).bit_length()

    @property
    def applied(self) -> str:
        """How lengths are bounded, as text; "" if they are not."""
        return f"{self.bound!r}, clip {self.clip!r}" if self.bound else ""


def digest_of(shared: Arrays) -> str:
    """Of the model that a round starts from."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(shared):
        found.update(f"{name} {shared[name].shape};".encode() + shared[name].tobytes())
    return found.hexdigest()


def given_alike(
    model: str, terms: Terms, clients: Mapping[str, int], settings: str, roster: bytes
) -> str:
    """A digest of all that decides what sites add: their masks cancel only if they agree on it.

    `model`: its digest. `clients`: how many each site was asked to train. `settings`: of the run,
    as text. `roster`: its digest.
    """
    facts = {
        "model": model,
        "terms": asdict(terms),
        "clients": dict(clients),
        "settings": settings,
        "roster": roster.hex(),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def shape_of(declared: Mapping[str, Sent]) -> tuple[int]:
    """The shape of the sum for these uploads."""
    return (FIRST + sum(prod(sent.shape) for sent in declared.values()),)


def words_of(upload: Upload, before: Arrays, terms: Terms, sites: int) -> tuple[Words, list[str]]:
    """What a site adds, as integers [number], and clients left out: the sum has no room for them.

    `before`: the model that the clients started from. Without clients, a site adds zeros.
    """
    counted = upload.samples is not None
    weights = upload.weights if counted else np.full(len(upload.clients), terms.unit)
    if weights.max(initial=0) > terms.unit:
        raise FuelsError(f"a client of this site has more than {terms.most_samples} samples")
    models, lengths = upload.arrays, update_norms(upload.arrays, before)
    if terms.bound:
        models = shortened(models, before, lengths, terms.bound)
        lengths = np.minimum(lengths, GROWTH * terms.bound / terms.clip)
    shares = weights / terms.unit
    room = LARGEST / sites / max(1, len(shares))
    large: list[str] = []

    def rows() -> Iterator[Floats]:
        yield np.zeros(FIRST + sum(part.size for part in before.values()))
        for i, client in enumerate(upload.clients):
            numbers = [array[i].ravel() for array in models.values()]
            row: Floats = shares[i] * np.concatenate([[1.0, lengths[i]], *numbers])
            if np.abs(row).max() > room:
                large.append(client)
            else:
                yield row

    return to_words(rows(), sites, NAME), large


class Mean(NamedTuple):
    """The weighted mean of the models of a round, and of the lengths of their updates."""

    parts: Arrays
    length: float


def mean_of(total: Floats, declared: Mapping[str, Sent]) -> Mean:
    """The mean behind a total [number]."""
    share = float(total[0])
    if share <= 0:
        raise FuelsError(f"{NAME}: no client contributed")
    mean: Floats32 = (total[FIRST:] / share).astype(np.float32)
    if not np.isfinite(mean).all():
        raise FuelsError(f"{NAME}: the mean is not finite")
    parts, first = {}, 0
    for name, sent in declared.items():
        size = prod(sent.shape)
        parts[name] = mean[first : first + size].reshape(sent.shape)
        first += size
    return Mean(parts, max(0.0, float(total[1]) / share))
