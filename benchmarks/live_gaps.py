"""What missing steps of the live mean cost in the last week: estimated, left missing, none at all.

The sums of randomly chosen steps of the last week are missing. Errors are those of the mixture one
step ahead, on z-scores, of models that are not trained: the experts do the forecasting.

    python benchmarks/live_gaps.py --data FILE [--clients 60] [--missing 0.38] [--split 30/0/7]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fuels.arrays import Floats
from fuels.config import PRESETS, Engine, Settings, merge
from fuels.data.loading import load_panel
from fuels.experts.ensemble import new_ensemble
from fuels.experts.history import history_of
from fuels.runs.build import build, kept_parameters
from fuels.sharing.live_mean import estimated


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--data", required=True)
    options.add_argument("--clients", type=int, default=60, help="spread over those of the data")
    options.add_argument("--missing", type=float, default=0.38, help="share of the steps")
    options.add_argument("--split", default="30/0/7", help="days of the parts")
    chosen = options.parse_args()
    best = merge(Settings(), {"preset": "best", **PRESETS["best"]}, "benchmark")
    changes = {
        "data": {"source": chosen.data},
        "windows": {"split": chosen.split},
        "model": {"hidden": 4},
    }
    settings = merge(best, changes, "benchmark")
    panel = load_panel(settings)
    few = min(chosen.clients, len(panel.ids))
    panel = panel.take(np.linspace(0, len(panel.ids) - 1, few).astype(np.int64))
    with build(settings, Engine(threads=1), panel) as job:
        models = kept_parameters(job, job.loop.final_download())
        history, end = history_of(job.dataset), job.dataset.split.train
        sharing = job.settings.sharing
    week = history.week
    missing = np.zeros(history.length, dtype=bool)
    missing[-week:] = np.random.default_rng(1).random(week) < chosen.missing

    def error(change: Callable[[Floats], Floats]) -> float:
        ensemble = new_ensemble(models, history, end, title="FUELS", sharing=sharing)
        seen = ensemble.with_live_mean(history)
        assert seen.live is not None
        backtest = ensemble.run(replace(seen, live=change(seen.live.copy())))
        assert backtest is not None
        missed = backtest.mixed.combined[:, -week:] - history.observed[:, -week:]
        return float(np.nanmean(missed**2))

    def gaps(live: Floats) -> Floats:
        live[:, missing] = np.nan
        return live

    def none(live: Floats) -> Floats:
        live[:, -week:] = np.nan
        return live

    whole = error(lambda live: live)
    print(
        f"{few} clients, {missing.sum()} of {week} steps missing; MSE with every mean {whole:.5f}"
    )
    for name, change in {
        "missing means estimated": lambda live: estimated(gaps(live), history.period),
        "missing means left missing": gaps,
        "no mean at all": none,
    }.items():
        print(f"{name}: {error(change) / whole - 1:+.2%}", flush=True)


if __name__ == "__main__":
    main()
