"""Random numbers that depend on their purpose, never on earlier draws.

Every draw comes from a generator derived from (seed, purpose, client, round, ...). A client's
numbers are therefore the same in any site, thread, process or order, and after a resume.
"""

from __future__ import annotations

import hashlib

import numpy as np

SELECTION, AUGMENTATION, FILTER, NOISE, LATE, WEIGHTS, DOUBT, SUMS, TRIAL, HIDDEN = range(1, 11)
GROUPS = 11


def client_key(client: str) -> int:
    """A number that represents a client's id."""
    return int.from_bytes(hashlib.blake2b(client.encode(), digest_size=8).digest(), "big")


def generator(seed: int, purpose: int, *keys: int | str) -> np.random.Generator:
    """The generator of one purpose; a text key is the id of a client, or the name of a sum."""
    numbers = [client_key(key) if isinstance(key, str) else key for key in keys]
    return np.random.default_rng([seed, purpose, *numbers])
