"""Sections of a run's report: forecasts, failures, the time ahead, and errors of every client."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from fuels.arrays import Floats
from fuels.data.means import mean, ratio
from fuels.evaluation.series import Series
from fuels.report.families import by_client
from fuels.report.page.elements import capital, el, paragraphs, sortable
from fuels.report.page.elements import table as table_of
from fuels.report.page.shell import Section, section
from fuels.report.page.svg import Figures
from fuels.report.run.charts import (
    day,
    draw_ahead,
    draw_days,
    draw_forecasts,
    follows,
    longest,
    moment,
    telling_part,
)
from fuels.report.run.files import RunFiles
from fuels.report.run.overview import percent
from fuels.report.style import number, short
from fuels.report.tables import Cell, Column, Table, columns

WORST_MOMENTS = 10  # in the table of the largest errors
MOST_DAYS = 60  # bars of the chart of errors by day


def telling_clients(run: RunFiles, series: Series) -> dict[int, str]:
    """Best, median and worst client by MSE, and the one with the least coverage, with their roles.

    Runs of earlier versions have no MSE by client: there, by the error as a share of the values.
    """
    own = run.errors.get(run.title)
    rank = relative_error(series) if own is None else own["mse"]
    order = np.argsort(rank, kind="stable")[: int((~np.isnan(rank)).sum())]
    if not len(order):
        return {}
    constant = np.nanmax(series.actual[order], axis=1) <= np.nanmin(series.actual[order], axis=1)
    best = order[int(np.argmin(constant))]
    picks = [("worst", order[-1]), ("median", order[(len(order) - 1) // 2]), ("best", best)]
    share = None if series.widest is None else run.inside.get(series.levels[series.widest])
    if share is not None and not np.isnan(share).all():
        picks.insert(1, ("least covered by its intervals", int(np.nanargmin(share))))
    return by_client(picks) if len(order) > 1 else {int(order[0]): "the only client with an error"}


def relative_error(series: Series) -> Floats:
    """The sum of a client's errors over that of its values, [client]."""
    values = np.where(np.isnan(series.error), 0.0, np.abs(series.actual))
    return ratio(np.nansum(series.error, axis=1), values.sum(axis=1))


def legend(series: Series, actual: bool = True) -> list[tuple[str, str]]:
    keys = [*([("truth", "actual")] if actual else []), ("method", "forecast")]
    order = sorted(series.levels, key=float)
    for i, level in enumerate(order):
        kind = "band95" if i == len(order) - 1 and len(order) > 1 else "band80"
        keys.append((f"box {kind}", f"{level} % interval"))
    return keys


def outside(series: Series) -> str:
    """What counts as a missed value."""
    if series.widest is None:
        return "errors more than four times the client's mean error"
    return f"values outside the {series.levels[series.widest]} % interval"


# -- forecasts ---------------------------------------------------------------------------------


def forecasts(run: RunFiles, figures: Figures) -> Section | None:
    """Forecasts against actual values, where the errors were largest."""
    series = run.forecasts
    if series is None or not (chosen := telling_clients(run, series)):
        return None
    relative, drawn = relative_error(series), []
    for client, role in chosen.items():
        first, last = telling_part(series, client, run.period)
        error = series.error[client]
        worst, count = int(np.nanargmax(error)), int((~np.isnan(error)).sum())
        missed = int(series.missed[client].sum())
        share = float(relative[client])
        of = "" if math.isnan(share) else f", {percent(share)} of its values"
        caption = (
            f"Off by {run.measured(float(np.nanmean(error)))} on average{of}. {number(missed)} of"
            f" {number(count)} values missed ({percent(missed / count)})."
            f" Largest error on {moment(series.times[worst])}: actual"
            f" {number(float(series.actual[client, worst]))}, forecast"
            f" {number(float(series.forecast[client, worst]))}."
        )
        part = slice(first, last)
        chart = figures.figure(
            partial(draw_forecasts, series=series, client=client, part=part, unit=run.unit),
            f"{capital(role)}: client {series.ids[client]}",
            height=230,
            description=f"Days around its largest error. {caption}",
            keys=[*legend(series), ("miss", "missed")],
            caption=caption,
        )
        drawn.append(chart)
    text = (
        "Typical and extreme clients by z-scored MSE, each on the days around its largest error,"
        f" forecast one step ahead. Diamonds mark the failures: {outside(series)}. Point at one for"
        " its numbers."
    )
    title = "Forecasts and actual values"
    return section("forecasts", title, "Forecasts", paragraphs(text), *drawn)


