"""Pairwise Jensen-Shannon divergence (placeholder in plain numpy until the kernel is in place)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def pairwise_jsd(
    P: NDArray[np.float32], fresh: NDArray[np.int64], out: NDArray[np.float32], threads: int = 1
) -> None:
    Q = P.astype(np.float64)

    def entropy(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return -(x * np.log(np.maximum(x, 1e-300))).sum(-1).mean(-1)

    own = entropy(Q)
    for i in fresh:
        row = entropy((Q[i] + Q) / 2) - (own + own[i]) / 2
        row[i] = 0
        out[i] = out[:, i] = row
