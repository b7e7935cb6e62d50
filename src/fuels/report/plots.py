"""The figures of a run: forecasts and actual values, errors by client and hour, learning curves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Flags, Floats
from fuels.data.clock import format_step, zone_name
from fuels.data.files import make_folder
from fuels.data.means import mean, ratio
from fuels.evaluation.outcome import Outcome, best_reference, method_rows
from fuels.report import style
from fuels.report.families import by_client

if TYPE_CHECKING:
    from fuels.data.windows import Dataset


DAYS_SHOWN = 5  # of the test part, in forecasts.png
STEPS_SHOWN = (48, 576)  # at least, where steps are long, and at most, where they are short
LARGE = 1e6  # values from here on are labelled 1 M, 1 G, ...
SHADES = (0.5, 0.22)  # of the narrowest and of the widest interval, as shares of full colour
OBSERVED: style.Look = {"color": "#8a8a8a", "linewidth": 3.0}  # darker: intervals are behind
POINTS = 48  # at most, in hours.png: more phases than this are grouped
ERRORS = ("loss_prediction", "val_mse")  # of a round: both are mean squared errors
WIDE_RANGE = 25  # an axis is logarithmic from this ratio of largest to smallest value


def write_plots(outcome: Outcome, folder: Path) -> list[Path]:
    """Every figure the run has data for, as PNG files in `folder`."""
    make_folder(folder)
    from fuels.report.expert_plots import draw_coverage, draw_experts

    drawn: dict[str, Callable[[Outcome], style.Figure]] = {}
    if outcome.scores:
        drawn |= {"forecasts": draw_forecasts, "cdf": draw_cdf, "hours": draw_hours}
    if outcome.mixture is not None:
        drawn |= {"experts": draw_experts, "coverage": draw_coverage}
    if outcome.history:
        drawn |= {"learning": draw_learning}
    return [style.save(draw(outcome), folder / f"{name}.png") for name, draw in drawn.items()]


# -- forecasts and actual values ---------------------------------------------------------------


def draw_forecasts(outcome: Outcome) -> style.Figure:
    """A few days of the most informative clients."""
    chosen, rival = telling_clients(outcome), best_reference(outcome)
    names = [outcome.title] if rival is None else [outcome.title, rival]
    levels = () if outcome.mixture is None else outcome.mixture.bands.levels
    picture, axes = style.figure(
        ["observed", *(f"{level:g} % interval" for level in levels), *names],
        rows=len(chosen),
        title=f"{outcome.title}: one-step forecasts and observed values",
        subtitle="A few days of the test part for selected clients. MSE: z-scored, over the whole"
        " test part." + (f" Gain: over {rival}, the best reference." if rival else ""),
        footer=style.origin(outcome.dataset),
        height=1.75,
        gap=0.3,
    )
    for (client, role), (axis,) in zip(chosen.items(), axes, strict=True):
        _draw_client(outcome, client, role, names, axis)
    zone = outcome.dataset.panel.timezone
    axes[-1][0].set_xlabel(f"local time ({zone_name(zone)})" if zone else "time")
    picture.align_ylabels()
    style.legend(picture, axes[0][0])
    return picture


def telling_clients(outcome: Outcome) -> dict[int, str]:
    """Best, median and worst client by MSE, and where the method gains most, with their roles.

    The best client is one whose values change: forecasting a constant is no achievement.
    """
    mse = outcome.scores[outcome.title].mse
    order = np.argsort(mse, kind="stable")[: int((~np.isnan(mse)).sum())]
    constant = constant_clients(outcome.dataset)
    best = next((client for client in order if not constant[client]), order[0])
    first = "best" if best == order[0] else "best whose values change"
    picks = [(first, best), ("median", order[(len(order) - 1) // 2]), ("worst", order[-1])]
    rival = best_reference(outcome)
    if rival is not None:
        gain = outcome.scores[rival].mse - mse
        if np.nanmax(gain) > 0:
            picks.append(("largest gain", np.nanargmax(gain)))
    return by_client(picks) if len(order) > 1 else {int(order[0]): "the only client with a score"}


def constant_clients(dataset: Dataset) -> Flags:
    """Clients whose observed values are the same throughout the test part, [client]."""
    first, last = dataset.split.part("test")
    series, target = dataset.series[:, first:last], dataset.target[:, first:last]
    highest = np.where(target, series, -np.inf).max(axis=1)
    return np.asarray(highest <= np.where(target, series, np.inf).min(axis=1))


def _draw_client(
    outcome: Outcome, client: int, role: str, names: Sequence[str], axis: style.Axes
) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

    dataset, scores = outcome.dataset, outcome.scores
    actual = dataset.values("test")[client]
    first, last = shown_steps(dataset.panel.step_seconds, dataset.period, ~np.isnan(actual))
    times = dataset.times("test")[first:last]
    start = dataset.split.part("test")[0]
    known = dataset.window[client, start + first : start + last]
    for label, lower, upper, shade in _intervals(outcome, client, first, last):
        axis.fill_between(
            times, lower, upper, where=known, label=label, color=shade, linewidth=0, zorder=0.4
        )
    _line(axis, times, actual[first:last], "observed", OBSERVED)
    for name, look in _looks(outcome, names).items():
        unit = outcome.forecasts[name][client] * dataset.std[client] + dataset.mean[client]
        # A forecast from a window with missing values means nothing.
        shown = np.where(known, unit[first:last], np.nan)
        _line(axis, times, shown, name, {**look, "linewidth": 0.7 * look["linewidth"]})
    errors = [f"{name} {style.number(float(scores[name].mse[client]), 3)}" for name in names]
    name, said = style.short(dataset.ids[client]), ", ".join(errors)
    style.panel_title(axis, f"{role[0].upper()}{role[1:]}: client {name} · MSE {said}")
    axis.set_ylabel(style.short(dataset.panel.unit, 20))
    axis.yaxis.set_major_locator(MaxNLocator(4))
    if max(abs(limit) for limit in axis.get_ylim()) < LARGE:
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    else:  # in full it would not fit
        axis.yaxis.set_major_formatter(EngFormatter(sep=" "))
    style.time_axis(axis, dataset.panel.timezone, times)


def _intervals(
    outcome: Outcome, client: int, first: int, last: int
) -> Iterator[tuple[str, Floats, Floats, str]]:
    """Label, bounds in the data's unit and colour of each interval, the widest first.

    The colours are opaque, so that the legend shows what is seen where intervals overlap.
    """
    if outcome.mixture is None:
        return
    bands, limits = outcome.mixture.bands, outcome.mixture.intervals.limits
    mean, std = outcome.dataset.mean[client], outcome.dataset.std[client]
    shades = np.linspace(*SHADES, len(bands.levels))
    for i in reversed(range(len(bands.levels))):
        lower, upper = (
            limits.confine(band[i, client, first:last] * std + mean)
            for band in (bands.lower, bands.upper)
        )
        yield f"{bands.levels[i]:g} % interval", lower, upper, style.tint(style.METHOD, shades[i])


def shown_steps(step_seconds: int, period: int, observed: Flags) -> tuple[int, int]:
    """The first days of a series, or later ones with fewer gaps: [first, last)."""
    length = min(len(observed), int(np.clip(DAYS_SHOWN * 86400 // step_seconds, *STEPS_SHOWN)))
    starts = np.arange(0, len(observed) - length + 1, period)
    counts = [int(observed[start : start + length].sum()) for start in starts]
    first = int(starts[int(np.argmax(counts))])
    return first, first + length


def _line(axis: style.Axes, x: NDArray[Any], y: Floats, label: str, look: style.Look) -> None:
    """A line with breaks at missing values; a single value between two gaps is a dot."""
    axis.plot(x, y, label=label, **look)
    there = np.concatenate([[False], ~np.isnan(y), [False]])
    single = there[1:-1] & ~there[:-2] & ~there[2:]
    if single.any():
        axis.plot(x[single], y[single], ".", color=look["color"], markersize=4)


# -- errors ------------------------------------------------------------------------------------


def draw_cdf(outcome: Outcome) -> style.Figure:
    """The distribution of the error over the clients."""
    picture, [[axis]] = style.figure(
        list(outcome.scores),
        title="Distribution of the error over the clients",
        subtitle="Share of the clients whose MSE is at most the value on the axis;"
        " further left is better.",
        footer=style.origin(outcome.dataset),
    )
    errors = {name: scores.mse for name, scores in outcome.scores.items()}
    log = style.cdf(axis, errors, _looks(outcome, list(errors)), WIDE_RANGE)
    axis.margins(x=0.02)
    if not log:
        axis.set_xlim(left=0)
    style.legend(picture, axis)
    return picture


def draw_hours(outcome: Outcome) -> style.Figure:
    """The error by the time of the period."""
    from matplotlib.ticker import FuncFormatter

    dataset = outcome.dataset
    seconds = dataset.panel.step_seconds
    a_day = dataset.period * seconds == 86400
    width = -(-dataset.period // POINTS)
    together = f" Each point covers {format_step(width * seconds)}." if width > 1 else ""
    picture, [[axis]] = style.figure(
        list(outcome.scores),
        title=f"Error by {'hour of the day' if a_day else 'time of the period'}",
        subtitle=f"MSE of each time of the {'day' if a_day else 'period'}, mean over the clients;"
        f" lower is better.{together}",
        footer=style.origin(outcome.dataset),
    )
    curves = {name: error_by_phase(outcome, name, width) for name in outcome.scores}
    x = np.arange(0, dataset.period, width) * (seconds / 3600 if a_day else 1)
    for name, look in _looks(outcome, list(outcome.scores)).items():
        marker: style.Look = {"marker": "o", "markersize": 3.5} if look["zorder"] > 3 else {}
        axis.plot(x, curves[name], label=name, **look, **marker)
    log = style.log_scale(axis, "y", np.concatenate(list(curves.values())).tolist(), WIDE_RANGE)
    axis.set_ylabel(f"MSE (z-scored{', log scale' if log else ''})")
    axis.margins(x=0.02)
    if not log:
        axis.set_ylim(bottom=0)
    if a_day:
        axis.set_xticks(np.arange(0, 24, 3))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda hour, _: f"{hour:02.0f}:00"))
        zone = dataset.panel.timezone
        of = f" (standard time of {zone_name(zone)})" if zone else ""
        axis.set_xlabel(f"hour of the day{of}")
    else:
        axis.set_xlabel(f"steps since the start of the period ({format_step(seconds)} each)")
    style.legend(picture, axis)
    return picture


def error_by_phase(outcome: Outcome, name: str, width: int = 1) -> Floats:
    """MSE of a forecast at each phase of the period, in groups of `width` phases, [phase].

    Every client counts alike; a phase without data is NaN.
    """
    dataset = outcome.dataset
    first, last = dataset.split.part("test")
    target = dataset.target[:, first:last]
    error = np.where(target, dataset.series[:, first:last] - outcome.forecasts[name], 0.0) ** 2
    phase = np.arange(first, last) % dataset.period // width
    phases = np.arange(-(-dataset.period // width))
    member = (phase[:, None] == phases).astype(np.float64)  # [step, phase]
    total, count = error @ member, target @ member  # [client, phase]
    return mean(ratio(total, count), axis=0)


# -- learning ----------------------------------------------------------------------------------


def draw_learning(outcome: Outcome) -> style.Figure:
    """Losses and validation error by round."""
    history = outcome.history
    keys = dict.fromkeys(key for line in history for key in line)
    curves = {key: column(history, key) for key in keys if key in ERRORS or key.startswith("loss_")}
    curves = {key: y for key, y in curves.items() if np.isfinite(y).any()}
    errors = [key for key in ERRORS if key in curves]
    terms = [key for key in curves if key not in ERRORS]
    rows = [group for group in (errors, terms) if group]
    styles = _curve_looks(terms)
    best = int(np.nanargmin(curves["val_mse"])) if "val_mse" in curves else None
    rounds = column(history, "round")
    marker: style.Look = {"marker": "o", "markersize": 3} if len(rounds) <= 10 else {}
    validation = "There is no validation error"
    if best is not None:
        validation = f"Validation error is lowest in round {history[best]['round']}"
    picture, axes = style.figure(
        [styles[key]["label"] for group in rows for key in group],
        rows=len(rows),
        title=f"How {outcome.title} learned",
        subtitle=f"Means over the clients. {validation}.",
        footer=style.origin(outcome.dataset),
        height=3.2 if len(rows) == 1 else 2.4,
    )
    for group, (axis,) in zip(rows, axes, strict=True):
        for key in group:
            axis.plot(rounds, curves[key], **styles[key], **marker)
            if key == "val_mse" and best is not None:
                lowest = {"color": styles[key]["color"], "markersize": 7, "label": "lowest"}
                axis.plot(rounds[best], curves[key][best], "o", zorder=6, **lowest)
        style.whole_numbers(axis, "x")
        axis.set_xlim(0, 1.02 * rounds[-1])
        span = np.concatenate([curves[key] for key in group])
        log = style.log_scale(axis, "y", span[np.isfinite(span)].tolist(), WIDE_RANGE / 3)
        kind = "further losses" if group is terms else "MSE (z-scored)"
        axis.set_ylabel(f"{kind}{', log scale' if log else ''}")
    axes[-1][0].set_xlabel("round")
    picture.align_ylabels()
    style.legend(picture, *(line[0] for line in axes))
    return picture


def column(history: Sequence[dict[str, Any]], key: str) -> Floats:
    """One value per round, [round]; NaN where it is absent."""
    return np.array([np.nan if line.get(key) is None else line[key] for line in history], float)


def _curve_looks(terms: Sequence[str]) -> dict[str, style.Look]:
    """Training dark, validation blue; further losses grey."""
    found: dict[str, style.Look] = {
        "loss_prediction": {
            "color": style.INK,
            "linewidth": 1.4,
            "label": "training, prediction loss",
        },
        "val_mse": {"color": style.METHOD, "linewidth": 2.0, "label": "validation MSE"},
    }
    for i, key in enumerate(terms):
        name = f"training, {key.removeprefix('loss_')} loss"
        dash = ("solid", (0, (5, 2)), (0, (1, 1.4)))[i % 3]
        found[key] = {"color": style.QUIET, "linewidth": 1.4, "linestyle": dash, "label": name}
    return found


# -- all figures -------------------------------------------------------------------------------


def _looks(outcome: Outcome, names: Sequence[str]) -> dict[str, style.Look]:
    return style.looks(names, *method_rows(outcome.title), best_reference(outcome))
