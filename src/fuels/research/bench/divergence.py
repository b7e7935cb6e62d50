"""The comparison of prototypes: our kernel for all pairs, scipy for one pair after another.

Prototypes are given as distributions, as the server has them after its softmax. scipy gets one call
for all 24 rows of a pair, in single precision, which is its fastest; what it gives is the square
root of the divergence of each row. Our kernel has a shorter way for distributions that are not far
apart, so the drawn entries are spread over all of [-1, 1], as far as GRU states can be.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import jensenshannon

from fuels.paper.divergence import pairwise_jsd
from fuels.paper.similarity import softmax_rows
from fuels.research.bench.work import PERIOD, Sizes


class Divergences:
    """Microseconds per pair of prototypes [24, 2 hidden]."""

    def __init__(self, sizes: Sizes, threads: int) -> None:
        rng = np.random.default_rng([sizes.members, sizes.hidden])
        shape = (sizes.members, PERIOD, 2 * sizes.hidden)
        drawn = rng.uniform(-1, 1, shape).astype(np.float32)
        self.P = softmax_rows(drawn)
        self.threads, self.count = threads, sizes.members
        self.table = np.zeros((sizes.members, sizes.members), dtype=np.float32)
        first = rng.integers(0, sizes.members, sizes.pairs)
        second = (first + rng.integers(1, sizes.members, sizes.pairs)) % sizes.members
        self.pairs = np.stack([first, second], axis=1)

    def ours(self) -> float:
        start = time.perf_counter()
        pairwise_jsd(self.P, np.arange(self.count), self.table, self.threads)
        return 1e6 * (time.perf_counter() - start) / (self.count * (self.count - 1) / 2)

    def scipy(self) -> float:
        start = time.perf_counter()
        for i, j in self.pairs:
            self.by_scipy(self.P[i], self.P[j])
        return 1e6 * (time.perf_counter() - start) / len(self.pairs)

    @staticmethod
    def by_scipy(p: NDArray[np.floating], q: NDArray[np.floating]) -> float:
        return float(np.mean(jensenshannon(p, q, axis=1) ** 2))
