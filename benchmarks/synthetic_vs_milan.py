"""How alike are the synthetic federation and real traffic? Tables and pictures for the docs page.

    python benchmarks/synthetic_vs_milan.py --milan milan_net_441cells_hourly.npz
        --raw milan_cdr_raw_2013-11-01_25cells.tsv

prints the tables of docs/explanation/synthetic-data.md in Markdown and writes its pictures to
docs/explanation/img. The Milan file holds hourly Internet activity, `values` [time, cell],
from 1 November 2013 00:00 local; the raw file (optional) holds the records of that day, the only
real SMS and calls to compare with.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import matplotlib

from fuels.arrays import Floats

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from fuels.data.city_profiles import KINDS
from fuels.data.synthetic import kinds_of, synthesise

CLIENTS = 432  # twelve whole districts, about as many cells as Milan's 440
TRAIN = 40 * 24
WINDOWS = {"11-21 December": (40 * 24, 51 * 24), "22 December-1 January": (51 * 24, 62 * 24 - 1)}
LAGS = (1, 2, 3, 24, 48, 72)
SOURCE = "Milan: Telecom Italia Open Big Data Challenge, ODbL 1.0. Synthetic: fuels, seed 0."


# -- what is compared --------------------------------------------------------------------------


def read_milan(path: Path) -> Floats:
    """Milan's cells [time, cell] without those silent for half a day of the training part."""
    with np.load(path, allow_pickle=False) as file:
        values: Floats = file["values"].astype(np.float64)
    silent = (values[:TRAIN] == 0).reshape(40, 24, -1).sum(axis=1)  # hours, [day, cell]
    return values[:, (silent < 12).all(axis=0)]


def columns(milan: Floats) -> dict[str, Floats]:
    """The panels to compare, [time, cell] each, over Milan's span."""
    net, call, sms = (synthesise(a, CLIENTS).values[: len(milan)] for a in ("net", "call", "sms"))
    busy = np.array(kinds_of(CLIENTS)) != "near-empty"
    return {
        "Milan Net": milan,
        "synthetic Net, without near-empty cells": net[:, busy],
        "synthetic Net": net,
        "synthetic Call": call,
        "synthetic SMS": sms,
    }


def autocorrelation(values: Floats, lag: int) -> Floats:
    centred = values - values.mean(axis=0)
    result: Floats = (centred[lag:] * centred[:-lag]).sum(axis=0) / (centred**2).sum(axis=0)
    return result


def statistics(values: Floats) -> dict[str, Floats]:
    """One number per cell, by name."""
    mean, spread = values.mean(axis=0), values.std(axis=0)
    z = (values - mean) / spread
    return {
        "level (mean of an hour)": mean,
        "coefficient of variation": spread / mean,
        "skewness": (z**3).mean(axis=0),
        "kurtosis": (z**4).mean(axis=0),
        "autocorrelation, 1 h": autocorrelation(values, 1),
        "autocorrelation, 24 h": autocorrelation(values, 24),
        "autocorrelation, 168 h": autocorrelation(values, 168),
        "share of zeros": (values == 0).mean(axis=0),
    }


# -- how hard it is to forecast ----------------------------------------------------------------


def normalise(values: Floats) -> Floats:
    """Series [cell, time], z-scored by the training part."""
    part = values[:TRAIN]
    return np.ascontiguousarray(((values - part.mean(axis=0)) / part.std(axis=0)).T)


def lagged(z: Floats, first: int, last: int) -> Floats:
    """The six lags of every step from first to last - 1, [cell, time, lag]."""
    return np.stack([z[:, first - lag : last - lag] for lag in LAGS], axis=2)


def with_hour(inputs: Floats, first: int) -> Floats:
    hours = np.eye(24)[np.arange(first, first + inputs.shape[1]) % 24]
    return np.concatenate([inputs, np.broadcast_to(hours, (*inputs.shape[:2], 24))], axis=2)


def with_one(inputs: Floats, first: int) -> Floats:
    return np.concatenate([inputs, np.ones((*inputs.shape[:2], 1))], axis=2)


def ridge(train: Floats, target: Floats, test: Floats) -> Floats:
    """Forecasts [cell, time] of one ridge regression per cell, penalty 1."""
    gram = np.einsum("ntf,ntg->nfg", train, train) + np.eye(train.shape[2])
    weights = np.linalg.solve(gram, np.einsum("ntf,nt->nf", train, target)[..., None])
    return (test @ weights)[..., 0]


