"""Gaussian noise on integers, exactly distributed and cryptographically random.

The sampler of Canonne, Kamath and Steinke ("The Discrete Gaussian for Differential Privacy",
NeurIPS 2020, Algorithms 1 to 3): integers and fractions only, so that no floating-point number says
anything about the value below it, with random bits from the operating system (`secrets`).

A standard deviation of 2^16 steps of the grid or more makes the integers' Gaussian
indistinguishable from the continuous one (their densities differ by a factor of
1 + exp(-2 pi^2 sigma^2)), also when the noise is a sum over several sites.
"""

from __future__ import annotations

from math import ceil, sqrt
from secrets import randbelow

import numpy as np

from fuels.arrays import Integers
from fuels.errors import FuelsError

FINE = 2**16  # steps of the grid in one sensitivity


def draw(sigma: int, count: int) -> Integers:
    """`count` independent integers n with probability proportional to exp(-n^2 / (2 sigma^2))."""
    return np.array([_gaussian(sigma) for _ in range(count)], dtype=np.int64)


def share_of_noise(sigma: float, sites: int, colluding: int) -> float:
    """What each of several sites adds, so that all but `colluding` of them add `sigma` together."""
    if not 0 <= colluding < sites:
        raise FuelsError(
            f"noise of {sites} sites cannot tolerate {colluding} colluding ones: at most"
            f" {sites - 1}"
        )
    return sigma / sqrt(sites - colluding)


def grid(sensitivity: float) -> float:
    """The step to which everything in a release is rounded."""
    return sensitivity / FINE


def steps_of_noise(sensitivity: float, multiplier: float, numbers: int) -> int:
    """The standard deviation in steps of the grid, for a sensitivity that includes rounding."""
    return ceil(multiplier * (FINE + sqrt(numbers)))


def _gaussian(sigma: int) -> int:
    t = sigma + 1
    while True:
        y = _laplace(t)
        # Accept with probability exp(-(|y| - sigma^2 / t)^2 / (2 sigma^2)).
        if _happens((abs(y) * t - sigma**2) ** 2, 2 * sigma**2 * t**2):
            return y


def _laplace(t: int) -> int:
    """An integer y with probability proportional to exp(-|y| / t)."""
    while True:
        u = randbelow(t)
        if not _happens(u, t):
            continue
        v = 0
        while _happens(1, 1):
            v += 1
        y = u + t * v
        if randbelow(2):
            return y
        if y:  # -0 would count 0 twice
            return -y


def _happens(numerator: int, denominator: int) -> bool:
    """True with probability exp(-numerator / denominator)."""
    while numerator > denominator:  # exp(-1) for each whole part
        if not _happens_below_one(1, 1):
            return False
        numerator -= denominator
    return _happens_below_one(numerator, denominator)


def _happens_below_one(numerator: int, denominator: int) -> bool:
    k = 1
    while randbelow(denominator * k) < numerator:
        k += 1
    return k % 2 == 1
