"""Other ways of sharing, which did not help: docs/explanation/sharing.md.

    python benchmarks/carriers.py --data-folder DIR --part groups [--groups 4] [--seeds 11,12]
    python benchmarks/carriers.py --data-folder DIR --part input [--rounds 40] [--seeds 11,12]

On days before any test day, of Milan and, for groups, of the embedded data. "groups" adds up
the statistics within groups of clients whose mean days are alike, and shows the MSE of the mixture
of local and shared experts against that with the statistics of all. "input" gives the GRUs of
preset best the live mean of all clients in addition, and shows the MSE of the personal models and
of the whole mixture.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from mixture_cases import Case, cases, load, mean_error

from fuels.arrays import Floats
from fuels.config import PRESETS, Engine, Settings, merge
from fuels.data import sample
from fuels.data.calendar import Calendar, encoder_clock_width
from fuels.experts.history import History
from fuels.experts.horizon import fit_horizon
from fuels.experts.shared import SharedExperts
from fuels.runs.run import run
from fuels.sharing.sums import LocalSums
from fuels.storage.run_folder import RunFolder

CLIENTS = 100  # for groups
FEW = 30  # whose models are trained


def choice(folder: Path) -> list[Case]:
    """Ordinary days before any test day; METR-LA has too few clients for groups."""
    return [c for c in cases(folder, choice=True) if not c.quiet and "METR" not in c.name]


# -- statistics within groups ------------------------------------------------------------------


def alike(history: History, end: int, groups: int) -> list[Floats]:
    """Groups of equal size along the first principal component of the clients' mean days."""
    days = history.observed[:, : end // history.period * history.period]
    mean = np.nanmean(days.reshape(len(days), -1, history.period), axis=1)
    centred = mean - mean.mean(axis=0)
    place = centred @ np.linalg.svd(centred, full_matrices=False)[2][0]
    return [np.sort(part) for part in np.array_split(np.argsort(place), groups)]


def error(case: Case, groups: int) -> float:
    """MSE of the mixture of experts, with statistics within groups."""
    dataset, history = load(case)
    end = case.fit * history.period
    [(first, last)] = case.windows.values()
    shared = SharedExperts(LocalSums())
    history = shared.with_live_mean(history, dataset.ids)  # of all
    made = np.full((history.clients, (last - first) * history.period), np.nan)
    for rows in alike(history, end, groups):
        made[rows] = forecasts(history, rows, [dataset.ids[i] for i in rows], end, last)
    steps = slice(first * history.period, last * history.period)
    truth = np.where(dataset.target[:, steps], history.observed[:, steps], np.nan)
    return mean_error(truth, made)


def forecasts(history: History, rows: Floats, ids: Sequence[str], end: int, last: int) -> Floats:
    """Forecasts of some clients, whose statistics are added up."""
    own, shared = history.take(rows), SharedExperts(LocalSums())
    online = fit_horizon(
        shared.pool,
        own,
        end,
        pooled=lambda until: shared.coefficients(own, ids, until),
        keep=False,
    )
    return online.run(own, end, last * history.period).mixed.combined


def show_groups(folder: Path, groups: int, seeds: Sequence[int]) -> None:
    for case in choice(folder):
        for seed in seeds:
            drawn = replace(case, data=case.data | {"clients": CLIENTS}, seed=seed)
            one, several = error(drawn, 1), error(drawn, groups)
            change = 100 * (several / one - 1)
            print(
                f"{case.name}, seed {seed}: {one:.5f}, {groups} groups {change:+.2f} %", flush=True
            )


# -- the live mean as an input of the GRUs -----------------------------------------------------


def news(history: History) -> Floats:
    """What the mean of all clients says about each step, from the values before it, [step, 4]."""
    mean = np.nanmean(history.filled, axis=0)
    day = history.period

    def before(lag: int) -> Floats:
        return np.concatenate([np.full(lag, np.nan), mean[:-lag]])

    columns = [
        before(1),
        before(1) - before(2),
        before(day) - before(day + 1),
        before(1) - before(day + 1),
    ]
    return np.nan_to_num(np.stack(columns, axis=1))


def with_news(history: History) -> Any:
    """A patch: the encoder reads the news besides the calendar."""
    rows, usual = news(history), Calendar.encoder_columns

    def columns(
        self: Calendar, names: Sequence[str], times: Any, phase: Any, period: int
    ) -> Floats:
        step = np.clip((times - history.start) // history.step, 0, len(rows) - 1)
        return np.concatenate([usual(self, names, times, phase, period), rows[step]], axis=1)

    width = rows.shape[1]
    patches = mock.patch.multiple(
        sample, encoder_clock_width=lambda names: encoder_clock_width(names) + width
    )
    return patches, mock.patch.object(Calendar, "encoder_columns", columns)


def trained(case: Case, rounds: int) -> dict[str, float]:
    """MSE of a run of preset best, by the rows of its table."""
    settings = merge(Settings(), {"preset": "best", **PRESETS["best"]}, "preset")
    changes = {
        "data": {**case.data, "implausible": "keep"},
        "windows": {"split": case.split},
        "training": {"rounds": rounds},
        "seed": case.seed,
    }
    with tempfile.TemporaryDirectory() as folder:
        target = RunFolder(Path(folder) / "run")
        run(merge(settings, changes, case.name), Engine(threads=1), target, plots=False)
        summary = json.loads((target.path / "summary.json").read_text())
    return {name: float(row["mse"]) for name, row in summary["scores"].items()}


def show_input(folder: Path, rounds: int, seeds: Sequence[int]) -> None:
    case = choice(folder)[0]
    for seed in seeds:
        drawn = replace(case, data=case.data | {"clients": FEW}, seed=seed)
        plain = trained(drawn, rounds)
        inputs, columns = with_news(load(drawn)[1])
        with inputs, columns:
            more = trained(drawn, rounds)
        for name in list(plain)[:2]:
            change = 100 * (more[name] / plain[name] - 1)
            print(
                f"{case.name}, seed {seed}, {name}: {plain[name]:.5f}, {change:+.2f} %", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-folder", type=Path, required=True)
    parser.add_argument("--part", choices=("groups", "input"), required=True)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", default="11,12", help="of the clients that are drawn")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    if options.part == "groups":
        show_groups(options.data_folder, options.groups, seeds)
    else:
        show_input(options.data_folder, options.rounds, seeds)


if __name__ == "__main__":
    main()
