"""Memory of a long run: 300 rounds of a small federation, and how it grows after round 50.

    python benchmarks/memory.py [--rounds 300] [--clients 12] [--hidden 32]

Runs `fuels run`'s own loop with its run folder, and reads the resident memory after every round.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from contextlib import nullcontext
from pathlib import Path

from fuels.config import Engine, Settings, merge
from fuels.federation.loop import Loop, Round
from fuels.runs.run import run
from fuels.storage.run_folder import RunFolder


class Memory:
    """A watcher that notes the resident memory, in MB."""

    def __init__(self) -> None:
        self.megabytes: list[float] = []

    def on_round(self, done: Round) -> None:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                self.megabytes.append(int(line.split()[1]) / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=32)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    changes = {
        "data": {"clients": options.clients},
        "model": {"hidden": options.hidden},
        "training": {"rounds": options.rounds},
    }
    memory = Memory()

    def watch(loop: Loop) -> nullcontext[Memory]:
        return nullcontext(memory)

    with tempfile.TemporaryDirectory() as folder:
        settings = merge(Settings(), changes, "options")
        run(settings, Engine(), RunFolder(Path(folder) / "run"), watch=watch, plots=False)
    early, late = memory.megabytes[49], max(memory.megabytes[50:])
    for number in (1, 50, 100, 200, options.rounds):
        if number <= len(memory.megabytes):
            print(f"round {number}: {memory.megabytes[number - 1]:.1f} MB")
    print(f"largest after round 50 is {100 * (late / early - 1):+.2f} % of round 50")


if __name__ == "__main__":
    main()
