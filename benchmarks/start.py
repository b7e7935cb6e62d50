"""From `fuels run` to the line of its first round: seconds, with and without kept machine code.

With no options `fuels run` trains on the embedded data. Code is compiled when the project is set up
(python -m fuels.kernels.jit) and kept on disk; the second way is a first run where nothing was,
with an empty folder for compiled code (NUMBA_CACHE_DIR).

    python benchmarks/start.py [--turns 3]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 10.0  # seconds, with kept code


def seconds_to_first_line(folder: Path, environment: dict[str, str]) -> float:
    """Starts a run, waits for the line of its first round and ends it."""
    words = ("run", "--out", str(folder), "--no-plots")
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", "from fuels.cli import main; main()", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if line.lstrip().startswith("round"):
                return time.perf_counter() - begun
        sys.exit(f"fuels {' '.join(words)} ended before its first round:\n{''.join(said)}")
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=3)
    turns = range(parser.parse_args().turns)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds_to_first_line(folder / "before", {})  # whatever is not compiled yet is now
        kept = [seconds_to_first_line(folder / f"kept-{turn}", {}) for turn in turns]
        empty = [
            seconds_to_first_line(folder / f"empty-{turn}", {"NUMBA_CACHE_DIR": f"{name}/c{turn}"})
            for turn in turns
        ]
    print("| seconds to the first round's line | |\n|---|---|")
    for what, found in (("with kept code", kept), ("nothing compiled yet", empty)):
        print(f"| {what} | {min(found):.1f} to {max(found):.1f} |")
    sys.exit(0 if max(kept) < LIMIT else f"more than {LIMIT:g} seconds")


if __name__ == "__main__":
    main()
