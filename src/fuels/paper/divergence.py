"""Pairwise Jensen-Shannon divergence of many sets of distributions, for the pairs that changed.

The work is pairs x rows x width: 21.6 million x 6144 for 6575 prototypes. It runs in a compiled
kernel, a block of fresh distributions at a time, on several threads; every pair is computed in the
same way whatever the blocks, so the result does not depend on the threads. Where the kernel is not
available numpy does the same, in blocks.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.kernels.dispatch import kernels

Floats = NDArray[np.float32]
Places = NDArray[np.int64]


def pairwise_jsd(P: Floats, fresh: Places, out: Floats, threads: int = 1) -> None:
    """Renew out [N, N] for every pair with a member in fresh; other entries are left alone.

    P [N, rows, width] holds a distribution in each row. The divergence of two members is the mean
    over their rows, in nats; 0 on the diagonal.
    """
    if P.ndim != 3 or P.dtype != np.float32 or min(P.shape) < 1:
        raise FuelsError(
            f"JSD: distributions of shape {P.shape} and type {P.dtype} do not fit; "
            "float32 [members, rows, width] is needed"
        )
    count, rows, _ = P.shape
    if out.shape != (count, count) or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise FuelsError(f"JSD: the result must be contiguous float32 [{count}, {count}]")
    fresh = np.unique(np.asarray(fresh, dtype=np.int64))
    if fresh.size == 0:
        return
    if fresh[0] < 0 or fresh[-1] >= count:
        raise FuelsError(f"JSD: fresh members must lie in 0..{count - 1}")
    compiled = kernels("fuels.kernels.divergence")
    if compiled is None:
        _plain(P, fresh, out)
        return
    flat = _whole_registers(P.reshape(count, -1), compiled.LANES)
    rank = np.full(count, -1, dtype=np.int64)
    rank[fresh] = np.arange(fresh.size)
    size = min(compiled.BLOCK, max(1, fresh.size // (4 * threads)))  # work for every thread

    def block(first: int) -> None:
        members = fresh[first : first + size]
        compiled.divergences(flat, rows, members, first, rank, out)

    starts = range(0, fresh.size, size)[::-1]  # the later blocks have more pairs: they go first
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(block, starts):
            pass


def _whole_registers(flat: Floats, lanes: int) -> Floats:
    """The numbers of each member, filled up with zeros (which add nothing) to whole registers."""
    missing = -flat.shape[1] % lanes
    return np.ascontiguousarray(np.pad(flat, ((0, 0), (0, missing))) if missing else flat)


def _plain(P: Floats, fresh: Places, out: Floats) -> None:
    """The same in numpy and float64, with some 16 MB of memory per block."""
    count, rows, width = P.shape
    step = max(1, 2**18 // (rows * width))
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