def kernel_ridge(train: Floats, target: Floats, test: Floats) -> Floats:
    """Forecasts [time] of one cell by kernel ridge (Gaussian, width 4, penalty 0.05): nonlinear."""

    def kernel(a: Floats, b: Floats) -> Floats:
        distance2 = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1) - 2 * a @ b.T
        similar: Floats = np.exp(-distance2 / 32)
        return similar

    weights = np.linalg.solve(kernel(train, train) + 0.05 * np.eye(len(train)), target)
    return kernel(test, train) @ weights


def errors(values: Floats) -> dict[tuple[str, str], float]:
    """One-step MSE on the z-scored scale, mean over cells, by (window, method)."""
    z = normalise(values)
    past, target = lagged(z, 72, TRAIN), z[:, 72:TRAIN]
    found = {}
    for window, (first, last) in WINDOWS.items():
        now, inputs = z[:, first:last], lagged(z, first, last)
        forecasts = {
            "last value": z[:, first - 1 : last - 1],
            "same hour yesterday": z[:, first - 24 : last - 24],
            "same hour last week": z[:, first - 168 : last - 168],
            "ridge, lags 1 2 3 24 48 72": ridge(
                with_one(past, 72), target, with_one(inputs, first)
            ),
            "the same with hour of day": ridge(
                with_hour(past, 72), target, with_hour(inputs, first)
            ),
        }
        for method, forecast in forecasts.items():
            found[window, method] = float(((forecast - now) ** 2).mean())
    return found


def nonlinear_gain(values: Floats) -> float:
    """By how much kernel ridge beats ridge on the same six lags, ordinary window, a few cells."""
    z = normalise(values[:, ::12])
    first, last = WINDOWS["11-21 December"]
    past, target, inputs = lagged(z, 72, TRAIN), z[:, 72:TRAIN], lagged(z, first, last)
    linear = ridge(with_one(past, 72), target, with_one(inputs, first))
    curved = np.stack([kernel_ridge(*cell) for cell in zip(past, target, inputs, strict=True)])
    now = z[:, first:last]
    return float(1 - ((curved - now) ** 2).mean() / ((linear - now) ** 2).mean())


# -- tables and pictures -----------------------------------------------------------------------


def tables(panels: dict[str, Floats]) -> Iterator[str]:
    """Statistics and forecasting errors, line by line."""
    head = ["| |" + "|".join(panels) + "|", "|---|" + "---|" * len(panels)]
    each = [statistics(values) for values in panels.values()]
    yield from head
    for name in each[0]:
        row = [np.quantile(one[name], [0.5, 0.05, 0.95]) for one in each]
        digits = 0 if name.startswith("level") else 3 if name == "share of zeros" else 2
        cells = [f"{m:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})" for m, low, high in row]
        yield f"|{name}|" + "|".join(cells) + "|"
    mostly = [f"{100 * (one['share of zeros'] > 0.5).mean():.1f} %" for one in each]
    yield "|cells with mostly zeros|" + "|".join(mostly) + "|"
    yield ""
    yield from head
    hard = [errors(values) for values in panels.values()]
    for window, method in hard[0]:
        yield f"|{window}: {method}|" + "|".join(f"{h[window, method]:.3f}" for h in hard) + "|"
    gains = [f"{100 * nonlinear_gain(values):.0f} %" for values in panels.values()]
    yield "|gain of a nonlinear model on the six lags|" + "|".join(gains) + "|"


