"""The data on which the mixture is chosen and evaluated: real ones, and made-up counts.

Imported by mixture.py, constants.py and intervals.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fuels.arrays import Floats
from fuels.config import Settings, merge
from fuels.data.panel import Panel
from fuels.data.windows import Dataset
from fuels.evaluation.references import references
from fuels.experts.history import History, fill_from_earlier, history_of
from fuels.runs.build import load_dataset

COUNT_CLIENTS, COUNT_DAYS = 16, 62  # of the made-up counts
COUNT_SEEDS, COUNT_CHOICE = (1, 2, 3, 4, 5, 6), (11, 12, 13, 14, 15, 16)  # shown; chosen on
HOLIDAY_PERIODS = 5  # made holidays at the end of a choice window: Sundays again and again


@dataclass(frozen=True)
class Case:
    """One dataset, fitted up to `fit` periods, evaluated on windows of periods."""

    name: str
    data: dict[str, object]
    split: str
    fit: int
    windows: dict[str, tuple[int, int]]
    quiet: float = 0.0  # with made holidays: how much of the traffic is left; 0 makes none
    panel: Panel | None = None  # made-up data, which have no source
    seed: int = 0  # of the clients that are drawn


def cases(folder: Path, choice: bool) -> Iterator[Case]:
    milan = {"source": str(folder / "milan_net_441cells_hourly.npz"), "clients": 100}
    metr: dict[str, object] = {
        "source": str(folder / "metr_la_first10_full_5min.npz"),
        "missing": "0",
        "resample": "1h",
        "how": "mean",
    }
    city = {"Milan": milan} | {
        f"synthetic {kind}": {"source": f"synthetic:{kind}"} for kind in ("net", "call", "sms")
    }
    if choice:
        for name, data in city.items():
            yield Case(name, data, "29/0/11", 29, {"days 30-40": (29, 40)})
        yield Case("METR-LA hourly", metr, "56/0/21", 56, {"days 57-77": (56, 77)})
        for name, data in city.items():
            yield Case(name, data, "29/0/11", 29, {"made holidays": (35, 40)}, quiet=0.8)
        window = {"made holidays": (72, 77)}
        yield Case("METR-LA hourly", metr, "56/0/21", 56, window, quiet=1.0)
        return
    for name, data in city.items():
        windows = {"11-21 Dec": (40, 51), "22 Dec-1 Jan": (51, 62)}
        yield Case(name, data, "40/0/22", 40, windows)
    yield Case("METR-LA hourly", metr, "77/21/21", 77, {"7-27 Jun": (98, 119)})


def count_cases(seeds: Sequence[int], kinds: Sequence[str] = ("sparse", "spiky")) -> Iterator[Case]:
    """Sparse: Poisson counts with a daily cycle, of which 5 % of the hours are left, the others 0.

    Spiky: Poisson counts with the same cycle, and in 1 % of the hours 50 times a Pareto(2.5) draw.
    Busy: negative binomial counts with a strong daily cycle and days of different levels.
    """
    shape = (COUNT_DAYS * 24, COUNT_CLIENTS)
    cycle = np.exp(np.sin(2 * np.pi * np.arange(shape[0]) / 24))[:, None]
    for number, name in enumerate(("sparse", "spiky", "busy")):
        for seed in seeds if name in kinds else ():
            rng = np.random.default_rng([number, seed])
            kept = rng.random(shape)
            if name == "sparse":
                made = rng.poisson(5 * cycle, shape) * np.where(kept < 0.05, 1.0, 0.0)
            elif name == "busy":
                clients = np.exp(rng.normal(0, 0.5, (1, COUNT_CLIENTS)))
                days = np.repeat(np.exp(rng.normal(0, 0.2, (COUNT_DAYS, 1))), 24, axis=0)
                made = rng.negative_binomial(8, 8 / (8 + 15 * cycle**1.8 * clients * days))
            else:
                spikes = np.where(kept < 0.01, 50 * rng.pareto(2.5, shape), 0.0)
                made = rng.poisson(3 * cycle, shape) + spikes
            panel = Panel(
                values=np.asarray(made, dtype=np.float64),
                ids=tuple(f"c{i}" for i in range(COUNT_CLIENTS)),
                start=np.datetime64("2013-11-01", "s"),
                step=np.timedelta64(3600, "s"),
                name=name,
            )
            windows = {f"seed {seed}": (40, COUNT_DAYS)}
            yield Case(name, {}, "40/0/22", 40, windows, panel=panel)


def load(case: Case) -> tuple[Dataset, History]:
    changes = {"data": case.data, "windows": {"split": case.split}, "seed": case.seed}
    dataset = load_dataset(merge(Settings(), changes, case.name), case.panel)
    history = history_of(dataset)
    return dataset, made_holidays(dataset, history, case) if case.quiet else history


def made_holidays(dataset: Dataset, history: History, case: Case) -> History:
    """The last days before the end of the choice window replaced by Sundays, with less traffic."""
    p, end = history.period, max(last for _, last in case.windows.values())
    zero = (dataset.mean / dataset.std)[:, None]  # nothing, on the normalised scale, is -zero
    observed = history.observed.copy()
    days = history.times(0, end * p)[::p].astype("datetime64[D]").astype(np.int64)
    sundays = np.flatnonzero((days + 3) % 7 == 6)[::-1]
    for day, sunday in zip(range(end - HOLIDAY_PERIODS, end), sundays, strict=False):
        source = history.observed[:, sunday * p : (sunday + 1) * p]
        observed[:, day * p : (day + 1) * p] = (source + zero) * case.quiet - zero
    return replace(history, observed=observed, filled=fill_from_earlier(observed, p))


def mean_error(truth: Floats, forecast: Floats) -> float:
    return float(np.nanmean(np.nanmean((truth - forecast) ** 2, axis=1)))


def best_reference(case: Case) -> float:
    """The least error of what an engineer would try in an hour, as in every table of a run."""
    dataset, _ = load(case)
    first, last = dataset.split.part("test")
    truth = np.where(dataset.target[:, first:last], dataset.series[:, first:last], np.nan)
    return min(mean_error(truth, said) for said in references(dataset, "test").values())
