"""Many steps ahead from a saved run: the first forecast, which fits experts, and later ones.

A run of preset best on synthetic Net data is trained for one round (how well does not matter here)
for one step ahead. Then `fuels forecast --horizon` is called several times, each in a process of
its own: the first one fits the experts of all other steps ahead and learns from the days since
training, a later one continues from what was saved.

    python benchmarks/horizon.py [--clients 500] [--steps 24] [--calls 2] [--run FOLDER]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

# For 500 clients, 24 steps and 2 cores.
SECONDS, GIGABYTES = 60.0, 1.5  # of the first call
LATER = 10.0  # seconds of a later call


def call(*arguments: str) -> tuple[float, float, float]:
    """Seconds, seconds of processor time, and peak memory in GB of a fuels command."""
    begun = time.perf_counter()
    command = [sys.executable, "-c", "from fuels.cli import main; main()", *arguments]
    process = os.posix_spawn(sys.executable, command, os.environ)
    _, status, used = os.wait4(process, 0)
    if status:
        sys.exit(f"fuels {' '.join(arguments)} failed")
    processor = used.ru_utime + used.ru_stime
    return time.perf_counter() - begun, processor, used.ru_maxrss / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--calls", type=int, default=2)
    parser.add_argument(
        "--run", type=Path, help="a run folder to use a copy of; default: train one"
    )
    options = parser.parse_args()
    slow = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        if options.run is not None:
            shutil.copytree(options.run, folder)
            (folder / "learned.safetensors").unlink(missing_ok=True)
        else:
            train = ("--data", "synthetic:net", "--clients", str(options.clients), "--rounds", "1")
            show("run, one round", *call("run", *train, "--out", str(folder)))
        for i in range(options.calls):
            out = Path(name) / f"{i}.parquet"
            ahead = "forecast", str(folder), "--horizon", str(options.steps), "--out", str(out)
            seconds, processor, memory = call(*ahead)
            show("first forecast" if i == 0 else "later forecast", seconds, processor, memory)
            if i == 0 and (seconds > SECONDS or memory > GIGABYTES):
                slow.append("the first call")
            if i > 0 and seconds > LATER:
                slow.append("a later call")
    if slow:
        sys.exit(f"over its limit of time or memory: {', '.join(slow)}")


def show(what: str, seconds: float, processor: float, memory: float) -> None:
    print(
        f"{what}: {seconds:.1f} s, {processor:.1f} s of processor time, {memory:.2f} GB", flush=True
    )


if __name__ == "__main__":
    main()
