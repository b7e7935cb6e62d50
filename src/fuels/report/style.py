"""Number formats, and the colours, lines and layout of every figure.

Matplotlib takes a second to import, so functions import it when they draw. Figures use only its
object-oriented interface: without global state, runs in several threads do not disturb each other.
Files hold no time stamp, so equal runs give equal bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, time, timedelta, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fuels.arrays import Datetimes, Floats
from fuels.data.clock import zone_info
from fuels.data.files import os_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure

    from fuels.data.windows import Dataset

Look = dict[str, Any]  # the style of a line: keywords of Axes.plot

# Blue and orange differ for every kind of colour vision and in print; everything else is grey.
METHOD, RIVAL, TRUTH = "#0063a6", "#d5700a", "#c2c2c2"
INK, QUIET, GRID = "#262626", "#6b6b6b", "#e6e6e6"
REST: tuple[Look, ...] = (  # references other than the best one: greys with different dashes
    {"color": "#7f7f7f", "linestyle": (0, (1, 1.4))},
    {"color": "#9c9c9c", "linestyle": (0, (5, 2))},
    {"color": "#bababa", "linestyle": "solid"},
    {"color": "#5a5a5a", "linestyle": (0, (6, 2, 1, 2))},
    {"color": "#454545", "linestyle": (0, (9, 2.5))},
)
DPI = 130
WIDTH, LEFT, RIGHT, FOOT = 10.0, 0.9, 0.25, 0.85  # inches: the figure, and around the axes
HEAD, LEGEND_ROW = 0.87, 0.21  # for title and subtitle, and for a row of the legend
TICKS = 8  # dates below a figure at most
BETWEEN = 0.4  # between two rows of axes


# -- numbers -----------------------------------------------------------------------------------


def number(value: float | None, digits: int = 4) -> str:
    """A number for people: four significant digits, integers in full."""
    if value is None or math.isnan(value):
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    rounded = float(f"{value:.{digits - 1}e}")
    if rounded == 0:
        return "0"
    power = math.floor(math.log10(abs(rounded)))
    if power < -4:
        return f"{value:.{digits - 1}e}"
    if power >= digits - 1:
        return f"{value:,.0f}"
    return f"{rounded:.{digits - 1 - power}f}"


def short(text: str, length: int = 28) -> str:
    """A name cut to at most this length."""
    return text if len(text) <= length else text[: length - 1] + "…"


def duration(seconds: float) -> str:
    """`0:07`, `12:34` or `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def attribution(name: str) -> str:
    """The attribution that the licence of these data requires."""
    known = ("milan", "trentino", "sms-call-internet")
    milan = any(word in name.lower() for word in known)
    return "Telecom Italia Open Big Data Challenge, ODbL 1.0" if milan else ""


def origin(dataset: Dataset) -> str:
    """The footer of a figure about one dataset."""
    panel = dataset.panel
    return footer({panel.name: panel.synthetic}, len(dataset.ids))


def footer(synthetic: Mapping[str, bool], clients: int, rounds: int | None = None) -> str:
    """Where the data come from, so that nobody takes synthetic results for real ones.

    `synthetic` says so for each dataset by name.
    """
    made_up = [name for name, is_synthetic in synthetic.items() if is_synthetic]
    parts = [f"Data: {', '.join(synthetic)}"]
    if made_up:
        which = "" if len(made_up) == len(synthetic) else f"{', '.join(made_up)}: "
        parts.append(f"{which}synthetic data, not a real network")
    parts += dict.fromkeys(owed for name in synthetic if (owed := attribution(name)))
    size = f"{clients} client{'s' * (clients != 1)}"
    if rounds is not None:
        size += f", {rounds} round{'s' * (rounds != 1)}"
    return " · ".join([*parts, size])


def join(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


# -- figures -----------------------------------------------------------------------------------


def looks(
    names: Sequence[str], method: str, model: str, local: str, rival: str | None
) -> dict[str, Look]:
    """Line style of each forecast: the method, its model, its local experts, its best reference.

    The others are grey, chosen by their place among the references, so that every run uses the
    same grey for the same reference.
    """
    references = [name for name in names if name not in (method, model, local)]
    found: dict[str, Look] = {
        name: {**REST[i % len(REST)], "linewidth": 1.3, "zorder": 3}
        for i, name in enumerate(references)
    }
    if rival is not None:
        found[rival] = {"color": RIVAL, "linewidth": 1.7, "zorder": 4}
    found[model] = {"color": METHOD, "linestyle": (0, (4, 1.5)), "linewidth": 1.1, "zorder": 3}
    found[local] = {"color": METHOD, "linestyle": (0, (1, 1.5)), "linewidth": 1.3, "zorder": 3}
    found[method] = {"color": METHOD, "linewidth": 2.2, "zorder": 5}
    return {name: found[name] for name in names}


def figure(
    labels: Sequence[str] = (),
    *,
    title: str,
    subtitle: str,
    footer: str,
    rows: int = 1,
    columns: int = 1,
    height: float = 4.0,
    gap: float = 0.0,
) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a title, a subtitle that explains how to read it, and a grid of axes.

    Everything is placed in inches, so that nothing covers data: `height` is that of one row of
    axes, `gap` the room above each row for titles. The axes of a row share their y axis. `labels`
    are the entries of the legend, which `legend` draws once the lines exist.
    """
    from matplotlib.figure import Figure

    head = HEAD + LEGEND_ROW * -(-len(labels) // legend_columns(labels))
    between = gap + BETWEEN
    tall = head + gap + rows * height + (rows - 1) * between + FOOT
    picture = Figure(figsize=(WIDTH, tall), dpi=DPI, facecolor="white")
    axes = picture.subplots(
        rows,
        columns,
        squeeze=False,
        sharey="row",
        gridspec_kw={
            "left": LEFT / WIDTH,
            "right": 1 - RIGHT / WIDTH,
            "top": 1 - (head + gap) / tall,
            "bottom": FOOT / tall,
            "hspace": between / height,
            "wspace": 0.12,
        },
    )
    left = RIGHT / WIDTH
    picture.text(left, 1 - 0.2 / tall, title, size=14, weight="bold", color=INK, va="top")
    picture.text(left, 1 - 0.48 / tall, subtitle, size=9.5, color=QUIET, va="top")
    picture.text(left, 0.14 / tall, footer, size=8, color=QUIET, va="bottom")
    return picture, [[dress(axis) for axis in row] for row in axes]


def legend_columns(labels: Sequence[str]) -> int:
    """How many entries fit side by side: 0.6 inches for a line, 0.07 for each letter."""
    widest = max((0.6 + 0.07 * len(label) for label in labels), default=1.0)
    total = sum(0.6 + 0.07 * len(label) for label in labels)
    room = WIDTH - 2 * RIGHT
    return max(1, len(labels) if total <= room else int(room / widest))


def legend(picture: Figure, *axes: Axes) -> None:
    """The legend for the lines of `axes`, between subtitle and axes, clear of all data."""
    tall = picture.get_size_inches()[1]
    found: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    picture.legend(
        list(found.values()),
        list(found),
        loc="upper left",
        bbox_to_anchor=(RIGHT / WIDTH, 1 - 0.78 / tall),
        ncols=legend_columns(list(found)),
        fontsize=9,
        labelcolor=INK,
        frameon=False,
        handlelength=2.2,
        columnspacing=1.6,
        borderpad=0,
        borderaxespad=0,
    )


def panel_title(axis: Axes, text: str, size: float = 9.5) -> None:
    axis.set_title(text, loc="left", size=size, color=INK, pad=6)


def colour_bar(picture: Figure, image: Any, label: str, **layout: Any) -> None:
    """A horizontal colour bar below its axes."""
    bar = picture.colorbar(image, location="bottom", **layout)
    bar.set_label(label, size=9.5, color=INK)
    bar.ax.tick_params(labelsize=9, labelcolor=INK)
    bar.outline.set_visible(False)


def cdf(axis: Axes, errors: Mapping[str, Floats], looks: Mapping[str, Look], ratio: float) -> bool:
    """The share of the clients whose MSE is at most the value on the axis, for each forecast.

    Says whether the axis is logarithmic: it is if the errors span more than `ratio`.
    """
    values = {name: np.sort(mse[~np.isnan(mse)]) for name, mse in errors.items()}
    for name, look in looks.items():
        mse = values[name]
        share = 100 * np.arange(len(mse) + 1) / len(mse)  # from 0 below the smallest to 100
        axis.step(np.concatenate([mse[:1], mse]), share, where="post", label=name, **look)
    log = log_scale(axis, "x", np.concatenate(list(values.values())).tolist(), ratio)
    axis.set_xlabel(f"MSE of a client (z-scored{', log scale' if log else ''})")
    axis.set_ylabel("share of the clients (%)")
    axis.set_ylim(0, 101.5)
    return log


def tint(colour: str, share: float) -> str:
    """A colour mixed with white."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - share * (255 - part)):02x}" for part in parts)


def dress(axis: Axes) -> Axes:
    """Light grid, no box, unobtrusive ticks."""
    axis.grid(True, color=GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    for side, spine in axis.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(QUIET)
    axis.tick_params(labelsize=9, labelcolor=INK, color=QUIET, length=3, which="both")
    axis.tick_params(axis="y", length=0, which="both")
    axis.xaxis.label.set(size=9.5, color=INK)
    axis.yaxis.label.set(size=9.5, color=INK)
    return axis


def log_scale(
    axis: Axes, which: str, values: Sequence[float], ratio: float, *, narrow: bool = False
) -> bool:
    """Make an axis logarithmic if its values span more than `ratio`; tick labels stay plain.

    A narrow axis (one of several side by side) has room for fewer labels.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    positive = [value for value in values if value > 0 and math.isfinite(value)]
    if not positive or max(positive) < ratio * min(positive):
        return False
    (axis.set_xscale if which == "x" else axis.set_yscale)("log")
    line = axis.xaxis if which == "x" else axis.yaxis
    decades = math.log10(max(positive) / min(positive))
    subs = (1.0,) if decades >= 3 else (1.0, 3.0) if narrow and decades > 1.4 else (1.0, 2.0, 5.0)
    line.set_major_locator(LogLocator(subs=subs))
    line.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    line.set_minor_formatter(NullFormatter())
    return True


def whole_numbers(axis: Axes, *which: str) -> None:
    """Ticks at whole numbers only, for an axis that counts."""
    from matplotlib.ticker import MaxNLocator

    for name in which:
        line = axis.xaxis if name == "x" else axis.yaxis
        line.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


def time_axis(axis: Axes, timezone: str | None, times: Datetimes) -> None:
    """Ticks in local time: up to ten days are labelled at noon, between their midnights.

    Longer spans have a label every few midnights, evenly spaced across months.
    """
    from matplotlib import dates as matplotlib_dates
    from matplotlib.ticker import NullFormatter

    dates: Any = matplotlib_dates  # carries no types

    zone: tzinfo = zone_info(timezone) if timezone else UTC
    days = (times[-1] - times[0]) / np.timedelta64(1, "D")
    line = axis.xaxis
    if 1.5 <= days <= 10:
        line.set_major_locator(dates.DayLocator(tz=zone))
        line.set_major_formatter(NullFormatter())
        line.set_minor_locator(dates.HourLocator(12, tz=zone))
        line.set_minor_formatter(dates.DateFormatter("%a %d %b", tz=zone))
        axis.tick_params(axis="x", which="minor", length=0)
    elif days < 1.5:
        line.set_major_locator(dates.AutoDateLocator(tz=zone, maxticks=8))
        line.set_major_formatter(dates.DateFormatter("%d %b %H:%M", tz=zone))
    else:
        axis.set_xticks(dates.date2num(midnights(times[0], times[-1], zone)))
        line.set_major_formatter(dates.DateFormatter("%d %b", tz=zone))
    axis.set_xlim(times[0], times[-1] + (times[-1] - times[0]) / 100)


def midnights(first: np.datetime64, last: np.datetime64, zone: tzinfo) -> list[datetime]:
    """At most eight local midnights from `first` to `last`, evenly spaced."""
    begin, end = (
        moment.astype("datetime64[s]").item().replace(tzinfo=UTC).astimezone(zone)
        for moment in (first, last)
    )
    every = (end - begin).days // TICKS + 1
    days = range((end.date() - begin.date()).days + 1)
    found = [datetime.combine(begin.date() + timedelta(day), time.min, zone) for day in days]
    return [moment for moment in found if begin <= moment <= end][::every]


def save(picture: Figure, path: Path) -> Path:
    """The figure as PNG, without the name of the program that made it."""
    with os_errors(path, "the plot cannot be written"):
        picture.savefig(path, format="png", metadata={"Software": None})
    return path
