"""Compiled kernels against plain torch operators: the final MSE of whole runs, seed by seed.

    python benchmarks/accuracy.py FOLDER/milan_net_441cells_hourly.npz [--clients 30] [--rounds 80]

FUELS, preset paper, trained to day 40 and tested on the eleven days after, with
engine.kernels = fused and = plain. Ends with status 1 where the means over the seeds differ by more
than 1 %.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

LIMIT = 0.01
FUELS = [sys.executable, "-c", "from fuels.cli import main; main()"]


def mse(kernels: str, data: Path, clients: int, rounds: int, seed: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = f"--clients {clients} --split 40/0/11 --rounds {rounds} --seed {seed}"
        command = [*FUELS, "run", "--preset", "paper", "--data", str(data), *words.split()]
        subprocess.run(
            [*command, "--no-plots", "--set", f"engine.kernels={kernels}", "--out", str(out)],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    return float(summary["scores"]["FUELS"]["mse"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    size = (options.data, options.clients, options.rounds)
    print(f"| MSE, {options.clients} clients, {options.rounds} rounds | kernels | plain | apart |")
    print("|---|---|---|---|")
    found = []
    for seed in options.seeds:
        pair = [mse(kernels, *size, seed) for kernels in ("fused", "plain")]
        found.append(pair)
        apart = 100 * (pair[0] / pair[1] - 1)
        print(f"| seed {seed} | {pair[0]:.5f} | {pair[1]:.5f} | {apart:+.3f} % |", flush=True)
    fused, plain = np.mean(found, axis=0)
    change = fused / plain - 1
    print(f"| mean | {fused:.5f} | {plain:.5f} | {100 * change:+.3f} % |")
    sys.exit(int(abs(change) > LIMIT))


if __name__ == "__main__":
    main()
