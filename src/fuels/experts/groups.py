"""Groups of clients: work on a few at a time needs little memory, and threads share the groups."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import torch

from fuels.kernels.dispatch import threads

MOST = 64  # clients in a group

Result = TypeVar("Result")


def by_groups(clients: int, work: Callable[[slice], Result]) -> list[Result]:
    """The results of `work` for each group of clients, in their order.

    The groups do not depend on the number of threads, and so neither do the results.
    """
    groups = -(-clients // MOST)
    bounds = [clients * i // groups for i in range(groups + 1)]
    parts = [slice(*pair) for pair in pairwise(bounds)]
    workers = min(threads(), len(parts))
    if workers == 1:
        return [work(part) for part in parts]
    # Threads inherit how the caller's treats denormal numbers, so they compute the same.
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(work, parts))