def failures(run: RunFiles, figures: Figures) -> Section | None:
    """When the forecasts failed, over all clients."""
    series = run.forecasts
    if series is None or np.isnan(series.error).all():
        return None
    days = [time.date() for time in series.times]
    starts = [i for i, date in enumerate(days) if i == 0 or date != days[i - 1]]
    known = ~np.isnan(series.error)
    amounts = (series.error, np.where(known, np.abs(series.actual), 0.0), series.missed, known)
    by_day = [np.add.reduceat(np.nansum(amount, axis=0), starts) for amount in amounts]
    wrong, total, missed, count = by_day
    share = ratio(100 * wrong, total)
    chart = None
    if not np.isnan(share).all() and len(starts) > 1:
        shown = slice(max(len(starts) - MOST_DAYS, 0), None)
        marked = {int(i) for i in np.argsort(-np.nan_to_num(share[shown]))[:1]}
        titles = [
            f"{series.times[i]:%a} {day(series.times[i])}: error {number(float(value), 3)} % of the"
            f" values, {number(int(out))} of {number(int(of))} missed"
            for i, value, out, of in zip(starts, share, missed, count, strict=True)
        ]
        labels = [day(series.times[i]) for i in starts[shown]]
        unit = "error in % of the values (WAPE)"
        said = f"The worst day: {titles[int(np.nanargmax(share))]}."
        cut = f", last {MOST_DAYS} days" if len(starts) > MOST_DAYS else ""
        chart = figures.figure(
            lambda drawn: draw_days(drawn, labels, share[shown], titles[shown], marked, unit),
            f"Error by day, all clients{cut}",
            height=200,
            description=said,
            caption=said,
        )
    misses, every = int(series.missed.sum()), int(known.sum())
    expected = ""
    if series.widest is not None:
        expected = f"; {100 - float(series.levels[series.widest]):g} % are expected"
    share_of = f"{percent(misses / every)}{expected}"
    text = f"{number(misses)} of {number(every)} values missed ({share_of}): {outside(series)}."

    moments = table_of(worst_moments(run, series))
    title = "When the forecasts failed"
    return section("failures", title, "Failures", paragraphs(text), chart, moments)


def worst_moments(run: RunFiles, series: Series) -> Table:
    """The largest errors, in multiples of the client's mean error; one per client."""
    usual = mean(series.error, axis=1)
    times = np.nan_to_num(ratio(series.error, usual[:, None]))
    largest = times.argmax(axis=1)
    order = np.argsort(-times.max(axis=1), kind="stable")[:WORST_MOMENTS]
    order = order[times.max(axis=1)[order] > 0]
    rows: list[list[Cell]] = []
    for client in order:
        at = int(largest[client])
        figures = (each[client, at] for each in (series.actual, series.forecast, times))
        rows.append([short(series.ids[client]), moment(series.times[at]), *map(float, figures)])
    unit = run.unit
    headings = f"client | time | actual ({unit}) | forecast ({unit}) | error (times its mean error)"
    return Table(columns(headings), rows, "The largest single errors, at most one per client")


# -- the time ahead ----------------------------------------------------------------------------


