"""What the sites of a federation hide from the server: where training starts, and the order of a
prototype's numbers.

Both are drawn from a secret that all sites share. The founder gives it to the sites and never to
the server; it protects nothing from a server that also runs a site, or from one that a site helps.

A prototype's rows are sent in a secret order, and the columns of each row in a secret order of that
row. The server needs neither: the Jensen-Shannon divergence of two prototypes is a mean over rows
of sums over columns, and PR and NR are means of whole prototypes, so a site restores them. Nothing
changes in the results, apart from the order of summation.

On one machine there is no server to hide from: the secret is drawn from the seed, and a run stays
reproducible. An audit (`fuels audit`) assumes that the attacker does not know it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from fuels.arrays import Floats32, Integers
from fuels.randomness import HIDDEN, generator

START, ORDER = 1, 2  # what is drawn


def hidden_seed(seed: int, secret: bytes, purpose: int = START) -> int:
    """A seed that cannot be computed without the secret, if there is one."""
    if not secret:
        return int(generator(seed, HIDDEN, purpose).integers(2**62))
    known = f"{seed} {purpose}".encode()
    digest = hashlib.blake2b(known, key=secret, digest_size=16).digest()
    return int.from_bytes(digest, "big")


@dataclass(frozen=True)
class Order:
    """The order of a prototype's numbers, flattened."""

    source: Integers  # where each number that is sent comes from

    def apply(self, prototypes: Floats32) -> Floats32:
        """Prototypes [client, row, width] in the secret order."""
        flat = prototypes.reshape(len(prototypes), -1)
        return flat[:, self.source].reshape(prototypes.shape)

    def restore(self, received: Floats32) -> Floats32:
        """Prototypes [client, row, width] in their own order."""
        flat = np.empty((len(received), len(self.source)), dtype=received.dtype)
        flat[:, self.source] = received.reshape(len(received), -1)
        return flat.reshape(received.shape)


def order_of(seed: int, secret: bytes, rows: int, width: int) -> Order:
    """The order that the sites of a run share."""
    rng = np.random.default_rng(hidden_seed(seed, secret, ORDER))
    columns = [row * width + rng.permutation(width) for row in rng.permutation(rows)]
    return Order(np.concatenate(columns))
