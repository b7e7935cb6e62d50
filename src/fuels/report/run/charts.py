"""The charts of a run's report, from arrays in the data's unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np

from fuels.arrays import Floats
from fuels.evaluation.series import Series
from fuels.report.page.svg import Chart
from fuels.report.style import number

LONGEST, SHORTEST = 336, 48  # steps in a chart of forecasts
PERIODS = 5  # in such a chart


def moment(time: datetime, year: bool = True) -> str:
    """`Thu 26 Dec 2013, 13:00`"""
    return f"{time:%a} {day(time, year)}, {time:%H:%M}"


def day(time: datetime, year: bool = False) -> str:
    return f"{time.day} {time:%b %Y}" if year else f"{time.day} {time:%b}"


def telling_part(series: Series, client: int, period: int) -> tuple[int, int]:
    """The steps to show of a client: those around its largest error, [first, last)."""
    steps = len(series.times)
    length = min(steps, max(SHORTEST, min(LONGEST, PERIODS * period)))
    error = series.error[client]
    worst = 0 if np.isnan(error).all() else int(np.nanargmax(error))
    first = worst - length // 2
    # Charts begin at the start of a day.
    while (
        0 < first < steps - length and series.times[first].date() == series.times[first - 1].date()
    ):
        first -= 1
    first = min(max(first, 0), steps - length)
    return first, first + length


def time_axis(chart: Chart, times: Sequence[datetime], low: float, high: float) -> None:
    """Days as labels where several are shown, and hours on a shorter axis."""
    starts = [i for i in range(1, len(times)) if times[i].date() != times[i - 1].date()]
    if times[0].hour == 0 and times[0].minute == 0:
        starts = [0, *starts]
    if len(starts) < 2:
        every = max(1, len(times) // 6)
        labels = [(float(i), f"{times[i]:%H:%M}") for i in range(0, len(times), every)]
        chart.x_axis(low, high, labels, starts)
        return
    lines = starts if len(starts) <= 40 else []
    between = np.diff([*starts, len(times)])
    if len(starts) <= 10 and not chart.narrow and between.max() > 1:  # days are labelled at noon
        at = [(start + wide / 2, start) for start, wide in zip(starts, between, strict=True)]
        labels = [(middle, f"{times[i]:%a} {day(times[i])}") for middle, i in at]
    else:
        labels = [(float(i), day(times[i])) for i in starts]
    chart.x_axis(low, high, labels, lines)


def spanned(*arrays: Floats) -> tuple[float, float]:
    """The smallest and the largest known value."""
    known = np.concatenate([array[np.isfinite(array)] for array in arrays])
    return (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)


def points(*values: Floats, at: Sequence[float] = ()) -> list[tuple[float, ...] | None]:
    """Values as points of a line, or bounds as those of a band, at 0, 1, 2, ... by default."""
    rows = zip(at or range(len(values[0])), *values, strict=True)
    return [None if any(map(math.isnan, row)) else tuple(map(float, row)) for row in rows]


def draw_intervals(
    chart: Chart, series: Series, client: int, part: slice, at: Sequence[float] = ()
) -> None:
    """The widest interval first, so that the others are drawn on top of it."""
    order = sorted(range(len(series.levels)), key=lambda i: -float(series.levels[i]))
    for rank, i in enumerate(order):
        kind = "band95" if rank == 0 and len(order) > 1 else "band80"
        chart.band(
            points(*(band[i, client, part] for band in (series.lower, series.upper)), at=at), kind
        )


def draw_forecasts(chart: Chart, series: Series, client: int, part: slice, unit: str) -> None:
    """Actual values, forecasts and intervals of some steps; missed values are marked."""
    actual, made = series.actual[client, part], series.forecast[client, part]
    low, high = series.lower[:, client, part], series.upper[:, client, part]
    chart.y_axis(*spanned(actual, made, low.ravel(), high.ravel()), unit or "value")
    time_axis(chart, series.times[part], 0.0, float(len(actual) - 1))
    draw_intervals(chart, series, client, part)
    chart.line(points(actual), "truth")
    chart.line(points(made), "method")
    for i in np.flatnonzero(series.missed[client, part]):
        chart.diamond(float(i), float(actual[i]), missed_text(series, client, part.start + int(i)))


def missed_text(series: Series, client: int, step: int) -> str:
    """What a tooltip says about a missed value."""
    said = (
        f"{moment(series.times[step])}: actual {number(float(series.actual[client, step]))},"
        f" forecast {number(float(series.forecast[client, step]))}"
    )
    if (i := series.widest) is None:
        return said
    bound = [number(float(band[i, client, step])) for band in (series.lower, series.upper)]
    return f"{said}, {series.levels[i]} % interval {bound[0]} to {bound[1]}"


def follows(past: Series, ahead: Series) -> bool:
    """Whether forecasts begin within a day of the last values, which may be after the test part."""
    return past.step <= ahead.times[0] - past.times[-1] <= max(timedelta(days=1), past.step)


def draw_ahead(
    chart: Chart, past: Series | None, ahead: Series, client: int, known: int, unit: str
) -> None:
    """The last `known` values of a client, then its forecasts with intervals, which may be some
    steps apart. The axis counts steps of the data."""
    before, first, step = np.empty(0), ahead.times[0], ahead.step
    if past is not None and follows(past, ahead):
        step = past.step
        if ahead.ids[client] in past.ids:
            known = min(known, len(past.times))
            before = past.actual[past.ids.index(ahead.ids[client]), len(past.times) - known :]
            first = past.times[len(past.times) - known]
    at = [(time - first) / step for time in ahead.times]
    made = ahead.forecast[client]
    limits = (ahead.lower[:, client].ravel(), ahead.upper[:, client].ravel())
    chart.y_axis(*spanned(before, made, *limits), unit or "value")
    times = [first + i * step for i in range(round(at[-1]) + 1)]
    time_axis(chart, times, 0.0, float(len(times) - 1))
    draw_intervals(chart, ahead, client, slice(0, len(at)), at)
    chart.line(points(before), "truth")
    joint = points(made, at=at)
    if len(before) and len(before) == at[0] and not math.isnan(before[-1]):  # no value in between
        joint = [(len(before) - 1.0, float(before[-1])), *joint]
    chart.line(joint, "method")
    if len(before):
        x = chart.x(at[0] - 0.5)
        chart.add("line", x1=x, x2=x, y1=chart.top, y2=chart.height - chart.bottom, class_="now")


def draw_parts(chart: Chart, parts: Sequence[tuple[str, float, str, str]]) -> None:
    """Name, length, dates and class of consecutive parts of the data, as one bar."""
    total, x = sum(length for _, length, _, _ in parts), 0.0
    for i, (name, length, dates, kind) in enumerate(parts):
        wide = length / total * chart.width
        chart.box(x, 4.0, max(wide - 2, 2.0), 18.0, f"fill {kind}", 3)
        if not chart.narrow:
            last = i == len(parts) - 1 and i > 0
            at = chart.width if last else x
            chart.text(at, 40.0, name, "end" if last else "start", "strong")
            if wide > 8 * len(dates) or last:
                chart.text(at, 57.0, dates, "end" if last else "start")
        else:
            chart.box(0.0, 34.0 + 22 * i, 10.0, 10.0, f"fill {kind}")
            chart.text(18.0, 43.0 + 22 * i, f"{name}: {dates}")
        x += wide


def draw_phases(
    chart: Chart, shares: Sequence[tuple[str, Sequence[float | None], str]], hours: float
) -> None:
    """Share of the values inside each interval by the time of the period; dashed: its level."""
    known = [share for _, values, _ in shares for share in values if share is not None]
    levels = [float(level) for level, _, _ in shares]
    chart.y_axis(
        100 * min(known, default=0.0),
        max(100.0, *levels),
        "values inside the interval",
        suffix=" %",
    )
    slots = len(shares[0][1])
    if hours == 24:
        marks = range(0, 25, 6 if chart.narrow else 3)
        labels = [(hour / 24 * slots, f"{hour:02}:00") for hour in marks]
    else:
        labels = [(slots * i / 4, f"{hours * i / 4:.4g} h") for i in range(5)]
    chart.right = 26.0
    chart.x_axis(0.0, float(slots), labels, [at for at, _ in labels])
    for level, values, kind in shares:
        chart.line([(0.0, float(level)), (float(slots), float(level))], f"{kind} dash")
        curve = [None if v is None else (i + 0.5, 100 * v) for i, v in enumerate(values)]
        chart.line(curve, kind)


def draw_days(
    chart: Chart,
    labels: Sequence[str],
    values: Floats,
    titles: Sequence[str],
    marked: set[int],
    unit: str,
) -> None:
    """Upright bars, one per period."""
    chart.y_axis(0.0, float(np.nanmax(values)), unit, suffix="")
    chart.x_axis(0.0, float(len(values)), [(i + 0.5, label) for i, label in enumerate(labels)])
    for i, value in enumerate(values):
        if not math.isnan(value):
            kind = "fill fail" if i in marked else "fill rest"
            chart.bar(i + 0.1, 0.8, float(value), titles[i], kind)


def draw_curves(
    chart: Chart,
    rounds: Sequence[float],
    curves: Sequence[tuple[Sequence[float | None], str]],
    unit: str,
) -> None:
    """Curves over the rounds."""
    values = np.array([v for curve, _ in curves for v in curve if v is not None])
    chart.y_axis(*spanned(values), unit)
    every = max(1, math.ceil(len(rounds) / 8))
    shown = [(r, f"{r:.0f}") for r in rounds if int(r) % every == 0]
    chart.right = 20.0
    chart.x_axis(rounds[0], max(rounds[-1], rounds[0] + 1), shown)
    for curve, kind in curves:
        chart.line(
            [None if v is None else (r, v) for r, v in zip(rounds, curve, strict=True)], kind
        )


def longest(step: timedelta, steps: int) -> str:
    """`24 hours`, `7 days`, `2 hours`."""
    seconds = step.total_seconds() * steps
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        count = seconds / size
        if count >= 1 and count == int(count) and not (name == "day" and count == 1):
            return f"{int(count)} {name}{'' if count == 1 else 's'}"
    return f"{seconds:g} seconds"
