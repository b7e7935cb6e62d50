"""Seconds that every experiment takes at scale quick, each in a store of its own.

    python benchmarks/quick.py [NAME ...]

Ends with status 1 where one fails or takes more than five minutes on this machine. `metr-la` has no
embedded data: it is left out where FUELS_DATA does not name a folder that holds them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

from fuels.research.experiments.registry import EXPERIMENTS

LIMIT = 300.0
FUELS = [sys.executable, "-c", "from fuels.cli import main; main()"]


def seconds(name: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        words = ["experiment", name, "--scale", "quick", "--out", f"{folder}/out"]
        words += ["--store", f"{folder}/store"]
        begun = time.perf_counter()
        done = subprocess.run([*FUELS, *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"fuels {' '.join(words)}: {done.stderr.strip()}")
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(EXPERIMENTS))
    options = parser.parse_args()
    slow = False
    print("| experiment | seconds |\n|---|---|")
    for name in options.names:
        if name == "metr-la" and "FUELS_DATA" not in os.environ:
            continue
        found = seconds(name)
        slow |= found > LIMIT
        print(f"| {name} | {found:.0f} |", flush=True)
    sys.exit(int(slow))


if __name__ == "__main__":
    main()
