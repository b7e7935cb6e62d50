"""The mixture on the test part: the weights of its experts, and the coverage of its intervals."""

from __future__ import annotations

import numpy as np

from fuels.arrays import Floats
from fuels.data.clock import zone_name
from fuels.evaluation.outcome import Outcome
from fuels.report import style
from fuels.report.families import PERSONAL, REGRESSION, SHARED, SIMPLE, by_family
from fuels.report.plots import telling_clients

COLOURS = ("#d5700a", "#4c9a6a", "#b07aa1")  # of further levels, distinct from METHOD
COLOUR_OF = {PERSONAL: style.METHOD, SHARED: "#d5700a", REGRESSION: "#7aa6c2", SIMPLE: "#d3d7db"}


def draw_experts(outcome: Outcome) -> style.Figure:
    """Weights as stacked areas: the mean over the clients, then a few single clients."""
    mixture = outcome.mixture
    assert mixture is not None  # drawn only for runs that have one
    dataset, led = outcome.dataset, outcome.summary["mixture"]["model_led"]
    chosen = telling_clients(outcome)
    first, last = dataset.split.part("test")
    times = dataset.times("test")
    smooth = min(dataset.period, last - first)
    panels = {"Mean over all clients": mixture.weights.mean(axis=1)}
    for client, why in chosen.items():
        name = f"{why[0].upper()}{why[1:]}: client {style.short(dataset.ids[client])}"
        panels[name] = mixture.weights[:, client]
    areas = {
        title: by_family(running_mean(weights, smooth), mixture.names, mixture.model)
        for title, weights in panels.items()
    }
    picture, grid = style.figure(
        list(next(iter(areas.values()))),
        rows=len(panels),
        title="Weights of the experts over time",
        subtitle=f"Weights in the forecasts of {outcome.title}, running means over {smooth} steps."
        f" The personal model had the largest weight in {100 * led:.0f} % of all steps.",
        footer=style.origin(dataset),
        height=1.35,
        gap=0.25,
    )
    for (axis,), (title, weights) in zip(grid, areas.items(), strict=True):
        axis.stackplot(
            times.astype("datetime64[ms]"),
            *weights.values(),
            labels=list(weights),
            colors=[COLOUR_OF[name] for name in weights],
            linewidth=0,
        )
        style.panel_title(axis, title)
        axis.set_ylim(0, 1)
        axis.set_yticks([0, 0.5, 1])
        axis.set_ylabel("weight")
        style.time_axis(axis, dataset.panel.timezone, times)
        axis.set_xlim(times[0], times[-1])
    zone = dataset.panel.timezone
    grid[-1][0].set_xlabel(f"local time ({zone_name(zone)})" if zone else "time")
    picture.align_ylabels()
    style.legend(picture, grid[0][0])
    return picture


def draw_coverage(outcome: Outcome) -> style.Figure:
    """The share of values inside the intervals, by the time of the period."""
    assert outcome.mixture is not None  # drawn only for runs that have one
    scores, dataset = outcome.mixture.intervals, outcome.dataset
    hours = dataset.period * dataset.panel.step_seconds / 3600
    names = [f"{level:g} % intervals" for level in scores.levels]
    picture, [[axis]] = style.figure(
        names,
        title="Values inside the intervals",
        subtitle="Share of the values at each time of the period, all clients; dashed: nominal.",
        footer=style.origin(dataset),
    )
    x = np.arange(scores.by_phase.shape[1]) * hours / scores.by_phase.shape[1]
    colours = [style.METHOD, *COLOURS]
    for i, (level, name) in enumerate(zip(scores.levels, names, strict=True)):
        colour = colours[i % len(colours)]
        axis.plot(x, 100 * scores.by_phase[i], color=colour, label=name, marker="o", markersize=3.5)
        axis.axhline(level, color=colour, linewidth=0.8, linestyle="dashed")
    axis.set_ylabel("values inside (%)")
    axis.set_xlabel("hour of the day" if hours == 24 else "hours since the start of the period")
    if hours == 24:
        axis.set_xticks(np.arange(0, 24, 3))
    axis.margins(x=0.02)
    axis.set_ylim(top=101)
    style.legend(picture, axis)
    return picture


def running_mean(weights: Floats, width: int) -> Floats:
    """Mean over the last `width` steps (fewer at the start), [step, expert]."""
    total = np.cumsum(np.nan_to_num(weights), axis=0)
    before = np.concatenate([np.zeros((width, weights.shape[1])), total])[: len(total)]
    count = np.minimum(np.arange(1, len(total) + 1), width)[:, None]
    return np.asarray((total - before) / count)
