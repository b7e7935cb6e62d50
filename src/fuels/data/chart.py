"""A small bar chart in block characters or ASCII: the mean value at each phase of a period."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fuels.arrays import Floats

_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII = " ...:::##"
_HEIGHT = 5
_WIDTH = 48


def bar_chart(profile: Sequence[float | None], *, ascii_only: bool = False) -> str:
    """Bars scaled from the lowest to the highest value, with the phase below; NaN stays empty."""
    heights = _columns(np.array([np.nan if v is None else v for v in profile]))
    low, high = np.nanmin(heights), np.nanmax(heights)
    scaled = (heights - low) / (high - low) if high > low else np.full(len(heights), 0.5)
    eighths = np.where(np.isnan(scaled), 0, np.round(1 + scaled * (8 * _HEIGHT - 1)))
    each = max(1, _WIDTH // len(heights))
    labels = {_HEIGHT - 1: f"{high:.4g}", 0: f"{low:.4g}"}
    margin = max(len(text) for text in labels.values())
    lines, blocks = [], _ASCII if ascii_only else _BLOCKS
    for row in reversed(range(_HEIGHT)):
        bars = [blocks[int(np.clip(e - 8 * row, 0, 8))] * each for e in eighths]
        lines.append(f"{labels.get(row, ''):>{margin}} {''.join(bars)}")
    return "\n".join([*lines, " " * (margin + 1) + _ticks(len(profile), len(heights) * each)])


def _columns(values: Floats) -> Floats:
    """At most _WIDTH columns; more phases are averaged with their neighbours."""
    if len(values) <= _WIDTH:
        return values
    parts = np.array_split(values, _WIDTH)
    return np.array([p[~np.isnan(p)].mean() if (~np.isnan(p)).any() else np.nan for p in parts])


def _ticks(period: int, width: int) -> str:
    """The phase number under each quarter of the chart."""
    line = ""
    for quarter in range(4):
        line = line.ljust(width * quarter // 4) + str(period * quarter // 4)
    return line
