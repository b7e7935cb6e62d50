"""How a round grows with the number of clients: time by stage, peak memory, bytes, and exponents.

Each size is a run of its own process: `fuels run --preset paper` for two rounds with all clients on
synthetic Net data (62 days by the hour, 888 training samples a client, hidden 128). What a stage
took is divided by the rounds. An exponent b is fitted to cost = a N^b over the sizes from 100 on:
below that a fixed cost decides.

    python benchmarks/scaling.py [--sizes 10,100,1000,6575] [--json] [--figure scaling.png]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fuels.data.synthetic import synthesise
from fuels.data.writers import write_panel
from fuels.report.style import figure, legend, save

ROUNDS = 2
STAGES = ("train", "aggregate", "save")
FITTED_FROM = 100


def measure(data: Path, clients: int, folder: Path) -> dict[str, float]:
    """One run; seconds of a round by stage, peak memory in MB, bytes of a client and round."""
    out = folder / f"run-{clients}"
    words = [
        *("run", "--preset", "paper", "--data", str(data), "--clients", str(clients)),
        *("--split", "40/0/11", "--rounds", str(ROUNDS), "--no-plots", "--out", str(out)),
    ]
    done = subprocess.run(
        [sys.executable, "-c", "from fuels.cli import main; main()", *words],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"fuels {' '.join(words)}: {done.stderr.strip()}")
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    found = {stage: summary["seconds"].get(stage, 0.0) / ROUNDS for stage in STAGES}
    found["round"] = sum(found.values())
    found["memory_mb"] = summary["peak_memory_mb"]
    found["bytes_up"] = summary["totals"]["bytes_up"] / ROUNDS / clients
    found["bytes_down"] = summary["totals"]["bytes_down"] / (ROUNDS - 1) / clients
    return found


def exponent(sizes: list[int], costs: list[float]) -> float:
    """b of cost = a N^b by least squares in logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def fit(found: dict[int, dict[str, float]]) -> dict[str, float]:
    sizes = [n for n in found if n >= FITTED_FROM]
    if len(sizes) < 2:
        return {}
    names = (*STAGES, "round", "memory_mb")
    return {name: exponent(sizes, [found[n][name] for n in sizes]) for name in names}


def table(found: dict[int, dict[str, float]], exponents: dict[str, float]) -> str:
    heads = ("clients", "train s", "aggregate s", "save s", "round s", "peak MB", "up B", "down B")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for n, row in found.items():
        seconds = " | ".join(f"{row[name]:.3g}" for name in (*STAGES, "round"))
        up, down = round(row["bytes_up"]), round(row["bytes_down"])
        lines.append(f"| {n} | {seconds} | {row['memory_mb']:.0f} | {up} | {down} |")
    if exponents:
        said = " | ".join(f"{exponents[name]:.2f}" for name in (*STAGES, "round", "memory_mb"))
        lines.append(f"| exponent | {said} | 0 | 0 |")
    return "\n".join(lines)


def draw(found: dict[int, dict[str, float]], path: Path) -> None:
    picture, [[axes]] = figure(
        *(1, 1, STAGES),
        title="Time of a round by stage",
        subtitle="All clients train, on 2 cores; both axes are logarithmic.",
        footer="benchmarks/scaling.py, synthetic Net data",
    )
    for stage in STAGES:
        axes.plot(list(found), [row[stage] for row in found.values()], marker="o", label=stage)
    axes.set(xscale="log", yscale="log", xlabel="clients", ylabel="seconds of a round")
    legend(picture, axes)
    save(picture, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", default="10,100,1000,6575")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    sizes = sorted(int(word) for word in options.sizes.split(","))
    found: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "net.npz"
        # Some more than are needed: near-empty clients may be left out.
        write_panel(synthesise("net", clients=sizes[-1] + 200, seed=0), data)
        for n in sizes:
            found[n] = measure(data, n, Path(folder))
            print(f"{n} clients: {found[n]['round']:.3g} s a round", file=sys.stderr, flush=True)
    exponents = fit(found)
    if options.figure:
        draw(found, options.figure)
    if options.json:
        print(json.dumps({"sizes": found, "exponents": exponents}, indent=2))
    else:
        print(table(found, exponents))


if __name__ == "__main__":
    main()
