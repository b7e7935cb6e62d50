"""(e) The floor: the matrix products of a client-epoch and nothing else, at the best rate found.

A batch needs twelve products of the recurrent weights [3 hidden, hidden] with the rows of a state:
two branches, two steps that have a state (the first one starts from 0), each forward, for its
gradient, and for the weights'. Everything else (input weights, decoder, losses, Adam) is free here.
Three products are tried: the tile of our kernels with its operands in the nearest cache, torch.bmm
on operands of that size, and torch.mm on large square matrices, which is the processor at its best.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fuels.arrays import Floats32
from fuels.kernels.jit import compiled
from fuels.kernels.matmul import multiply
from fuels.kernels.simd import TILE, address

PRODUCTS = 12  # two branches x two steps with a state x (forward, its gradient, weight gradient)
LARGE = 1024  # rows and columns of the large product

Turn = Callable[[], float]  # milliseconds per client-epoch


def one_core() -> None:
    torch.set_num_threads(1)  # counts for the thread that calls it


POOL = ThreadPoolExecutor(64, initializer=one_core)  # threads last, and with them their memory


def on_threads(jobs: Sequence[Callable[[], object]]) -> float:
    """Seconds until all jobs are done, each on a thread of its own."""
    start = time.perf_counter()
    for done in [POOL.submit(job) for job in jobs]:
        done.result()
    return time.perf_counter() - start


def epoch_flop(rows: int, batches: int, hidden: int) -> float:
    """Operations of the products of a client-epoch."""
    return 2.0 * PRODUCTS * batches * rows * hidden * 3 * hidden


@compiled()
def _products(W: Floats32, h: Floats32, out: Floats32, repeats: int) -> None:
    """[3H, H] x [H, rows], operands in the nearest cache."""
    gates, hidden = W.shape
    rows = h.shape[1]
    for _ in range(repeats):
        for gate in range(0, gates, TILE):
            multiply(
                address(W) + 4 * gate * hidden, hidden, 1, min(TILE, gates - gate),
                address(h), rows, hidden, address(out) + 4 * gate * rows, rows, rows, False,
            )  # fmt: skip


def turns(jobs: Sequence[Callable[[], object]], epochs: float) -> Turn:
    """Turns of these jobs, which do so many client-epochs together."""
    return lambda: 1e3 * on_threads(jobs) / epochs


def own_floor(threads: int, rows: int, batches: int, hidden: int = 128, size: int = 4) -> Turn:
    """By the kernels' own product; a turn does the epochs of `size` clients on each thread."""
    padded = -(-rows // 16) * 16
    shapes = ((3 * hidden, hidden), (hidden, padded), (3 * hidden, padded))
    operands = [tuple(np.ones(shape, dtype=np.float32) for shape in shapes) for _ in range(threads)]
    repeats = PRODUCTS * batches * size
    jobs = [partial(_products, W, h, out, repeats) for W, h, out in operands]
    return turns(jobs, size * threads)


def bmm_floor(threads: int, rows: int, batches: int, hidden: int = 128, size: int = 8) -> Turn:
    """By torch.bmm on `size` clients at a time on each thread."""

    def job(h: Tensor, W: Tensor) -> None:
        out = torch.empty(size, rows, 3 * hidden)
        for _ in range(PRODUCTS * batches):
            torch.bmm(h, W, out=out)

    shapes = ((size, rows, hidden), (size, hidden, 3 * hidden))
    jobs = [partial(job, *(torch.ones(shape) for shape in shapes)) for _ in range(threads)]
    return turns(jobs, size * threads)


def large_floor(threads: int, rows: int, batches: int, hidden: int = 128, repeats: int = 8) -> Turn:
    """At the rate of a large product on each thread."""

    def job(matrix: Tensor) -> None:
        out = torch.empty(LARGE, LARGE)
        for _ in range(repeats):
            torch.mm(matrix, matrix, out=out)

    jobs = [partial(job, torch.ones(LARGE, LARGE)) for _ in range(threads)]
    flop = 2.0 * LARGE**3 * repeats * threads
    return turns(jobs, flop / epoch_flop(rows, batches, hidden))


FLOORS = {"own product": own_floor, "torch.bmm": bmm_floor, "large torch.mm": large_floor}