def ahead(run: RunFiles, figures: Figures) -> Section:
    """The forecasts beyond the data."""
    found, series = run.ahead, run.forecasts
    if found is None:
        text = (
            "No forecasts beyond the data are stored. fuels report computes them if the run's data"
            " can still be read, and fuels forecast --horizon STEPS prints them."
        )
        return section("ahead", "The time ahead", "Ahead", el("p", text))
    span, steps = "", 0  # not all steps are forecast, so the forecasts do not say how long one is
    known = series is not None and follows(series, found)
    if series is not None and known:
        steps = round((found.times[-1] - found.times[0]) / series.step) + 1
        span = f" {longest(series.step, steps)}"
    roles: dict[str, str] = {}
    if series is not None:
        roles = {series.ids[c]: role for c, role in telling_clients(run, series).items()}
    chosen = [found.ids.index(client) for client in roles if client in found.ids]
    before = "The last actual values, then the forecasts" if known else "The forecasts"
    drawn = []
    for client in chosen or range(min(3, len(found.ids))):
        own = found.ids[client]
        made = found.forecast[client]
        if np.isnan(made).all():
            continue
        peak = int(np.nanargmax(made))
        caption = (
            f"Highest forecast: {run.measured(float(made[peak]))} on {moment(found.times[peak])}."
        )
        role = f" ({roles[own]})" if own in roles else ""
        last = max(2 * run.period, 24)
        chart = figures.figure(
            partial(draw_ahead, past=series, ahead=found, client=client, known=last, unit=run.unit),
            f"Client {own}{role}",
            height=200,
            description=f"{before}. {caption}",
            keys=legend(found, actual=known),
            caption=caption,
        )
        drawn.append(chart)
    text = (
        f"Forecasts for the{span or ' time'} after the end of the data, from"
        f" {moment(found.times[0])} to {moment(found.times[-1])}. They are in ahead.parquet for all"
        " clients. With new values, fuels forecast makes newer ones."
    )
    if steps > len(found.times):
        text += f" {number(len(found.times))} of these {number(steps)} steps are forecast."
    title = f"The{span or ' time'} ahead"
    return section("ahead", title, "Ahead", paragraphs(text), *drawn)


# -- clients -----------------------------------------------------------------------------------


def clients(run: RunFiles, figures: Figures) -> Section | None:
    """The errors of every client."""
    series = run.forecasts
    if series is None:
        return None
    relative, usual = relative_error(series), mean(series.error, axis=1)
    order = np.argsort(-relative, kind="stable")  # NaN comes last
    found: dict[Column, Sequence[Cell]] = {
        Column("client"): series.ids,
        Column("MAE", run.unit): usual.tolist(),
        Column("WAPE", "% of its values"): (100 * relative).tolist(),
    }
    own = run.errors.get(run.title)
    if own is not None:
        found[Column("MSE", "z-scored")] = own["mse"].tolist()
    best = run.best_reference
    if own is not None and best is not None and best in run.errors:
        against = 100 * (ratio(own["mse"], run.errors[best]["mse"]) - 1)
        found[Column("MSE against", f"{best}, %")] = against.tolist()
    for level, inside in run.inside.items():
        found[Column(f"inside {level} %", "% of values")] = (100 * inside).tolist()
    largest = np.where(
        np.isnan(series.error).all(axis=1), np.nan, np.nanmax(np.nan_to_num(series.error), axis=1)
    )
    found[Column("largest error", run.unit)] = largest.tolist()
    if run.weights:
        names = list(run.weights)
        stacked = np.nan_to_num(np.stack(list(run.weights.values())))
        found[Column("most trusted expert")] = [names[i] for i in stacked.argmax(axis=0)]
    caption = (
        "One-step errors on the test part. Choose a heading to sort, again to reverse. MAE: mean"
        " absolute error. WAPE: all errors as a share of all values."
    )
    rows = sortable(Table.of(found, caption), "errors", "client", order.tolist(), "WAPE")
    return section("clients", "Errors of every client", "Clients", rows)
