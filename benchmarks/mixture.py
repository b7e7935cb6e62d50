"""Every expert, ways to mix them, and the chosen mixture: docs/evidence/forecasts.md.

    python benchmarks/mixture.py --data-folder DIR [--guest NAME=RUN] [--choice]
    python benchmarks/mixture.py --data-folder DIR --horizons 1,3,6,12,24 [--choice]
    python benchmarks/mixture.py --counts

DIR holds milan_net_441cells_hourly.npz and metr_la_first10_full_5min.npz; the synthetic federation
needs no file. --choice prints the days on which the mixture was chosen (all before the test
windows), otherwise the test windows are printed. --horizons prints several steps ahead, --counts
made-up sparse and spiky counts. A guest is one more expert for Milan: the models
of a finished run on the same 100 clients and 22 test days, from its forecasts.parquet:

    fuels run --preset paper --data DIR/milan_net_441cells_hourly.npz --clients 100 --rounds 40 \\
        --split 40/0/22 --out RUN
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from mixture_cases import (
    COUNT_SEEDS,
    Case,
    best_reference,
    cases,
    count_cases,
    load,
    mean_error,
)

from fuels.arrays import Floats
from fuels.config import Mixture
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.experts.horizon import Backtest, first_out_of_sample, fit_horizon
from fuels.experts.limits import Limits
from fuels.experts.mixture import LEARNER_NAMES
from fuels.experts.pool import Pool
from fuels.storage.run_folder import RunFolder

# -- other ways to mix, for comparison ---------------------------------------------------------


def equal_weights(truth: Floats, forecasts: Floats) -> Floats:
    return np.asarray(forecasts.mean(axis=0))


def exponential(truth: Floats, forecasts: Floats) -> Floats:
    """Exponential weights with constants: forgetting 0.95, learning rate 2."""
    lost = np.zeros(forecasts.shape[:2])
    said = np.empty(truth.shape)
    for k in range(truth.shape[1]):
        weights = np.exp(-2 * (lost - lost.min(axis=0)))
        said[:, k] = (weights * forecasts[:, :, k]).sum(axis=0) / weights.sum(axis=0)
        known = ~np.isnan(truth[:, k])
        lost = np.where(known, 0.95 * lost + (forecasts[:, :, k] - truth[:, k]) ** 2, lost)
    return said


def ml_poly(truth: Floats, forecasts: Floats, memory: float) -> Floats:
    regret, square = np.zeros((2, *forecasts.shape[:2]))
    peak, said = np.zeros(len(truth)), np.empty(truth.shape)
    for k in range(truth.shape[1]):
        weights = np.maximum(regret, 0) / (peak + square + 1e-12)
        weights = np.where(weights.sum(axis=0) > 0, weights, 1.0)
        said[:, k] = (weights * forecasts[:, :, k]).sum(axis=0) / weights.sum(axis=0)
        known = ~np.isnan(truth[:, k])
        gain = 2 * (said[:, k] - truth[:, k]) * (said[:, k] - forecasts[:, :, k])
        regret = np.where(known, memory * regret + gain, regret)
        square = np.where(known, memory * square + gain**2, square)
        peak = np.where(known, np.maximum(peak, (gain**2).max(axis=0)), peak)
    return said


CANDIDATES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "equal weights": equal_weights,
    "exponential weights, 0.95, eta 2": exponential,
    "ML-Poly": lambda truth, forecasts: ml_poly(truth, forecasts, 1.0),
    "ML-Poly, forgetting 0.95": lambda truth, forecasts: ml_poly(truth, forecasts, 0.95),
}


# -- the tables --------------------------------------------------------------------------------


def awake(experts: dict[str, Floats]) -> dict[str, Floats]:
    """An expert alone must always answer: where it sleeps it takes the mean of those awake."""
    stacked = np.stack(list(experts.values()))
    count = (~np.isnan(stacked)).sum(axis=0)
    mean = np.where(count > 0, np.nansum(stacked, axis=0) / np.maximum(count, 1), 0.0)
    return {name: np.where(np.isnan(f), mean, f) for name, f in experts.items()}


def forecasts_of(run: Path, dataset: Dataset) -> Floats:
    """What the models of a run said of the test part, normalised, [client, step]."""
    folder = RunFolder(run)
    if not folder.finished:
        raise FuelsError(f"{run}: no finished run is here")
    if folder.mixture.exists():
        raise FuelsError(f"{run}: its forecasts are a mixture already; take one of --preset paper")
    first, last = dataset.split.part("test")
    times = pl.Series(np.tile(dataset.times("test").astype("datetime64[ms]"), len(dataset.ids)))
    table = pl.read_parquet(folder.forecasts)
    moments = table["time"].dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    same = table["client"].to_list() == np.repeat(dataset.ids, last - first).tolist()
    if not same or not moments.equals(times):
        raise FuelsError(
            f"{run}: it is not about the {len(dataset.ids)} clients and {last - first} test steps"
            " of this case"
        )
    said = table["forecast"].to_numpy().reshape(len(dataset.ids), -1)
    result: Floats = (said - dataset.mean[:, None]) / dataset.std[:, None]
    return result


@dataclass(frozen=True)
class Played:
    """A case from the end of fitting to the end of its last window, `horizon` steps ahead."""

    warm: Backtest  # the mixture's part of training
    past: Backtest
    truth: Floats  # [client, step], of the warm-up and after it; NaN between them
    scored: Floats  # [client, step] after it; NaN where no value was observed
    parts: dict[str, slice]  # windows, in steps of `scored`
    first: int  # step of the history at which the warm-up begins
    period: int
    limits: Floats  # [client, 2]: least and largest possible values

    @property
    def early(self) -> int:
        return int(self.truth.shape[1] - self.scored.shape[1])

    def joined(self, ready: Callable[[dict[str, Floats]], dict[str, Floats]]) -> Floats:
        """What the experts said in warm-up and after it, [expert, client, step].

        Between them are the steps of which no honest forecast exists several steps ahead.
        """
        early, late = ready(self.warm.experts), ready(self.past.experts)
        shown = next(iter(early.values())).shape
        gap = np.full((shown[0], self.early - shown[1]), np.nan)
        return np.stack([np.concatenate([early[n], gap, late[n]], axis=1) for n in late])


def play(case: Case, runs: dict[str, Path], horizon: int = 1) -> Played:
    dataset, history = load(case)
    external = {name: forecasts_of(run, dataset) for name, run in runs.items()}
    p, end = history.period, case.fit * history.period
    last = min(max(b for _, b in case.windows.values()) * p, history.length)
    scale = dataset.mean, dataset.std
    limits = Limits.of(Mixture(), history.observed[:, :end], *scale).normalised(*scale)
    online = fit_horizon(
        Pool(), history, end, horizon=horizon, external=list(external), limits=limits
    )
    warm = online.warm_up
    assert warm is not None  # start always warms up
    first, begin = end - warm.mixed.combined.shape[1], first_out_of_sample(end, horizon)
    truth = history.observed[:, first:last].copy()
    truth[:, end - first : begin - first] = np.nan
    return Played(
        warm,
        online.run(
            history, begin, last, {name: f[:, : last - end] for name, f in external.items()}
        ),
        truth,
        np.where(dataset.target[:, begin:last], history.observed[:, begin:last], np.nan),
        {
            title: slice(max(a * p, begin) - begin, min(b * p, last) - begin)
            for title, (a, b) in case.windows.items()
        },
        first,
        p,
        limits,
    )


def measure(
    case: Case, played: Played, runs: dict[str, Path]
) -> Iterator[tuple[str, dict[str, float]]]:
    """Title and figures of every window of a case."""
    past, alone, joined = played.past, awake(played.past.experts), played.joined(awake)
    said = dict(alone)
    for name, candidate in CANDIDATES.items():
        said[f"= {name}"] = candidate(played.truth, joined)[:, played.early :]
    for name, learner in zip(LEARNER_NAMES, past.mixed.learners, strict=True):
        said[f"= {name}"] = learner
    said["= mixture (chosen)"] = past.mixed.combined
    for title, part in played.parts.items():
        figures = {name: mean_error(played.scored[:, part], f[:, part]) for name, f in said.items()}
        best = min(figures[name] for name in alone)
        figures["mixture / best expert"] = figures["= mixture (chosen)"] / best
        for level, (coverage, width) in intervals_of(played, part).items():
            figures[f"{level:g} % interval, coverage"] = coverage
            figures[f"{level:g} % interval, mean width"] = width
        for name in runs:
            leads = past.mixed.weights[part].argmax(axis=2) == list(alone).index(name)
            figures[f"{name} leads, % of steps"] = 100 * float(leads.mean())
        yield f"{case.name}, {title}", figures


def intervals_of(played: Played, part: slice) -> dict[float, tuple[float, float]]:
    """Coverage in percent and mean width of every level."""
    bands = played.past.bands
    bands = replace(bands, lower=bands.lower[:, :, part], upper=bands.upper[:, :, part])
    found = zip(100 * bands.coverage(played.scored[:, part]), bands.width(), strict=True)
    return dict(zip(bands.levels, found, strict=True))


def several_ahead(all_cases: list[Case], horizons: list[int]) -> None:
    """A line for every window and horizon."""
    heads = ["window", "steps ahead", "mixture", "best expert", "ratio", "last value"]
    heads += ["one period ago", "inside 80 %, % (width)", "inside 95 %, % (width)"]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for case in all_cases:
        played = {h: play(case, {}, h) for h in horizons}
        for title in case.windows:
            for h, one in played.items():
                part = one.parts[title]
                truth = one.scored[:, part]
                experts = awake(one.past.experts)
                alone = {name: mean_error(truth, f[:, part]) for name, f in experts.items()}
                mixed = mean_error(truth, one.past.mixed.combined[:, part])
                best = min(alone.values())
                errors = (alone["last value"], alone["one period ago"])
                cells = [f"{case.name}, {title}", str(h), f"{mixed:.4f}", f"{best:.4f}"]
                cells += [f"{mixed / best:.3f}", *(f"{error:.4f}" for error in errors)]
                cells += [f"{c:.1f} ({w:.3f})" for c, w in intervals_of(one, part).values()]
                print("| " + " | ".join(cells) + " |", flush=True)


def median_client(played: Played) -> float:
    """The mixture's error over that of the expert that is best over all, of the median client."""
    (part,) = played.parts.values()
    truth = played.scored[:, part]
    alone = awake(played.past.experts).values()
    best = min((f[:, part] for f in alone), key=lambda forecast: mean_error(truth, forecast))
    mixed = np.nanmean((played.past.mixed.combined[:, part] - truth) ** 2, axis=1)
    return float(np.median(mixed / np.nanmean((best - truth) ** 2, axis=1)))


