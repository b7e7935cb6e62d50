"""Spatio-temporal heterogeneity (the paper's style.Figure 1), and a map of the cells.

The figure shows two busy clients whose mean days differ most: their days (heterogeneity in space)
and their mornings and evenings (heterogeneity in time). The map shows every participating client
with known coordinates. Only the training part is used; nothing is trained.
"""

from __future__ import annotations

import numpy as np

from fuels.arrays import Floats
from fuels.data.means import mean, ratio
from fuels.data.windows import Dataset
from fuels.report import style
from fuels.report.tables import Cell, Table, columns
from fuels.research.experiments.base import Budget, Context, Experiment, Result, source_name

# Shares of a period: 6 to 10 and 18 to 22 hours where it is a day.
MORNING, EVENING = (6 / 24, 10 / 24), (18 / 24, 22 / 24)


# -- statistics --------------------------------------------------------------------------------


def training_days(dataset: Dataset) -> Floats:
    """Observed values of the training part in the data's unit, [client, period, phase]."""
    end, offset = dataset.split.train, dataset.offset
    values = np.full((len(dataset.ids), end), np.nan)
    values[:, offset:] = dataset.panel.values[: end - offset].T
    return values.reshape(len(dataset.ids), -1, dataset.period)


def mean_days(dataset: Dataset) -> Floats:
    """The mean training day of each client, [client, phase]; unobserved phases get the mean."""
    days = training_days(dataset)
    means, overall = mean(days, axis=1), mean(days.reshape(len(days), -1), axis=1)
    return np.asarray(np.where(np.isnan(means), overall[:, None], means))


def day_shapes(dataset: Dataset) -> Floats:
    """Mean days as distributions: shifted to start at zero, summing to one, [client, phase]."""
    days = mean_days(dataset)
    shifted = days - days.min(axis=1, keepdims=True)
    shapes = ratio(shifted, shifted.sum(axis=1, keepdims=True))
    return np.nan_to_num(shapes, nan=1 / dataset.period)  # a constant day has no shape


def divergences(shapes: Floats) -> Floats:
    """Jensen-Shannon divergence in nats of every two rows, [client, client]."""
    from scipy.special import rel_entr

    def to_middle(one: Floats, other: Floats) -> Floats:
        return np.asarray(rel_entr(one, (one + other) / 2).sum(axis=-1))

    rows = [(to_middle(row, shapes) + to_middle(shapes, row)) / 2 for row in shapes]
    return np.maximum(np.stack(rows), 0.0)


def part_of_day(dataset: Dataset, share: tuple[float, float]) -> Floats:
    """Observed training values inside a part of the period, [client, value]."""
    inside = training_days(dataset)[:, :, phases(dataset, share)]
    return inside.reshape(len(dataset.ids), -1)


def phases(dataset: Dataset, share: tuple[float, float]) -> slice:
    """The phases of a part of the period, at least one."""
    first, last = (int(end * dataset.period + 0.5) for end in share)
    return slice(first, max(first + 1, last))


def evening_lead(dataset: Dataset) -> Floats:
    """Mean of evenings minus mornings, in standard deviations of the client, [client]."""
    days = mean_days(dataset)
    morning, evening = (
        days[:, phases(dataset, share)].mean(axis=1) for share in (MORNING, EVENING)
    )
    return np.asarray((evening - morning) / dataset.std)


def telling_pair(dataset: Dataset) -> tuple[int, int]:
    """The two clients of the busier half whose mean days differ most; a single client twice.

    The mean days of nearly silent clients differ from all others by chance. Three clients or fewer
    have no busier half.
    """
    quiet = np.median(dataset.mean) if len(dataset.mean) > 3 else -np.inf
    busy = np.flatnonzero(dataset.mean >= quiet)
    apart = divergences(day_shapes(dataset)[busy])
    first, second = busy[list(np.unravel_index(int(apart.argmax()), apart.shape))]
    return int(min(first, second)), int(max(first, second))


def is_a_day(dataset: Dataset) -> bool:
    return dataset.period * dataset.panel.step_seconds == 86400


# -- the experiment ----------------------------------------------------------------------------


