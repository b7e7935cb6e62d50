"""Pairwise Jensen-Shannon divergence of prototypes, for the pairs that changed.

The work is pairs x rows x width, 21.6 million x 6144 for 6575 prototypes, so the compiled twin
(kernels/divergence.py) does it on several threads.
"""

from __future__ import annotations

import numpy as np

from fuels.arrays import Floats32, Integers
from fuels.kernels.checks import check_divergence
from fuels.kernels.dispatch import has_twin


@has_twin("fuels.kernels.divergence", check_divergence)
def pairwise_jsd(P: Floats32, fresh: Integers, out: Floats32, threads: int = 1) -> None:
    """Update out [N, N] for every pair with a member in `fresh`; other entries stay.

    Each row of P [N, rows, width] is a distribution. The divergence of two members is the mean over
    their rows, in nats; it is 0 on the diagonal.
    """
    count, rows, width = P.shape
    step = max(1, 2**18 // (rows * width))  # some 16 MB at a time, in double precision
    for i in fresh:
        p = P[i].astype(np.float64)
        for start in range(0, count, step):
            q = P[start : start + step].astype(np.float64)
            middle = np.maximum(p + q, 1e-300) / 2
            with np.errstate(divide="ignore", invalid="ignore"):
                left = np.where(p > 0, p * np.log(p / middle), 0.0)
                right = np.where(q > 0, q * np.log(q / middle), 0.0)
            values = (left + right).sum(axis=(1, 2)) / (2 * rows)
            out[i, start : start + step] = out[start : start + step, i] = values
        out[i, i] = 0.0
