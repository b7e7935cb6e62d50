"""What the personal model should see: the variants from which preset best was chosen.

    python benchmarks/inputs.py --data-folder DIR [--clients 30] [--rounds 40] [--only NAME]

DIR holds milan_net_441cells_hourly.npz. Every variant is FUELS trained on days 1-29 and scored on
days 30-40 (30 November to 10 December), as they are and with made holidays: the last 5 days
replaced by Sundays with 80 % of the traffic, on which the calendar is wrong. No test day is looked
at. docs/evidence/forecasts.md shows the table.
"""

from __future__ import annotations

import argparse
import dataclasses
import warnings
from pathlib import Path

import numpy as np

from fuels.config import Engine, Settings, merge
from fuels.data.calendar import weekday
from fuels.data.windows import Dataset
from fuels.evaluation.scores import errors
from fuels.runs.build import build

QUIET, MADE_DAYS = 0.8, 5
FAST = {"optimiser": "adam", "learning_rate": 0.002}
WEEKLY, DAILY = "1-4/1p,1p+1,2p,7p", "1-4/1p,1p+1,2p"
CHANGE = {"target": "change"}
VARIANTS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "paper": ({}, {}),
    "weekly lags, value": ({"lags": WEEKLY, "calendar": ["time", "free"]}, FAST),
    "weekly lags, change": ({"lags": WEEKLY, "calendar": ["time", "free"], **CHANGE}, FAST),
    "daily lags, change, no calendar": ({"lags": DAILY, **CHANGE}, FAST),
    "daily lags, change, time": ({"lags": DAILY, "calendar": ["time"], **CHANGE}, FAST),
    "daily lags, change, time and free": (
        {"lags": DAILY, "calendar": ["time", "free"], **CHANGE},
        FAST,
    ),
    **{
        f"the same, doubt {doubt}": (
            {"lags": DAILY, "calendar": ["time", "free"], "doubt": doubt, **CHANGE},
            FAST,
        )
        for doubt in (0.2, 0.35, 0.5)
    },
    "1-6/1p-1,1p,1p+1,2p, doubt 0.35 (chosen)": (
        {"lags": "1-6/1p-1,1p,1p+1,2p", "calendar": ["time", "free"], "doubt": 0.35, **CHANGE},
        FAST,
    ),
}


def made_holidays(dataset: Dataset) -> Dataset:
    """The last days replaced by Sundays, newest first, with less traffic."""
    p, days = dataset.period, dataset.split.test // dataset.period
    zero = (dataset.mean / dataset.std)[:, None]  # nothing, on the normalised scale, is -zero
    local = dataset.panel.start + dataset.panel.standard_offset
    sundays = [
        day
        for day in reversed(range(days))
        if weekday(local + (np.array([day * p]) - dataset.offset) * dataset.panel.step)[0] == 6
    ]
    series = dataset.series.copy()
    for day, sunday in zip(range(days - MADE_DAYS, days), sundays, strict=False):
        source = dataset.series[:, sunday * p : (sunday + 1) * p]
        series[:, day * p : (day + 1) * p] = (source + zero) * QUIET - zero
    return dataclasses.replace(dataset, series=series)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-folder", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", default="", help="one variant by its name")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    marks = [options.rounds // 2, options.rounds]
    heads = [f"{where}, {n} rounds" for n in marks for where in ("days 30-40", "made holidays")]
    print("| variant | " + " | ".join(heads) + " |")
    print("|---" * (1 + len(heads)) + "|")
    for name, (windows, training) in VARIANTS.items():
        if options.only not in ("", name):
            continue
        changes = {
            "data": {
                "source": str(options.data_folder / "milan_net_441cells_hourly.npz"),
                "clients": options.clients,
            },
            "windows": {"split": "29/0/11", **windows},
            "training": {"rounds": options.rounds, **training},
        }
        figures = []
        with build(merge(Settings(), changes, name), Engine()) as job:
            for number in range(1, options.rounds + 1):
                job.loop.step()
                if number in marks:
                    whole = job.dataset
                    first, last = whole.split.part("test")
                    for data, start in (
                        (whole, first),
                        (made_holidays(whole), last - MADE_DAYS * whole.period),
                    ):
                        job.site.dataset = data
                        models = job.site.models(job.loop.final_download())
                        said = job.site.forecast(models, "test")[:, start - first :]
                        truth, target = data.series[:, start:last], data.target[:, start:last]
                        figures.append(float(np.nanmean(errors(truth, said, target)[0])))
                    job.site.dataset = whole
        print(f"| {name} | " + " | ".join(f"{figure:.4f}" for figure in figures) + " |", flush=True)


if __name__ == "__main__":
    main()