def run(context: Context) -> Result:
    rows: list[list[Cell]] = []
    spreads: list[list[Cell]] = []
    figures: dict[str, style.Figure] = {}
    text: list[str] = []
    daily = True
    for source in context.sources:
        dataset = context.dataset(context.settings(source=source))
        name, daily = source_name(source), daily and is_a_day(dataset)
        after = "" if len(context.sources) == 1 else f"-{dataset.panel.name}"
        pair = telling_pair(dataset)
        rows += [[name, *row] for row in _parts(dataset, pair)]
        spreads += [[name, *row] for row in _spread(dataset)]
        figures[f"data-heterogeneity{after}"] = draw_pair(dataset, pair)
        places = dataset.panel.coordinates
        if places is None or not np.isfinite(places).all(axis=1).any():
            text.append(f"{name}: no coordinates are known, so there is no map.")
        else:
            panel = context.store.panel(context.settings(source=source))
            assert panel.coordinates is not None
            figures[f"data-map{after}"] = draw_map(dataset, panel.coordinates)
    headings = "data | client | part of the period | values | mean | standard deviation"
    what = "Mornings and evenings" if daily else "Two parts of the period"
    title = f"{what} of two busy clients that differ most, in the data's unit"
    parts = Table(columns(f"{headings} | 10 % | median | 90 %"), rows, title)
    headings = "data | figure | lowest client | median client | highest client"
    spread = Table(columns(headings), spreads, "How clients differ over the training part")
    return Result({"data-pair": parts, "data-spread": spread}, figures, text)


def _parts(dataset: Dataset, pair: tuple[int, int]) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for client in dict.fromkeys(pair):
        for word, share in zip(part_names(dataset), (MORNING, EVENING), strict=True):
            values = part_of_day(dataset, share)[client]
            values = values[~np.isnan(values)]
            row: list[Cell] = [dataset.ids[client], word, len(values)]
            if len(values):
                spread = np.percentile(values, (10, 50, 90)).tolist()
                row += [float(values.mean()), float(values.std()), *spread]
            rows.append(row + [None] * (8 - len(row)))
    return rows


def _spread(dataset: Dataset) -> list[list[Cell]]:
    apart = divergences(day_shapes(dataset))
    others = apart.sum(axis=1) / max(1, len(apart) - 1)
    figures = {
        f"mean value ({dataset.panel.unit})": dataset.mean,
        f"standard deviation ({dataset.panel.unit})": dataset.std,
        f"mean of {part_names(dataset)[1]}, less that of {part_names(dataset)[0]} (standard"
        " deviations)": evening_lead(dataset),
        "phase of the highest mean": mean_days(dataset).argmax(axis=1).astype(np.float64),
        f"mean divergence of the {whole(dataset)} from those of others (nats)": others,
    }
    return [
        [name, *(float(f(values)) for f in (np.min, np.median, np.max))]
        for name, values in figures.items()
    ]


def whole(dataset: Dataset) -> str:
    """What the period is called."""
    return "day" if is_a_day(dataset) else "period"


def part_names(dataset: Dataset) -> tuple[str, str]:
    """What the two parts of the period are called."""
    if is_a_day(dataset):
        return "morning, 6 to 10", "evening, 18 to 22"
    return "second quarter", "last quarter"


# -- figures -----------------------------------------------------------------------------------


def draw_pair(dataset: Dataset, pair: tuple[int, int]) -> style.Figure:
    """Top: the days of two clients. Bottom: the distributions of mornings and evenings."""
    words, day = part_names(dataset), is_a_day(dataset)
    unit = whole(dataset)
    labels = ["mean", f"middle 80 % of the {unit}s", *words]
    picture, axes = style.figure(
        labels,
        rows=2,
        columns=2,
        title="Spatio-temporal heterogeneity: two clients,"
        f" {'mornings and evenings' if day else 'two parts of the period'}",
        subtitle=f"The two clients of the busier half whose mean training {unit}s differ most in"
        f" shape. Top: their {unit}s. Bottom: how often each value occurs.",
        footer=style.origin(dataset),
        height=2.3,
        gap=0.3,
    )
    days = training_days(dataset)
    hours = np.arange(dataset.period) * (24 / dataset.period if day else 1)
    for column, client in enumerate(pair):
        upper, lower = axes[0][column], axes[1][column]
        seen = ~np.isnan(days[client]).all(axis=0)
        low, high = np.nanpercentile(days[client][:, seen], (10, 90), axis=0)
        upper.fill_between(hours[seen], low, high, color="#d9d9d9", linewidth=0, label=labels[1])
        upper.plot(hours, mean_days(dataset)[client], color=style.INK, linewidth=1.8, label="mean")
        for share, colour in ((MORNING, style.METHOD), (EVENING, style.RIVAL)):
            first, last = (end * (24 if day else dataset.period) for end in share)
            upper.axvspan(first, last, color=colour, alpha=0.12, linewidth=0)
        style.panel_title(upper, f"Client {style.short(dataset.ids[client])}")
        upper.set_xlabel("hour of the day" if day else "step of the period")
        upper.set_xlim(0, hours[-1])
        _histograms(lower, dataset, client, words)
    axes[0][0].set_ylabel(style.short(dataset.panel.unit, 20))
    axes[1][0].set_ylabel("share of the values (%)")
    picture.align_ylabels()
    style.legend(picture, axes[0][0], axes[1][0])
    return picture


