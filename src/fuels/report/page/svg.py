"""Charts as inline SVG, drawn for a wide and for a narrow screen.

Colours are classes that the page's style sheet defines, so that charts follow light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import count, groupby

from fuels.report.page.elements import NOTHING, Child, Html, el, joined

WIDE, NARROW = 820, 360  # units of the drawing, about pixels
LETTER = 7.4  # mean width of a letter of the axes
Point = tuple[float, ...]  # x and y, or x and two bounds
Draw = Callable[["Chart"], None]


def compact(value: float) -> str:
    """A label of an axis: 1,200, 0.05, 3.5 M."""
    for size, letter in ((1e12, " T"), (1e9, " G"), (1e6, " M")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    if value and abs(value) < 1e-4:
        return f"{value:.0e}"
    return f"{value:,.6g}" if abs(value) < 1000 else f"{value:,.0f}"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers that cover low to high: the first is at most low, the last at least high."""
    if high - low <= 1e-6 * max(abs(low), abs(high)):  # labels could not tell them apart
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    rough = (high - low) / most
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * each for each in (1, 2, 2.5, 5, 10) if size * each >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


class Chart:
    """One drawing: a plot area with a linear scale, and what has been drawn."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.left, self.right, self.top, self.bottom = 10.0, 12.0, 30.0, 26.0
        self.x0, self.x1, self.y0, self.y1 = 0.0, 1.0, 0.0, 1.0
        self.parts: list[Html] = []

    @property
    def narrow(self) -> bool:
        return self.width < WIDE

    def add(self, tag: str, *children: Child, **attributes: str | int | float | None) -> None:
        short = {k: _short(v) if isinstance(v, float) else v for k, v in attributes.items()}
        self.parts.append(el(tag, *children, **short))

    def text(self, x: float, y: float, content: str, anchor: str = "start", kind: str = "") -> None:
        self.add("text", content, x=x, y=y, text_anchor=anchor, class_=kind or None)

    # -- scales --------------------------------------------------------------------------------

    def x(self, value: float) -> float:
        inside = self.width - self.left - self.right
        return self.left + (value - self.x0) / ((self.x1 - self.x0) or 1.0) * inside

    def y(self, value: float) -> float:
        inside = self.height - self.top - self.bottom
        return self.height - self.bottom - (value - self.y0) / ((self.y1 - self.y0) or 1.0) * inside

    def y_axis(self, low: float, high: float, unit: str, most: int = 5, suffix: str = "") -> None:
        """Horizontal lines with labels; the unit is written above them."""
        at = ticks(low, high, most)
        self.y0, self.y1 = at[0], at[-1]
        labels = [f"{compact(value)}{suffix}" for value in at]
        self.left = max(self.left, 10.0 + LETTER * max(len(label) for label in labels))
        for value, label in zip(at, labels, strict=True):
            y = self.y(value)
            self.add("line", x1=self.left, x2=self.width - self.right, y1=y, y2=y, class_="grid")
            self.text(self.left - 6, y + 4, label, "end")
        self.text(0.0, 12.0, unit, kind="unit")

    def x_axis(
        self,
        low: float,
        high: float,
        labels: Sequence[tuple[float, str]],
        lines: Sequence[float] = (),
    ) -> None:
        """Labels below; those that would touch their neighbour or leave the chart are dropped."""
        self.x0, self.x1 = low, high
        base = self.height - self.bottom
        self.add("line", x1=self.left, x2=self.width - self.right, y1=base, y2=base, class_="axis")
        for value in lines:
            x = self.x(value)
            self.add("line", x1=x, x2=x, y1=self.top, y2=base, class_="grid")
        end = -math.inf
        for value, label in labels:
            x, half = self.x(value), LETTER * len(label) / 2
            if x - half < max(end + 8, 0) or x + half > self.width:
                continue
            self.text(x, base + 17, label, "middle")
            end = x + half

    # -- marks ---------------------------------------------------------------------------------

    def line(self, points: Sequence[Point | None], kind: str) -> None:
        """A line with breaks where a point is None; a single point between breaks is a dot."""
        path = []
        for run in _runs(points):
            at = [f"{_short(self.x(x))} {_short(self.y(y))}" for x, y in run]
            path.append("M" + "L".join(at) + ("h0" if len(at) == 1 else ""))
        if path:
            self.add("path", d="".join(path), class_=f"line {kind}")

    def band(self, points: Sequence[Point | None], kind: str) -> None:
        """The area between two curves: x, low, high."""
        path = []
        for run in _runs(points):
            there = [f"{_short(self.x(x))} {_short(self.y(high))}" for x, _, high in run]
            back = [f"{_short(self.x(x))} {_short(self.y(low))}" for x, low, _ in reversed(run)]
            path.append("M" + "L".join(there + back) + "z")
        if path:
            self.add("path", d="".join(path), class_=f"band {kind}")

    def diamond(self, x: float, y: float, title: str) -> None:
        """A mark with a tooltip."""
        at = f"M{_short(self.x(x))} {_short(self.y(y) - 5)}l5 5l-5 5l-5 -5z"
        self.add("path", el("title", title), d=at, class_="miss")

    def bar(self, x: float, width: float, value: float, title: str, kind: str) -> None:
        """An upright bar from the bottom, with a tooltip."""
        top, base = self.y(value), self.y(self.y0)
        self.add(
            "rect",
            el("title", title),
            x=self.x(x),
            y=top,
            width=max(self.x(x + width) - self.x(x), 1.0),
            height=max(base - top, 0.5),
            class_=kind,
        )

    def box(
        self, x: float, y: float, width: float, height: float, kind: str, rx: int | None = None
    ) -> None:
        self.add("rect", x=x, y=y, width=width, height=height, rx=rx, class_=kind)

    def svg(self, title: str, description: str, kind: str, name: str) -> Html:
        return el(
            "svg",
            el("title", title, id=f"{name}-t"),
            el("desc", description, id=f"{name}-d") if description else NOTHING,
            *self.parts,
            viewBox=f"0 0 {self.width} {self.height}",
            role="img",
            aria_labelledby=f"{name}-t {name}-d" if description else f"{name}-t",
            class_=kind,
        )


def _runs(points: Sequence[Point | None]) -> list[list[Point]]:
    groups = groupby(points, key=lambda point: point is not None)
    return [[point for point in run if point] for known, run in groups if known]


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Figures:
    """Draws figures with ids that are unique on the page."""

    def __init__(self) -> None:
        self.number = count(1)

    def figure(
        self,
        draw: Draw,
        title: str,
        *,
        height: int = 240,
        narrow_height: int | None = None,
        description: str = "",
        keys: Sequence[tuple[str, str]] = (),
        caption: Child = None,
    ) -> Html:
        """A chart in both widths with its title, legend (class and text) and caption."""
        name, drawings = f"f{next(self.number)}", []
        for width, kind in ((WIDE, "wide"), (NARROW, "narrow")):
            chart = Chart(width, height if width == WIDE else narrow_height or height)
            draw(chart)
            drawings.append(chart.svg(title, description, kind, f"{name}{kind[0]}"))
        legend = [el("li", el("i", class_=f"key {kind}"), text) for kind, text in keys]
        return el(
            "figure",
            el("h3", title),
            el("ul", *legend, class_="legend") if legend else None,
            joined(drawings),
            el("figcaption", caption) if caption else None,
        )

    def bars(
        self,
        rows: Sequence[tuple[str, float | None, str, str]],
        title: str,
        *,
        caption: Child = None,
        keys: Sequence[tuple[str, str]] = (),
        spread: Sequence[float | None] = (),
    ) -> Html:
        """Horizontal bars: label, value, its text and its class; `spread` is drawn as a whisker."""
        beyond = [wide or 0.0 for wide in spread] or [0.0] * len(rows)
        ends = [row[1] + wide for row, wide in zip(rows, beyond, strict=True) if row[1] is not None]
        most = max(ends, default=0.0) or 1.0

        def draw(chart: Chart) -> None:
            each = 44.0 if chart.narrow else 28.0
            room = 0.0 if chart.narrow else min(380.0, 14 + LETTER * max(len(r[0]) for r in rows))
            inside = chart.width - room - 10 - LETTER * max(len(row[2]) for row in rows)
            for i, (label, value, text, kind) in enumerate(rows):
                top = i * each
                if chart.narrow:
                    chart.text(0.0, top + 14, label)
                else:
                    chart.text(room - 10, top + 18, label, "end")
                y = top + 20 if chart.narrow else top + 5
                length = 0.0 if value is None else max(value / most * inside, 1.0)
                chart.box(room, y, length, 17.0, f"bar {kind}", 2)
                reach = length
                if value is not None and (wide := beyond[i]):
                    low, high = (
                        room + max(value + sign * wide, 0.0) / most * inside for sign in (-1, 1)
                    )
                    chart.add("line", x1=low, x2=high, y1=y + 8.5, y2=y + 8.5, class_="whisker")
                    reach = max(length, high - room)
                chart.text(room + reach + 6, y + 13, text)

        return self.figure(
            draw,
            title,
            height=28 * len(rows) + 6,
            narrow_height=44 * len(rows) + 6,
            caption=caption,
            keys=keys,
            description="; ".join(f"{label}: {text}" for label, _, text, _ in rows),
        )
