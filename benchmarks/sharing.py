"""What shared sums are worth: experts only, against nothing shared (docs/explanation/sharing.md).

    python benchmarks/sharing.py --data-folder DIR [--parts known,newcomers,random]
    python benchmarks/sharing.py --data-folder DIR --test
    python benchmarks/sharing.py --data-folder DIR --draws 3 --blend ONLY=0,NEAR=0.9,PULL=168
    python benchmarks/sharing.py --run RUN

Each line has the MSE of the local experts (nothing shared), the change with shared sums, the share
of clients that improve, and paired Wilcoxon tests over clients and over days; newcomers and several
draws of clients are pooled over the seeds. Parts: `known` has clients with the whole history,
`newcomers` half of 30 clients with a short one, `random` independent series with nothing to share.
Errors of newcomers are in standard deviations of their whole training part.

--draws takes several draws of newcomers of all data, not only of Milan. --blend changes constants
of experts/blend.py, to compare designs; --shrunk-day adds a shrunk ridge on the lags of a day.

--run evaluates the models of a finished run with each setting of sharing, by halves of its test
part: training does not depend on them.

Without --test, all windows are before the test days, some with artificial holidays; settings are
chosen on those. --test prints the test windows, for the final figures only.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from mixture_cases import Case, cases, load

from fuels.arrays import Floats
from fuels.config import Sharing
from fuels.data.newcomers import newcomers
from fuels.data.panel import Panel
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.evaluation.evaluate import evaluate, nothing_shared
from fuels.evaluation.outcome import NOTHING_SHARED
from fuels.evaluation.summary import paired_test
from fuels.experts import blend
from fuels.experts import shared as pools
from fuels.experts.history import History, make_history
from fuels.experts.horizon import first_out_of_sample, fit_horizon
from fuels.experts.linear import RidgeExpert, day_lags
from fuels.experts.shared import SharedExperts
from fuels.forecasting.saved_run import SavedRun
from fuels.runs.build import load_dataset
from fuels.sharing.sums import LocalSums

PARTS = ("known", "newcomers", "random")
CHOICE_SEEDS, TEST_SEEDS = tuple(range(11, 17)), tuple(range(6))  # of the clients drawn
DRAWS = 3  # of Milan's newcomers and of the random series
NEWCOMERS, OF = 0.5, 30  # half of 30 clients
HISTORIES = (3, 7, 14, 28)  # days
HORIZONS = (1, 6, 24)
RANDOM_CLIENTS, RANDOM_DAYS = 30, 40


@dataclass(frozen=True)
class Errors:
    """Mean squared errors with sharing and without, of some clients in one window."""

    clients: Floats  # [2, client]
    days: Floats  # [2, day]

    @classmethod
    def of(cls, truth: Floats, shared: Floats, alone: Floats, period: int) -> Errors:
        squared = np.stack([(truth - shared) ** 2, (truth - alone) ** 2])
        days = np.arange(truth.shape[1]) // period
        by_day = [np.nanmean(squared[:, :, days == d], axis=(1, 2)) for d in np.unique(days)]
        return cls(np.nanmean(squared, axis=2), np.stack(by_day, axis=1))

    def line(self) -> str:
        own, other = self.clients.mean(axis=1)
        better = (self.clients[0] < self.clients[1]).mean()
        tests = [f"{paired_test(rows):.0e}" for rows in (self.clients, self.days)]
        cells = [f"{other:.4f}", f"{100 * (own / other - 1):+.2f} %", f"{better:.0%}", *tests]
        return " | ".join(cells)


def together(found: list[Errors]) -> Errors:
    """Several draws of clients: all of them, and the days, which are the same ones, on average."""
    return Errors(
        np.concatenate([one.clients for one in found], axis=1),
        np.mean([one.days for one in found], axis=0),
    )


def compare(
    dataset: Dataset, history: History, case: Case, who: Floats, scale: Floats, horizon: int
) -> dict[str, Errors]:
    """Errors in every window of the clients `who`, in units of `scale` [client] per z-score."""
    p, end = history.period, case.fit * history.period
    last = min(max(b for _, b in case.windows.values()) * p, history.length)
    shared = SharedExperts(LocalSums())
    history = shared.with_live_mean(history, dataset.ids)
    online = fit_horizon(
        shared.pool,
        history,
        end,
        horizon=horizon,
        pooled=lambda until: shared.coefficients(history, dataset.ids, until, horizon),
    )
    begin = first_out_of_sample(end, horizon)
    past = online.run(history, begin, last)
    local = nothing_shared(history, online, past, last)
    truth = np.where(dataset.target[:, begin:last], history.observed[:, begin:last], np.nan)
    found = {}
    for title, (a, b) in case.windows.items():
        part = slice(max(a * p, begin) - begin, min(b * p, last) - begin)
        rows = (scale[who, None] * one[who, part] for one in (truth, past.mixed.combined, local))
        found[title] = Errors.of(*rows, p)
    return found


def known(case: Case, horizon: int) -> dict[str, Errors]:
    dataset, history = load(case)
    everyone = np.arange(history.clients)
    return compare(dataset, history, case, everyone, np.ones(len(everyone)), horizon)


def new(case: Case, days: int, seed: int, horizon: int) -> dict[str, Errors]:
    """Errors of the newcomers, whose scale comes from their short history."""
    dataset, history = load(case)
    chosen = np.isin(dataset.ids, newcomers(dataset.ids, NEWCOMERS, seed))
    values = history.observed * dataset.std[:, None] + dataset.mean[:, None]
    end = case.fit * history.period
    values[chosen, : end - days * history.period] = np.nan
    mean, std = np.nanmean(values[:, :end], axis=1), np.nanstd(values[:, :end], axis=1)
    still = std == 0  # constant in the short history: such a client cannot take part
    std[still], chosen[still] = 1.0, False
    panel = replace(dataset.panel, values=values[:, dataset.offset :].T)
    short = make_history(panel, history.period, mean, std, dataset.offset, dataset.calendar)
    return compare(dataset, short, case, np.flatnonzero(chosen), std / dataset.std, horizon)


def independent(seed: int) -> Case:
    """Series that have nothing to do with each other: daily cycles of any phase, AR(1) noise."""
    rng = np.random.default_rng([seed, 3])
    steps, shape = RANDOM_DAYS * 24, (RANDOM_DAYS * 24, RANDOM_CLIENTS)
    phase, memory = rng.uniform(0, 24, RANDOM_CLIENTS), rng.uniform(0, 0.95, RANDOM_CLIENTS)
    noise = rng.normal(size=shape)
    for k in range(1, steps):
        noise[k] += memory * noise[k - 1]
    cycle = rng.uniform(0, 2, RANDOM_CLIENTS) * np.sin(
        2 * np.pi * (np.arange(steps)[:, None] + phase) / 24
    )
    panel = Panel(
        values=100 + 10 * (cycle + noise * np.sqrt(1 - memory**2)),
        ids=tuple(f"c{i:02d}" for i in range(RANDOM_CLIENTS)),
        start=np.datetime64("2013-11-01", "s"),
        step=np.timedelta64(3600, "s"),
        name="independent series",
    )
    return Case("independent series", {}, "29/0/11", 29, {"days 30-40": (29, 40)}, panel=panel)


def drawn(case: Case, seed: int, clients: int) -> Case:
    """The case with other clients of Milan and of the embedded data; METR-LA has only ten."""
    few = {} if "METR" in case.name else {"clients": clients}
    return replace(case, data=case.data | few, seed=seed)


def lines(options: argparse.Namespace, horizon: int) -> Iterator[tuple[str, dict[str, Errors]]]:
    """Data and history, and errors by window, of every line for one horizon."""
    seeds = TEST_SEEDS if options.test else CHOICE_SEEDS
    for case in cases(options.data_folder, choice=not options.test):
        if not case.name.startswith(options.only):
            continue
        several = seeds[: DRAWS if case.name == "Milan" else options.draws]
        if "known" in options.parts:
            yield f"{case.name} | all", known(drawn(case, seeds[0], options.clients), horizon)
        for days in options.days if "newcomers" in options.parts else ():
            draws = [drawn(case, seed, OF) for seed in several]
            found = [new(one, days, one.seed, horizon) for one in draws]
            windows = {title: together([one[title] for one in found]) for title in found[0]}
            yield f"{case.name} | {days} days", windows
    if "random" in options.parts:
        found = [known(independent(seed), horizon) for seed in seeds[:DRAWS]]
        windows = {title: together([one[title] for one in found]) for title in found[0]}
        yield "independent series | all", windows


def evaluate_run(folder: Path) -> None:
    """MSE by halves of the test part with each setting, and the coverage of the intervals."""
    saved = SavedRun.load(folder)
    dataset = load_dataset(saved.settings)
    first, last = dataset.split.part("test")
    period = saved.models.period
    half = round((last - first) / 2 / period) * period  # between two days
    truth = np.where(dataset.target[:, first:last], dataset.series[:, first:last], np.nan)
    print("| statistics | live mean | first half | second half | coverage |\n|---|---|---|---|---|")
    rows = {}
    for statistics, live_mean in itertools.product((False, True), repeat=2):
        found = evaluate(
            dataset,
            saved.models,
            lambda: np.full(truth.shape, np.nan),
            title="model",
            chosen=saved.settings.mixture,
            sharing=Sharing(statistics, live_mean),
        )
        assert found.mixture is not None
        coverage = ", ".join(f"{100 * c:.1f} %" for c in found.mixture.bands.coverage(truth))
        rows[f"{statistics} | {live_mean}"] = found.forecasts["model"], coverage
        if statistics and live_mean:
            rows["nothing shared, no personal model |"] = found.forecasts[NOTHING_SHARED], ""
            both = Errors.of(truth, found.forecasts["model"], found.forecasts[NOTHING_SHARED], 24)
    for name, (made, coverage) in rows.items():
        parts = [slice(None, half), slice(half, None)]
        cells = [f"{np.nanmean((truth[:, p] - made[:, p]) ** 2):.5f}" for p in parts]
        print(f"| {name} | {' | '.join(cells)} | {coverage} |", flush=True)
    print(f"both halves, nothing shared and the change with both: {both.line()}")


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def constants(text: str) -> dict[str, float]:
    pairs = (part.split("=") for part in text.split(","))
    found = {name: float(value) for name, value in pairs}
    if unknown := [name for name in found if not isinstance(getattr(blend, name, None), float)]:
        raise ValueError(f"no constant {unknown[0]}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-folder", type=Path)
    parser.add_argument("--run", type=Path, help="a finished run, instead of --data-folder")
    parser.add_argument("--parts", default=",".join(PARTS), type=lambda text: text.split(","))
    parser.add_argument("--only", default="", help="data whose name starts with this, as Milan")
    parser.add_argument("--horizons", default=(1,), type=numbers, help="steps ahead: 1,6,24")
    parser.add_argument("--days", default=HISTORIES, type=numbers, help="of a newcomer's history")
    parser.add_argument("--clients", default=100, type=int, help="with the whole history")
    parser.add_argument("--draws", default=1, type=int, help="of newcomers: 1 to 6; of Milan 3")
    parser.add_argument("--blend", default={}, type=constants, help="ONLY=0.3,NEAR=0.8,PULL=336")
    parser.add_argument("--shrunk-day", action="store_true", help="one more shrunk ridge")
    parser.add_argument("--test", action="store_true", help="the test windows: final figures only")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"--parts takes {', '.join(PARTS)}, not {', '.join(sorted(unknown))}")
    for name, value in options.blend.items():
        setattr(blend, name, value)
    if options.shrunk_day:
        name = "ridge, day lags, change, live mean"
        more = RidgeExpert(f"shrunk {name}", day_lags, True, live=True, towards=f"pooled {name}")
        pools.SHRUNK = (*pools.SHRUNK, more)
    if options.run is not None:
        return evaluate_run(options.run)
    if options.data_folder is None:
        parser.error("--data-folder or --run is needed")
    heads = ["data", "history", "window", "steps ahead", "nothing shared", "shared sums"]
    heads += ["clients that improve", "p, clients", "p, days"]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|", flush=True)
    try:
        for horizon in options.horizons:
            for title, windows in lines(options, horizon):
                for window, errors in windows.items():
                    print(f"| {title} | {window} | {horizon} | {errors.line()} |", flush=True)
    except FuelsError as error:
        raise SystemExit(f"sharing.py: {error}") from None


if __name__ == "__main__":
    main()
