"""One forecast step with the whole mixture: seconds from an hour's values to the next forecasts.

A run of preset best on synthetic Net data is trained for one round (how well does not matter here)
and brought up to the last hours; then hour after hour arrives. A step learns from the hour that has
come, forecasts the next one with every expert and the personal model, and makes the intervals; it
counts all that `forecast_ensemble` does on the panel of the whole history. The median counts.

    python benchmarks/step.py [--clients 1000] [--steps 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from fuels.config import PRESETS, Engine, Settings, merge
from fuels.data.synthetic import synthesise
from fuels.experts.ensemble import forecast_ensemble
from fuels.forecasting.saved_run import SavedRun
from fuels.runs.run import run
from fuels.storage.run_folder import RunFolder
from fuels.training.runtime import set_up

LIMIT = 1.0  # second for 1000 clients


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    panel = synthesise("net", clients=options.clients, seed=0)
    settings = merge(Settings(), {"preset": "best", **PRESETS["best"]}, "preset")
    # One period of test: the mixture has little to catch up with before the steps are timed.
    small = {"training": {"rounds": 1}, "windows": {"split": "50/0/1"}}
    settings = merge(settings, small, "benchmark")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        run(settings, Engine(), RunFolder(folder), panel=panel, plots=False)
        set_up(Engine())
        ensemble = SavedRun.load(folder).ensemble
    assert ensemble is not None
    seconds = []
    for left in range(options.steps, -1, -1):
        end = panel.length - left
        known = replace(panel, values=panel.values[:end])
        begun = time.perf_counter()
        made = forecast_ensemble(ensemble, known)
        seconds.append(time.perf_counter() - begun)
    steps = seconds[1:]  # the first one catches up with the hours before
    experts = len(ensemble.horizons[1].mixture.names)
    print(f"{len(made.ids)} clients, {experts} experts, {panel.length} hours of history")
    middle = statistics.median(steps)
    spread = f"{min(steps):.2f} to {max(steps):.2f}"
    print(f"a step: median {middle:.2f} s, {spread} s ({len(steps)} steps)")
    slow = f"the median is more than {LIMIT:g} second"
    sys.exit(0 if options.clients > 1000 or middle < LIMIT else slow)


if __name__ == "__main__":
    main()