def raw_day(path: Path) -> dict[str, Floats]:
    """Activity by hour of one day of raw records, [hour, cell], by service."""
    rows = np.nan_to_num(np.genfromtxt(path, delimiter="\t"))
    _, cell = np.unique(rows[:, 0], return_inverse=True)
    hour = (rows[:, 1] // 3_600_000).astype(np.int64) + 1  # epoch in ms; Rome is an hour ahead
    services = {"sms": (3, 4), "call": (5, 6), "net": (7,)}
    found = {name: np.zeros((24, int(cell.max()) + 1)) for name in services}
    for name, fields in services.items():
        np.add.at(found[name], (hour % 24, cell), rows[:, list(fields)].sum(axis=1))
    return found


def day_table(real: dict[str, Floats]) -> Iterator[str]:
    """1 November 2013 in both: size relative to Net, share of the day by quarter, zeros."""
    made = {name: synthesise(name, CLIENTS, 1).values for name in real}
    yield "|1 November|relative to Net|0-6 h|6-12 h|12-18 h|18-24 h|hours of zero|"
    yield "|---|---|---|---|---|---|---|"
    for label, day in (("Milan, raw", real), ("synthetic", made)):
        for name, values in day.items():
            quarters = values.reshape(4, -1).sum(axis=1) / values.sum()
            numbers = [values.sum() / day["net"].sum(), *quarters, (values == 0).mean()]
            yield f"|{label} {name}|" + "|".join(f"{n:.3f}" for n in numbers) + "|"


def draw_distributions(milan: Floats, net: Floats, path: Path) -> None:
    """Distribution over cells of six statistics, Milan beside synthetic."""
    figure, axes = plt.subplots(2, 3, figsize=(10, 5.4), sharey=True)
    both = [(statistics(milan), "Milan Net", "C0"), (statistics(net), "synthetic Net", "C1")]
    names = [name for name in both[0][0] if name not in ("share of zeros", "kurtosis")]
    for axis, name in zip(axes.flat, names, strict=True):
        for found, label, colour in both:
            share = np.arange(1, len(found[name]) + 1) / len(found[name])
            axis.plot(np.sort(found[name]), share, colour, label=label)
        axis.set_xlabel(name)
        axis.grid(alpha=0.3)
    axes[0, 0].set_xscale("log")
    axes[0, 2].set_xlim(-1, 4)
    for row in axes:
        row[0].set_ylabel("share of cells")
    axes[0, 0].legend()
    save(figure, path, SOURCE)


def draw_series(milan: Floats, net: Floats, path: Path) -> None:
    """Three weeks into the holidays: cells at the same ranks of variability in both panels."""
    figure, axes = plt.subplots(4, 2, figsize=(11, 7.2), sharex=True)
    span = slice(39 * 24, 62 * 24 - 1)
    days = np.arange(span.start, span.stop) / 24 + 1 - 30  # day of December
    for side, (values, label, colour) in enumerate(
        ((milan, "Milan Net", "C0"), (net, "synthetic Net", "C1"))
    ):
        variability = statistics(values)["coefficient of variation"]
        order = np.argsort(variability)
        for axis, rank in zip(axes[:, side], (0.1, 0.4, 0.7, 0.95), strict=True):
            cell = order[int(rank * len(order))]
            axis.plot(days, values[span, cell], colour, lw=0.9)
            axis.set_ylim(bottom=0)
            axis.grid(alpha=0.3)
            axis.set_title(f"{label}, coefficient of variation {variability[cell]:.2f}", fontsize=9)
        axes[-1, side].set_xlabel("day of December 2013")
    save(figure, path, SOURCE)


def draw_kinds(path: Path) -> None:
    """The mean week of November of every kind, through the three services."""
    figure, axes = plt.subplots(2, 3, figsize=(11, 5), sharex=True)
    kinds = np.array(kinds_of(CLIENTS))
    weeks = slice(3 * 24, 31 * 24)  # four whole weeks from Monday 4 November
    for activity in ("net", "call", "sms"):
        values = synthesise(activity, CLIENTS).values[weeks]
        relative = values / values.mean(axis=0)
        week = relative.reshape(4, 168, -1).mean(axis=0)
        for axis, kind in zip(axes.flat, KINDS, strict=True):
            axis.plot(np.arange(168) / 24, week[:, kinds == kind.name].mean(axis=1), label=activity)
            axis.set_title(kind.name, fontsize=10)
    for axis in axes.flat:
        axis.set_xticks(np.arange(7) + 0.5, ["Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"])
        axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    axes[0, 0].set_ylabel("relative to the cell's mean")
    save(figure, path, "Synthetic: fuels, seed 0, 432 cells, 4 November to 1 December.")


def save(figure: Figure, path: Path, source: str) -> None:
    figure.text(0.99, 0.01, source, ha="right", fontsize=7, color="0.4")
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    figure.savefig(path, dpi=90, metadata={"Software": None})
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--milan", type=Path, required=True, help="the npz of Milan's Net activity")
    parser.add_argument("--raw", type=Path, help="the raw records of 1 November 2013")
    parser.add_argument(
        "--out", type=Path, default=Path("docs/explanation/img"), help="folder for the pictures"
    )
    options = parser.parse_args(arguments)
    for path in (options.milan, options.raw):
        if path is not None and not path.is_file():
            parser.error(f"no file {path}")
    milan = read_milan(options.milan)
    panels = columns(milan)
    options.out.mkdir(parents=True, exist_ok=True)
    print("\n".join(tables(panels)))
    if options.raw is not None:
        print("\n" + "\n".join(day_table(raw_day(options.raw))))
    busy = panels["synthetic Net, without near-empty cells"]
    draw_distributions(milan, busy, options.out / "synthetic-distributions.png")
    draw_series(milan, busy, options.out / "synthetic-series.png")
    draw_kinds(options.out / "synthetic-kinds.png")


if __name__ == "__main__":
    main()
