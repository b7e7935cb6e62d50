"""FUELS on the Milan data against the bound it must hold: MSE at most 0.056, below the references.

    python benchmarks/milan.py FOLDER/milan_net_441cells_hourly.npz [--rounds 80] [--presets ...]

One line is one literal `fuels run --data FILE --clients 100 --split 40/0/11 --rounds 80 --seed 0`:
100 of the 441 cells, trained to 10 December 2013, tested one hour ahead on 11 to 21 December. With
preset paper it is FUELS as published; with preset best, the default, FUELS among local experts. A
preset takes three to four minutes on two free cores. Ends with status 1 where a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

BOUND = 0.056
REFERENCES = ("last value", "ridge")  # ridge: of each client, on the lags its model sees
FUELS = [sys.executable, "-c", "from fuels.cli import main; main()"]


def scores(data: Path, rounds: int, preset: str) -> dict[str, float]:
    """MSE of FUELS and of the references, in squared standard deviations of each client."""
    with tempfile.TemporaryDirectory() as folder:
        words = f"--clients 100 --split 40/0/11 --rounds {rounds} --seed 0 --preset {preset}"
        out = Path(folder) / "run"
        command = [*FUELS, "run", "--data", str(data), *words.split(), "--out", str(out)]
        subprocess.run([*command, "--no-plots"], check=True, stdout=subprocess.DEVNULL)
        found = json.loads((out / "summary.json").read_text(encoding="utf-8"))["scores"]
    return {name: found[name]["mse"] for name in ("FUELS", *REFERENCES)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--presets", nargs="+", default=["paper", "best"])
    options = parser.parse_args()
    print(f"| MSE, {options.rounds} rounds | FUELS | bound | " + " | ".join(REFERENCES) + " | |")
    print("|---" * (4 + len(REFERENCES)) + "|")
    missed = False
    for preset in options.presets:
        mse = scores(options.data, options.rounds, preset)
        holds = mse["FUELS"] <= min(BOUND, *(mse[name] for name in REFERENCES))
        missed |= not holds
        cells = [f"{mse['FUELS']:.4f}", f"{BOUND}", *(f"{mse[name]:.4f}" for name in REFERENCES)]
        print(f"| --preset {preset} | " + " | ".join(cells), "| holds |" if holds else "| MISSED |")
    sys.exit(missed)


if __name__ == "__main__":
    main()
