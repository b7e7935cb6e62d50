"""From rows in any order to a regular panel.

The step is the most common distance between successive times of a client. Rows absent from the grid
become missing values. A time off the grid and a duplicate (client, time) are errors, because either
would put a wrong number somewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fuels.data.clock import SECOND, format_moment, format_step
from fuels.data.panel import Floats, Panel
from fuels.data.times import Times
from fuels.errors import FuelsError

Codes = NDArray[np.int64]
# A large grid with fewer than one value in fifty points to a wrong date, not to missing data.
_LARGE, _SPARSE = 10**7, 50
# Models use float32, which ends at 3e38; sums and squares need headroom.
_LARGEST = 1e30
_YEARS = range(1900, 2200)
_YEAR_SECONDS = 31_556_952


def panel_from_rows(
    codes: Codes, times: Times, values: Floats, ids: Sequence[str], source: str
) -> Panel:
    """A panel from rows (client code, time, value), all [row]; NaN marks a missing value."""
    start, step, index = _place_rows(times, codes, ids, len(values), len(ids), source)
    length = int(index.max()) + 1
    flat = index * len(ids) + codes
    found = np.zeros(length * len(ids), dtype=bool)
    found[flat] = True
    if np.count_nonzero(found) != len(flat):
        _reject_duplicate(flat, codes, times, ids, source)
    grid = np.full(length * len(ids), np.nan)
    grid[flat] = values
    absent = len(found) - len(flat)
    return _build(grid.reshape(length, -1), ids, start, step, times, source, absent)


def panel_from_matrix(times: Times, values: Floats, ids: Sequence[str], source: str) -> Panel:
    """A panel from a matrix [row, client] and its times [row]."""
    one = np.zeros(len(times.seconds), dtype=np.int64)
    start, step, index = _place_rows(times, one, (), values.size, len(ids), source)
    if len(np.unique(index)) != len(index):
        _reject_duplicate(index, one, times, (), source)
    length = int(index.max()) + 1
    grid = np.full((length, len(ids)), np.nan)
    grid[index] = values
    absent = (length - len(index)) * len(ids)
    return _build(grid, ids, start, step, times, source, absent)


def _place_rows(
    times: Times, codes: Codes, ids: Sequence[str], count: int, clients: int, source: str
) -> tuple[int, int, Codes]:
    """Start and step of the grid for `count` values, and the position of every row on it."""
    start, step = _regular_grid(times, codes, ids, source)
    index = (times.seconds - start) // step
    length = int(index.max()) + 1
    if length * clients > max(_LARGE, _SPARSE * count):
        raise FuelsError(
            f"{source}: {len(index)} rows at a step of {format_step(step)} would span {length}"
            f" steps, {_label(start, times)} to {_label(start + (length - 1) * step, times)}:"
            " is a date wrong?"
        )
    return start, step, index


def _build(
    values: Floats,
    ids: Sequence[str],
    start: int,
    step: int,
    times: Times,
    source: str,
    absent: int,
) -> Panel:
    notes = times.notes
    if absent:
        noun = "value was" if absent == 1 else "values were"
        notes = (*notes, f"{absent} {noun} absent from the file and marked as missing")
        empty = np.flatnonzero(np.isnan(values).all(axis=1))
        if times.zone is None and len(empty):
            when = _label(start + int(empty[0]) * step, times)
            hint = f"no client has a value at {when}: if the clocks went forward then, give"
            notes = (*notes, f"{hint} --timezone")
    return Panel(
        values=values,
        ids=tuple(ids),
        start=np.datetime64(start, "s"),
        step=step * SECOND,
        timezone=times.zone,
        name=source,
        notes=notes,
    )


def check_magnitudes(panel: Panel) -> None:
    """Reject values too large to compute with; every reader calls this."""
    extreme = np.abs(panel.values) > _LARGEST
    if extreme.any():
        row, column = np.unravel_index(int(np.argmax(extreme)), panel.values.shape)
        value = panel.values[row, column]
        what = "an infinite value" if np.isinf(value) else f"the value {value:g}"
        when = format_moment(panel.times[row], panel.timezone)
        raise FuelsError(
            f"{panel.name}: client {panel.ids[column]} has {what} at {when}; values must be smaller"
            f" than {_LARGEST:g}: correct it, or leave it empty (--missing gives the number that"
            " marks missing values)"
        )


def check_years(first: int, last: int, source: str) -> None:
    """Reject seconds since 1970 that can only come from a damaged date."""
    for year in (1970 + first // _YEAR_SECONDS, 1970 + last // _YEAR_SECONDS):
        if year not in _YEARS:
            raise FuelsError(f"{source}: a time is in the year {year}: is a date wrong?")


def _regular_grid(times: Times, codes: Codes, ids: Sequence[str], source: str) -> tuple[int, int]:
    """First time and step of the regular grid; every row must be on it."""
    seconds = times.seconds
    if len(seconds) == 0:
        raise FuelsError(f"{source}: there are no rows")
    check_years(int(seconds.min()), int(seconds.max()), source)
    gaps, ascending = _gaps(seconds, codes)
    if not ascending:
        order = np.lexsort((seconds, codes))
        gaps, _ = _gaps(seconds[order], codes[order])
    if len(gaps) == 0:  # one row per client: use the distances between clients
        gaps = np.diff(np.unique(seconds)).astype(np.int64)
    if len(gaps) == 0:
        raise FuelsError(
            f"{source}: all rows have the same time, {_label(int(seconds[0]), times)}, so"
            " the step is unknown"
        )
    sizes, counts = np.unique(gaps, return_counts=True)
    step = int(sizes[np.argmax(counts)])
    residues, counts = np.unique(seconds % step, return_counts=True)
    off = seconds % step != residues[np.argmax(counts)]
    if off.any():
        row = int(np.flatnonzero(off)[np.argmin(seconds[off])])
        of = f" of client {ids[codes[row]]}" if ids else ""
        hint = "correct it, or resample the data to one step first"
        if times.wall and step > 3600:  # midnights are 23 or 25 hours apart when clocks change
            hint = "if the step follows the wall clock, omit --timezone"
        raise FuelsError(
            f"{source}: the time {_label(int(seconds[row]), times)}{of} is off the regular"
            f" step of {format_step(step)}: {hint}"
        )
    return int(seconds.min()), step


def _gaps(seconds: Codes, codes: Codes) -> tuple[Codes, bool]:
    """Positive distances between successive rows of a client, and whether rows are sorted.

    Most files are, and sorting millions of rows would be slow.
    """
    later, other = np.diff(seconds), np.diff(codes)
    ascending = bool(np.all((other > 0) | ((other == 0) & (later >= 0))))
    return later[(other == 0) & (later > 0)], ascending


def _reject_duplicate(
    flat: Codes, codes: Codes, times: Times, ids: Sequence[str], source: str
) -> None:
    order = np.argsort(flat, kind="stable")
    row = int(order[1:][np.diff(flat[order]) == 0][0])
    of = f"client {ids[codes[row]]} has" if ids else "there is"
    hint = "" if times.zone else " (if the clocks went back then, give --timezone)"
    raise FuelsError(
        f"{source}: {of} more than one row at {_label(int(times.seconds[row]), times)}{hint}"
    )


def _label(seconds: int, times: Times) -> str:
    return format_moment(np.datetime64(seconds, "s"), times.zone)
