"""Where the time of a training step goes: the compiled stages, and everything around them.

A site of 25 clients at the paper's size goes through rounds in one thread. First as it is: the
thread's time for a round, and how much of it lies in the compiled loop over clients and stages.
Then each stage is called for all clients before the next one, which gives the times of single
stages; the results of those rounds are meaningless, since clients share the memory of one gradient.

    python benchmarks/stages.py [--methods fuels,fedavg] [--turns 5]
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from fuels.kernels import stages
from fuels.research.bench.ours import Ours
from fuels.research.bench.work import Sizes

CLIENTS, BATCHES = 25, 37
Loop = Callable[[NDArray[np.int64], int], None]


class Timer:
    """Stands in for the compiled loop and notes what the thread spends in it, by name."""

    def __init__(self, loop: Loop, apart: bool) -> None:
        self.loop, self.apart = loop, apart
        self.seconds: dict[str, float] = defaultdict(float)

    def __call__(self, found: NDArray[np.int64], clients: int) -> None:
        if not self.apart:
            self._timed("compiled stages", found, clients)
            return
        names = {address: kernel.__name__ for kernel, address in stages._addresses.items()}
        for row in range(len(found)):
            self._timed(names[int(found[row, 0])], found[row : row + 1], clients)

    def _timed(self, name: str, found: NDArray[np.int64], clients: int) -> None:
        start = time.thread_time()
        self.loop(found, clients)
        self.seconds[name] += time.thread_time() - start


def measure(ours: Ours, method: str, turn: int, apart: bool) -> dict[str, float]:
    """Microseconds per client and batch: the whole round, and the parts of it."""
    timer = Timer(stages.call_all, apart)
    with patch.object(stages, "call_all", timer):
        start = time.process_time()  # of the site's one thread, and of the caller that waits
        ours.turn(method, turn + 1)
        whole = time.process_time() - start
    scale = 1e6 / (CLIENTS * BATCHES)
    return {"round": whole * scale} | {name: s * scale for name, s in timer.seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--methods", default="fuels,fedavg")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    ours = Ours(Sizes(clients=CLIENTS), threads=1)
    print("microseconds of processor time per client and batch, least and median of the turns")
    for method in options.methods.split(","):
        for apart in (False, True):
            turns = [measure(ours, method, turn, apart) for turn in range(options.turns + 1)]
            for name in turns[-1]:
                if apart and name == "round":
                    continue
                values = [turn[name] for turn in turns[1:]]
                print(f"{method:8} {name:18} {min(values):6.0f} {np.median(values):6.0f}")


if __name__ == "__main__":
    main()
