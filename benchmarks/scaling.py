"""How a round grows with the number of clients: time by stage, peak memory, bytes, and exponents.

Each size is a run of its own process: `fuels run --preset paper` for two rounds on synthetic Net
data (62 days by the hour, 888 training samples a client, 11 days of validation, hidden 128). The
figures are those of the second round: the first one has no prototypes to compare yet, and all
clients train in it. --selection is the share alpha of clients in the second. An exponent b is
fitted to cost = a N^b over the sizes from 100 on: below that a fixed cost decides.

    python benchmarks/scaling.py [--sizes 10,100,1000,6575] [--selection 1] [--json]
                                 [--figure scaling.png]
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
STAGES = ("train", "aggregate", "evaluate", "save")
FITTED_FROM = 100


def measure(data: Path, clients: int, selection: float, folder: Path) -> dict[str, float]:
    """One run; seconds of a round by stage, peak memory in MB, bytes of a client and round."""
    out = folder / f"run-{clients}"
    words = [
        *("run", "--preset", "paper", "--data", str(data), "--clients", str(clients)),
        *("--rounds", str(ROUNDS), "--set", f"training.selection={selection}"),
        *("--no-plots", "--out", str(out)),
    ]
    done = subprocess.run(
        [sys.executable, "-c", "from fuels.cli import main; main()", *words],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"fuels {' '.join(words)}: {done.stderr.strip()}")
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    rounds = [json.loads(line) for line in (out / "timings.jsonl").read_text().splitlines()]
    second = next(line for line in rounds if line["round"] == ROUNDS)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    found = {stage: float(second.get(stage, 0.0)) for stage in STAGES}
    found["round"] = sum(found.values())
    found["memory_mb"] = summary["peak_memory_mb"]
    found["bytes_up"] = 4 * lines[-1]["numbers_up"]
    found["bytes_down"] = 4 * lines[-1]["numbers_down"]
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
    heads = (
        "clients",
        *(f"{stage} s" for stage in (*STAGES, "round")),
        "peak MB",
        "up B",
        "down B",
    )
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
        STAGES,
        title="Time of a round by stage",
        subtitle="On 2 cores; both axes are logarithmic.",
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
    parser.add_argument("--selection", type=float, default=1.0)
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
            found[n] = measure(data, n, options.selection, Path(folder))
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
