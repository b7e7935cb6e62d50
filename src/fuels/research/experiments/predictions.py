"""Forecasts of four methods, and the distribution of their errors over the clients.

The paper's figure shows a smooth and a fluctuating stretch of one client. Here a rule chooses the
two stretches, and a table adds the error over all clients in the third of the hours that change
least and in the third that change most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fuels.arrays import Floats
from fuels.evaluation.series import read_series
from fuels.report import style
from fuels.report.tables import Cell, Table, columns
from fuels.research.experiments import paper
from fuels.research.experiments.base import Budget, Context, Experiment, Result
from fuels.research.experiments.grid import by_source, footer, title_of
from fuels.research.study.record import Record
from fuels.research.study.store import RunResult

SHOWN = ("fuels", "fedrep", "perfedavg", "pfedme")
STRETCH = 2  # periods shown of each stretch
LOOKS: tuple[style.Look, ...] = (
    {"color": style.METHOD, "linewidth": 1.9, "zorder": 5},
    {"color": style.RIVAL, "linewidth": 1.4},
    {"color": style.QUIET, "linewidth": 1.3, "linestyle": (0, (5, 2))},
    {"color": "#454545", "linewidth": 1.3, "linestyle": (0, (1, 1.4))},
)


@dataclass(frozen=True)
class Forecasts:
    """The test part of one source, normalised: all arrays [client, step]; NaN if not a target."""

    source: str
    actual: Floats
    change: Floats  # from the step before
    predicted: dict[str, Floats]  # by the title of the method
    records: dict[str, Record]
    period: int

    @cached_property
    def client(self) -> int:
        """The median client of FUELS."""
        mse = self.records["FUELS"].scores().mse
        order = np.argsort(mse, kind="stable")[: int((~np.isnan(mse)).sum())]
        return int(order[(len(order) - 1) // 2])

    @property
    def client_id(self) -> str:
        return self.records["FUELS"].clients[self.client]


def check(context: Context) -> None:
    threshold(context)
    context.check_runs(
        [context.settings(name, source=source) for source in context.sources for name in SHOWN]
    )


def run(context: Context) -> Result:
    given = threshold(context)
    tables, figures, text = {}, {}, []
    for source, name in by_source("predictions", context.sources).items():
        wanted = [context.settings(method, source=source) for method in SHOWN]
        found = collect(context, source, context.runs(wanted, with_folder=True))
        limit = typical_error(found) if given is None else given
        tables[name] = table(found, limit)
        figures[name] = draw_stretches(found)
        figures[name.replace("predictions", "predictions-cdf", 1)] = draw_cdf(found, limit)
        text.append(
            f"{title_of(source)}: the stretches shown are the {STRETCH} periods in which client"
            f" {found.client_id}, the median client of FUELS, changes least and most (seed"
            f" {context.seeds[0]})."
        )
    shares = ", ".join(f"{name} {share} %" for name, share in paper.UNDER_THRESHOLD.items())
    text.append(
        "The paper gives, for Net of Trentino, the share of clients with an MSE below 1.5:"
        f" {shares}. Its data were not available, so the threshold here is on our own scale."
    )
    return Result(tables, figures, text)


def collect(context: Context, source: str, runs: list[RunResult]) -> Forecasts:
    dataset = context.dataset(context.settings(source=source))
    first, last = dataset.split.part("test")
    target = dataset.target[:, first:last]
    actual = np.where(target, dataset.series[:, first:last], np.nan).astype(np.float64)
    before = dataset.series[:, first - 1 : last - 1]
    predicted = {}
    for result in runs:
        assert result.folder is not None
        series = read_series(result.folder.forecasts)
        assert series is not None
        unit = series.forecast - dataset.mean[:, None]
        predicted[result.record.title] = unit / dataset.std[:, None]
    return Forecasts(
        source=source,
        actual=actual,
        change=np.abs(actual - before),
        predicted=predicted,
        records={result.record.title: result.record for result in runs},
        period=dataset.period,
    )


def threshold(context: Context) -> float | None:
    """The threshold given; None for auto."""
    if context.options["threshold"] == "auto":
        return None
    kind = "a number above 0 or auto"
    return context.numbers("threshold", kind, lambda n: 0 < n < math.inf, most=1)[0]


def typical_error(found: Forecasts) -> float:
    """The median MSE of a client over all four methods."""
    everything = np.concatenate([record.scores().mse for record in found.records.values()])
    return float(f"{np.nanmedian(everything):.1g}")


def table(found: Forecasts, limit: float) -> Table:
    known = found.change[~np.isnan(found.change)]
    low, high = np.quantile(known, [1 / 3, 2 / 3])
    rows: list[list[Cell]] = []
    for name, predicted in found.predicted.items():
        squared = (found.actual - predicted) ** 2
        mse = found.records[name].scores().mse
        parts = (mse, squared[found.change <= low], squared[found.change >= high])
        rows.append([name, *(float(np.nanmean(p)) for p in parts), share_under(mse, limit)])
    record = next(iter(found.records.values()))  # all have the same references
    for name in record.references:
        mse = record.scores(name).mse
        rows.append([name, float(np.nanmean(mse)), None, None, share_under(mse, limit)])
    return Table(
        columns(
            "method | MSE (z-scored) ↓ | MSE, smooth third (of the hours) ↓"
            " | MSE, fluctuating third (of the hours) ↓"
            f" | MSE up to {limit:g} (% of clients) ↑"
        ),
        rows,
        f"{title_of(found.source)}: errors where the traffic is smooth and where it is not",
    )


def share_under(mse: Floats, limit: float) -> float:
    """Percentage of the clients; one without targets has no error and does not count."""
    return 100 * float(np.mean(mse[~np.isnan(mse)] <= limit))


def stretches(change: Floats, length: int) -> dict[str, int]:
    """Where the `length` steps start in which a series changes least and most, by mean change."""
    starts = np.arange(0, max(1, len(change) - length + 1))
    known = [change[start : start + length] for start in starts]
    means = np.array([np.mean(c) if not np.isnan(c).any() else np.nan for c in known])
    if np.isnan(means).all():  # gaps everywhere: use the values there are
        means = np.array([np.nanmean(c) if not np.isnan(c).all() else 0.0 for c in known])
    return {"smooth": int(np.nanargmin(means)), "fluctuating": int(np.nanargmax(means))}


def draw_stretches(found: Forecasts) -> style.Figure:
    client, length = found.client, STRETCH * found.period
    picture, [axes] = style.figure(
        ["observed", *found.predicted],
        columns=2,
        title=f"{title_of(found.source)}: forecasts of four methods",
        subtitle=f"Client {found.client_id}, the median client of FUELS: the {STRETCH} periods of"
        " the test part that change least and most.",
        footer=footer(next(iter(found.records.values()))),
        height=3.4,
        gap=0.3,
    )
    parts = stretches(found.change[client], length)
    for (kind, start), axis in zip(parts.items(), axes, strict=True):
        steps = slice(start, start + length)
        actual = found.actual[client, steps]
        x = np.arange(start, start + len(actual))
        axis.plot(x, actual, color=style.TRUTH, linewidth=3.4, label="observed")
        errors = []
        for (name, predicted), look in zip(found.predicted.items(), LOOKS, strict=True):
            line = predicted[client, steps]
            axis.plot(x, line, label=name, **look)
            errors.append(f"{name} {style.number(float(np.nanmean((actual - line) ** 2)), 2)}")
        axis.set_title(f"{kind}: MSE {', '.join(errors)}", loc="left", size=8, pad=6)
        axis.set_xlabel("steps of the test part")
    axes[0].set_ylabel("value (z-scored)")
    style.legend(picture, axes[0])
    return picture


def draw_cdf(found: Forecasts, limit: float) -> style.Figure:
    picture, [[axis]] = style.figure(
        list(found.records),
        title=f"{title_of(found.source)}: distribution of the error over the clients",
        subtitle="Share of the clients whose MSE is at most the value on the axis; further left is"
        f" better. The line marks {limit:g}.",
        footer=footer(next(iter(found.records.values()))),
    )
    errors = {name: record.mse[name] for name, record in found.records.items()}
    style.cdf(axis, errors, dict(zip(errors, LOOKS, strict=True)), 25)
    axis.axvline(limit, color=style.QUIET, linewidth=0.9)
    style.legend(picture, axis)
    return picture


EXPERIMENT = Experiment(
    name="predictions",
    title="Forecasts of four methods, and the distribution of their errors",
    run=run,
    quick=Budget(clients=16, rounds=40),
    methods=SHOWN,
    options={"threshold": "auto"},
    one_seed=True,
    check=check,
)
