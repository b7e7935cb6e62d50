"""The mixture on the test part: the weights of its experts, and the coverage of its intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fuels.data.clock import zone_name
from fuels.evaluation.outcome import MixtureOutcome, Outcome
from fuels.report.plots import telling_clients
from fuels.report.style import METHOD, figure, legend, origin, short, time_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

SHOWN = 5  # experts named in addition to the personal model; the others share one area
OTHERS = "other experts"
COLOURS = ("#d5700a", "#4c9a6a", "#b07aa1", "#e3b341", "#7aa6c2")  # distinct from METHOD
REST = "#d9d9d9"


def draw_experts(outcome: Outcome) -> Figure:
    """Weights as stacked areas: the mean over the clients, then a few single clients."""
    mixture = outcome.mixture
    assert mixture is not None  # drawn only for runs that have one
    dataset = outcome.dataset
    names, led = leading(mixture), outcome.summary["mixture"]["model_led"]
    chosen = telling_clients(outcome)
    first, last = dataset.split.part("test")
    times = dataset.times("test")
    smooth = min(dataset.period, last - first)
    picture, grid = figure(
        1 + len(chosen),
        1,
        [*names, OTHERS],
        title="Weights of the experts over time",
        subtitle=f"Weights in the forecasts of {outcome.title}, running means over {smooth} steps."
        f" The personal model had the largest weight in {led:.0%} of all steps.",
        footer=origin(outcome.dataset),
        height=1.35,
        gap=0.25,
    )
    panels = {"mean over all clients": mixture.weights.mean(axis=1)}
    for client, why in chosen.items():
        panels[f"{short(dataset.ids[client])}, {why}"] = mixture.weights[:, client]
    for (axis,), (title, weights) in zip(grid, panels.items(), strict=True):
        _areas(axis, times, running_mean(weights, smooth), mixture.names, names)
        axis.set_title(title, loc="left", fontsize=9.5)
        axis.set_ylim(0, 1)
        axis.set_xlim(times[0], times[-1])
        time_axis(axis, dataset.panel.timezone, times)
        axis.set_ylabel("weight")
    zone = dataset.panel.timezone
    grid[-1][0].set_xlabel(f"local time ({zone_name(zone)})" if zone else "time")
    legend(picture, grid[0][0])
    return picture


def draw_coverage(outcome: Outcome) -> Figure:
    """The share of values inside the intervals, by the time of the period."""
    assert outcome.mixture is not None  # drawn only for runs that have one
    scores, dataset = outcome.mixture.intervals, outcome.dataset
    hours = dataset.period * dataset.panel.step_seconds / 3600
    names = [f"{level:g} % intervals" for level in scores.levels]
    picture, [[axis]] = figure(
        1,
        1,
        names,
        title="Values inside the intervals",
        subtitle="Share of the values at each time of the period, all clients; dashed: nominal.",
        footer=origin(dataset),
    )
    x = np.arange(scores.by_phase.shape[1]) * hours / scores.by_phase.shape[1]
    colours = [METHOD, *COLOURS]
    for i, (level, name) in enumerate(zip(scores.levels, names, strict=True)):
        colour = colours[i % len(colours)]
        axis.plot(x, 100 * scores.by_phase[i], color=colour, label=name, marker="o", markersize=3.5)
        axis.axhline(level, color=colour, linewidth=0.8, linestyle="dashed")
    axis.set_ylabel("values inside (%)")
    axis.set_xlabel("hour of the day" if hours == 24 else "hours since the start of the period")
    axis.margins(x=0.02)
    axis.set_ylim(top=101)
    legend(picture, axis)
    return picture


def leading(mixture: MixtureOutcome) -> list[str]:
    """The personal model and the experts with the largest mean weights."""
    mean = mixture.weights.mean(axis=(0, 1))
    order = [mixture.names[i] for i in np.argsort(-mean)]
    return [mixture.model, *[name for name in order if name != mixture.model][:SHOWN]]


def running_mean(weights: Floats, width: int) -> Floats:
    """Mean over the last `width` steps (fewer at the start), [step, expert]."""
    total = np.cumsum(np.nan_to_num(weights), axis=0)
    before = np.concatenate([np.zeros((width, weights.shape[1])), total])[: len(total)]
    count = np.minimum(np.arange(1, len(total) + 1), width)[:, None]
    return np.asarray((total - before) / count)


def _areas(
    axis: Axes,
    times: NDArray[np.datetime64],
    weights: Floats,
    all_names: Sequence[str],
    shown: Sequence[str],
) -> None:
    columns = [weights[:, all_names.index(name)] for name in shown]
    rest = np.clip(weights.sum(axis=1) - np.sum(columns, axis=0), 0, None)
    axis.stackplot(
        times.astype("datetime64[ms]"),
        *columns,
        rest,
        labels=[*shown, OTHERS],
        colors=[METHOD, *COLOURS[: len(shown) - 1], REST],
        linewidth=0,
    )
