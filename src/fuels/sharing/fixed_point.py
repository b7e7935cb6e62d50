"""Numbers as integers modulo 2^64, so that masks can be added to them and cancel exactly.

A number x becomes round(x * 2^32), in two's complement. Each client's number is rounded once, by
at most 2^-33, and integers are added exactly: a total does not depend on how clients are divided
over sites, and differs from the exact one by at most 2^-33 for each client.

A total must stay within +-2^31, or it would wrap around. So each of `sites` sites may contribute at
most 2^30 / sites, which leaves half of the range for noise.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats
from fuels.errors import FuelsError

Words = NDArray[np.uint64]

FRACTION_BITS = 32
SCALE = 2.0**FRACTION_BITS
LARGEST = 2.0**30  # that all sites together may contribute to one number of a sum


def to_words(contributions: Iterable[Floats], sites: int, what: str) -> Words:
    """The sum of some clients' contributions as integers, for a total over `sites` sites.

    Refuses numbers that are not finite, and numbers so large that a total could wrap around.
    """
    total: Words | None = None
    size: Floats | None = None
    for values in contributions:
        if not np.isfinite(values).all():
            raise FuelsError(f"{what}: a contribution is not finite")
        size = np.abs(values) if size is None else size + np.abs(values)
        if size.max(initial=0.0) > LARGEST / sites:  # before the conversion, which would wrap
            raise FuelsError(
                f"{what}: a contribution exceeds {LARGEST / sites:g}, the most that each of"
                f" {sites} sites may add: the total could wrap around"
            )
        words = np.rint(values * SCALE).astype(np.int64).view(np.uint64)
        total = words if total is None else total + words
    if total is None:
        raise FuelsError(f"{what}: there is nothing to add up")
    return total


def from_words(words: Words) -> Floats:
    """The numbers behind integers."""
    return words.view(np.int64).astype(np.float64) / SCALE
