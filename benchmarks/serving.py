"""How long `fuels serve` takes: to store posted values, to forecast again, and to answer.

A run of preset best on synthetic Net data is trained for one round (how well does not matter here).
Then values arrive hour by hour, as posts would bring them, without HTTP in between.

    python benchmarks/serving.py [--clients 100] [--steps 1] [--hours 5]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fuels.config import PRESETS, Engine, Settings, merge
from fuels.data.panel import Panel
from fuels.data.synthetic import synthesise
from fuels.runs.run import run
from fuels.serving import answers
from fuels.serving.live import LiveRun
from fuels.storage.run_folder import RunFolder
from fuels.training.runtime import set_up

DAYS = 48


def cut(panel: Panel, first: int, last: int) -> Panel:
    values, start = panel.values[first:last], panel.times[first]
    return replace(panel, values=values, start=start, coordinates=None)


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--hours", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    set_up(Engine())
    panel, end = synthesise("net", options.clients, DAYS + 2), DAYS * 24
    settings = merge(Settings(), {"preset": "best", **PRESETS["best"]}, "preset")
    settings = merge(settings, {"training": {"rounds": 1}}, "benchmark")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        run(settings, Engine(), RunFolder(folder), panel=cut(panel, 0, end), plots=False)
        live = LiveRun(folder, options.steps, print)
        print(f"first forecast: {seconds(live.refresh):.1f} s")
        taken, made, told = [], [], []
        for step in range(end, end + options.hours):
            new = cut(panel, step, step + 1)
            taken.append(seconds(lambda new=new: live.take(new)))  # type: ignore[misc]
            made.append(seconds(live.refresh))
            told.append(seconds(lambda: answers.forecasts(live)))
        for what, found in (("store", taken), ("forecast", made), ("answer", told)):
            print(f"{what}: {statistics.median(found):.3f} s (median of {len(found)})")


if __name__ == "__main__":
    main()