def counts() -> None:
    """A column for every made-up set of counts: errors over that of the best expert."""
    shown = {"= mixture (chosen)", "= steady (BOA)", "= exponential weights, 0.95, eta 2"}
    columns = {}
    for case in count_cases(COUNT_SEEDS):
        played = play(case, {})
        for title, figures in measure(case, played, {}):
            best = figures["= mixture (chosen)"] / figures["mixture / best expert"]
            reference = best_reference(case)
            ratios = {f"{n} / best expert": figures[n] / best for n in figures if n in shown}
            columns[title] = (
                {"best expert": best}
                | ratios
                | {"mixture / best expert, median client": median_client(played)}
                | {"mixture / best reference": figures["= mixture (chosen)"] / reference}
                | {name: value for name, value in figures.items() if "interval" in name}
            )
    table(columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-folder", type=Path)
    parser.add_argument("--guest", default="", help="NAME=RUN, a run folder; for Milan")
    parser.add_argument("--choice", action="store_true", help="the windows of the choice")
    parser.add_argument("--horizons", default="", help="steps ahead, such as 1,3,6,12,24")
    parser.add_argument("--counts", action="store_true", help="made-up sparse and spiky counts")
    options = parser.parse_args()
    name, equals, run = options.guest.partition("=")
    if options.data_folder is None and not options.counts:
        parser.error("--data-folder is needed for all but --counts")
    if options.counts and (options.choice or options.horizons):
        parser.error("--counts goes alone")
    if options.guest and not (name and equals and run):
        parser.error("--guest takes NAME=RUN")
    if options.guest and (options.choice or options.horizons or options.counts):
        parser.error("--guest is for the test windows, one step ahead; leave out the others")
    if not all(h.isdecimal() and int(h) > 0 for h in options.horizons.split(",") if h):
        parser.error("--horizons takes whole numbers of steps, such as 1,3,6,12,24")
    try:
        if options.counts:
            counts()
        elif options.horizons:
            horizons = [int(h) for h in options.horizons.split(",") if h]
            several_ahead(list(cases(options.data_folder, options.choice)), horizons)
        else:
            show(options.data_folder, options.choice, {name: Path(run)} if options.guest else {})
    except FuelsError as error:
        raise SystemExit(f"mixture.py: {error}") from None


def show(folder: Path, choice: bool, external: dict[str, Path]) -> None:
    columns: dict[str, dict[str, float]] = {}
    for case in cases(folder, choice):
        columns |= dict(measure(case, play(case, {}), {}))
        if external and case.name == "Milan":
            for title, figures in measure(case, play(case, external), external):
                columns[f"{title}, with {' and '.join(external)}"] = figures
    table(columns)


def table(columns: dict[str, dict[str, float]]) -> None:
    rows = list(dict.fromkeys(row for figures in columns.values() for row in figures))
    print("| | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for row in rows:
        cells = (figures.get(row) for figures in columns.values())
        shown = (
            "" if c is None else f"{c:.1f}" if "%" in row and "width" not in row else f"{c:.4f}"
            for c in cells
        )
        print(f"| {row.removeprefix('= ')} | " + " | ".join(shown) + " |")


if __name__ == "__main__":
    main()