def _histograms(axis: style.Axes, dataset: Dataset, client: int, words: tuple[str, str]) -> None:
    found = [part_of_day(dataset, share)[client] for share in (MORNING, EVENING)]
    found = [values[~np.isnan(values)] for values in found]
    together = np.concatenate(found)
    if not len(together):
        return
    top = float(np.percentile(together, 99.5))  # a rare surge would squeeze the rest into one bin
    edges = np.linspace(float(together.min()), max(top, float(together.min()) + 1e-9), 31)
    for values, colour, word in zip(found, (style.METHOD, style.RIVAL), words, strict=True):
        weights = np.full(len(values), 100 / max(1, len(values)))
        axis.hist(values, edges.tolist(), weights=weights, color=colour, alpha=0.55, label=word)
    axis.set_xlabel(f"{style.short(dataset.panel.unit, 20)} in one step")


def draw_map(dataset: Dataset, everyone: Floats) -> style.Figure:
    """Where the clients are, coloured by their level and by the shape of their day."""
    from matplotlib.colors import Colormap, LinearSegmentedColormap

    places = dataset.panel.coordinates
    assert places is not None
    known = everyone[np.isfinite(everyone).all(axis=1)]
    absent = "a cell of the data that does not take part"
    picture, [axes] = style.figure(
        [absent],
        columns=2,
        title="Map of the cells",
        subtitle="Clients of the federation, coloured by level (left) and by the shape of their"
        f" mean training {whole(dataset)} (right).",
        footer=style.origin(dataset),
        height=4.6,
    )
    level, unit = dataset.mean, style.short(dataset.panel.unit, 16)
    if (level > 0).all():
        level, unit = np.log10(level), f"{unit} (log10)"
    kind = LinearSegmentedColormap.from_list("kind", [style.METHOD, "#f0f0f0", style.RIVAL])
    morning, evening = (name.split(",")[0] for name in part_names(dataset))
    lead = f"{evening} less {morning} (standard deviations)"
    panels: tuple[tuple[Floats, str | Colormap, str], ...] = (
        (level, "viridis", f"mean {unit}"),
        (evening_lead(dataset), kind, lead),
    )
    square: style.Look = {"s": marker_size(known), "marker": "s", "linewidth": 0}
    shown = np.isfinite(places).all(axis=1)
    for axis, (values, colours, label) in zip(axes, panels, strict=True):
        low, high = np.percentile(values[shown], (2, 98))  # extremes would use up the colours
        if colours is kind:
            high = max(abs(low), abs(high))
            low = -high
        axis.scatter(*known.T, color="#e4e4e4", label=absent, **square)
        x, y = places[shown].T
        image = axis.scatter(x, y, c=values[shown], cmap=colours, vmin=low, vmax=high, **square)
        axis.set_aspect(1 / np.cos(np.radians(float(known[:, 1].mean()))))
        axis.ticklabel_format(useOffset=False)
        axis.locator_params(axis="x", nbins=4)
        axis.set_xlabel("longitude (°)")
        style.colour_bar(picture, image, label, ax=axis, fraction=0.04, pad=0.15)
    axes[0].set_ylabel("latitude (°)")
    if len(known) > len(dataset.ids):
        style.legend(picture, axes[0])
    return picture


def marker_size(places: Floats) -> float:
    """Area of a marker in square points, so that neighbours nearly touch on a 3.2 inch map."""
    from scipy.spatial import cKDTree

    stretched = places * np.array([np.cos(np.radians(places[:, 1].mean())), 1.0])
    span = float(np.ptp(stretched, axis=0).max())
    if len(places) < 2 or span == 0:
        return 100.0
    apart = float(np.median(cKDTree(stretched).query(stretched, k=2)[0][:, 1]))
    return float(np.clip((0.85 * 3.2 * 72 * apart / span) ** 2, 4.0, 400.0))


EXPERIMENT = Experiment(
    name="data",
    title="The data: spatio-temporal heterogeneity and a map of the cells",
    run=run,
    methods=(),
    quick=Budget(clients=100, rounds=1),
    paper=Budget(clients=100, rounds=1),
    one_seed=True,
)
