"""Compiled twin of paper/divergence.py: the pairwise Jensen-Shannon divergence.

With s = p + q and d = (p - q) / s, an element adds s f(d) / 4, where

    f(d) = (1 + d) ln(1 + d) + (1 - d) ln(1 - d) = d^2 (1 + d^2 / 6 + d^4 / 15 + ...)

so equal distributions give exactly 0 and nearly equal ones lose no digits, as the difference of
entropies would. For d^2 <= 0.7 a polynomial in d^2 gives f to 2e-7. That covers probabilities less
than 11 times apart; softmaxes of entries in [-1, 1], such as GRU states, hardly exceed it. A chunk
with a larger ratio, or with a zero, takes two logarithms.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import float32, int64, void

from fuels.arrays import Floats32, Integers
from fuels.kernels.jit import compiled
from fuels.kernels.simd import (
    LANES,
    address,
    any_above,
    broadcast,
    greater,
    load,
    ratio,
    split_power,
    total,
)

CHUNK = 16 * LANES  # summed in registers; the sum over chunks is in double precision
TINY = np.float32(1e-30)  # keeps 0 / 0 away: a pair of zeros adds nothing
BLOCK = 16  # distributions that stay in the cache while all others are read

Lanes = Any  # a register; Numba infers its type


def pairwise_jsd(P: Floats32, fresh: Integers, out: Floats32, threads: int = 1) -> None:
    """Blocks of fresh distributions on several threads.

    Every pair is computed in the same way in any block, so the result does not depend on threads.
    """
    count, rows, _ = P.shape
    fresh = np.unique(np.asarray(fresh, dtype=np.int64))
    flat = P.reshape(count, -1)
    missing = -flat.shape[1] % LANES  # zeros up to whole registers add nothing
    flat = np.ascontiguousarray(np.pad(flat, ((0, 0), (0, missing))) if missing else flat)
    rank = np.full(count, -1, dtype=np.int64)
    rank[fresh] = np.arange(fresh.size)
    size = min(BLOCK, max(1, fresh.size // (4 * threads)))  # work for every thread

    def block(first: int) -> None:
        jsd_block(flat, rows, fresh[first : first + size], first, rank, out)

    starts = range(0, fresh.size, size)[::-1]  # later blocks have more pairs: they go first
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(block, starts):
            pass


@compiled()
def _log(x: Lanes) -> Lanes:
    """Natural logarithm to 1e-7; finite at 0, where it is multiplied by 0."""
    power, m = split_power(x)
    m = m - np.float32(1.0)
    p = m * np.float32(-0.0664605899) + np.float32(0.141318648)
    p = p * m + np.float32(-0.173722221)
    p = p * m + np.float32(0.201080336)
    p = p * m + np.float32(-0.249767909)
    p = p * m + np.float32(0.333297646)
    p = p * m + np.float32(-0.500002153)
    p = p * m + np.float32(1.00000015)
    return p * m + power * np.float32(0.693147181)


@compiled()
def _chunk_by_logs(a: int, b: int, start: int, stop: int) -> Lanes:
    """Sum of s f(d) = 2 (p ln(2 p / s) + q ln(2 q / s)), for any p and q."""
    part = broadcast(np.float32(0.0))
    two, tiny = broadcast(np.float32(2.0)), broadcast(TINY)
    for i in range(start, stop, LANES):
        p, q = load(a, i), load(b, i)
        inverse = ratio(two, greater(tiny, p + q))
        part = part + p * _log(p * inverse) + q * _log(q * inverse)
    return part + part


@compiled()
def _divergence(a: int, b: int, size: int) -> float:
    """Sum over size numbers of s f(d)."""
    whole = 0.0
    one, tiny = broadcast(np.float32(1.0)), broadcast(TINY)
    for start in range(0, size, CHUNK):
        stop = min(start + CHUNK, size)
        part = largest = broadcast(np.float32(0.0))
        for i in range(start, stop, LANES):
            p, q = load(a, i), load(b, i)
            difference = p - q
            d = difference * ratio(one, greater(tiny, p + q))
            u = d * d
            largest = greater(largest, u)
            g = u * np.float32(0.257782012) + np.float32(-0.529281199)
            g = g * u + np.float32(0.504338562)
            g = g * u + np.float32(-0.226522923)
            g = g * u + np.float32(0.0887385234)
            g = g * u + np.float32(0.0256903432)
            g = g * u + np.float32(0.0674116984)
            g = g * u + np.float32(0.166645542)
            g = g * u + np.float32(1.00000012)
            part = part + difference * d * g
        if any_above(largest, np.float32(0.7)):
            part = _chunk_by_logs(a, b, start, stop)
        whole += np.float64(total(part))
    return whole


@compiled(void(float32[:, ::1], int64, int64[::1], int64, int64[::1], float32[:, ::1]))
def jsd_block(
    P: np.ndarray,
    rows: int,
    members: np.ndarray,
    first: int,
    rank: np.ndarray,
    out: np.ndarray,
) -> None:
    """Pairs of some fresh distributions (members) with all others, of P [N, rows * width].

    rank [N] numbers the fresh ones and is -1 for the others; the members have the ranks first,
    first + 1, .... A pair of two fresh ones is computed by the one with the higher rank.
    """
    count, size = P.shape
    base = address(P)
    scale = 1.0 / (4.0 * rows)
    for other in range(count):
        for k in range(max(0, rank[other] - first), members.shape[0]):
            i = members[k]
            value = np.float32(0.0)
            if i != other:  # in a fixed order: the same bits whichever is fresh
                low, high = min(i, other), max(i, other)
                whole = _divergence(base + 4 * low * size, base + 4 * high * size, size)
                value = np.float32(whole * scale)
            out[i, other] = value
            out[other, i] = value
