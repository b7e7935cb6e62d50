"""A round of local training with the compiled kernels and with their references in plain PyTorch.

Both are stacked: the same groups of clients in one thread, one after the other in every turn. The
table has milliseconds of processor time per client and local epoch (37 batches), the median and the
spread of the turns, and the median of the turns' ratios.

    python benchmarks/plain.py [--clients 20] [--turns 5]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from fuels.kernels.dispatch import use_kernels
from fuels.research.bench.ours import Ours
from fuels.research.bench.work import Sizes

NAMES = {"fused": "compiled kernels", "plain": "plain PyTorch"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    ours = Ours(Sizes(clients=options.clients), threads=1)
    print("| ms of processor time per client and local epoch | median (spread) | ratio |")
    print("|---|---|---|")
    for method in ("fuels", "fedavg"):
        times: dict[str, list[float]] = {choice: [] for choice in NAMES}
        for turn in range(options.turns + 1):
            for choice, found in times.items():
                use_kernels(choice)
                start = time.process_time()
                ours.turn(method, turn + 1)
                found.append(1e3 * (time.process_time() - start) / options.clients)
        # The first turn warms up.
        kept = {choice: np.array(found[1:]) for choice, found in times.items()}
        ratios = np.median(kept["plain"] / kept["fused"])
        for choice, found in kept.items():
            ratio = f"{ratios:.1f}" if choice == "plain" else ""
            span = f"{np.median(found):.1f} ({found.min():.1f} to {found.max():.1f})"
            print(f"| {method}: {NAMES[choice]} | {span} | {ratio} |")


if __name__ == "__main__":
    main()
