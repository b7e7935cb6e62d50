"""From rows in any order to a regular panel, refusing what does not fit.

The step is the most common distance between successive times of a client. Rows that are absent
from the grid become missing values; a time off the grid or a pair (client, time) that occurs
twice is an error, because either would put a wrong number somewhere.
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
# A large grid with less than one value in fifty is taken for a wrong date, not for missing data.
_LARGE, _SPARSE = 10**7, 50
# Models work in float32, which ends at 3e38; sums and squares need room below that.
_LARGEST = 1e30
_YEARS = range(1900, 2200)
_YEAR_SECONDS = 31_556_952


def panel_from_rows(
    codes: Codes, times: Times, values: Floats, ids: Sequence[str], place: str
) -> Panel:
    """A panel from rows (client code, time, value), all [row]; a NaN value is a missing one."""
    start, step = _regular_grid(times, codes, ids, place)
    index = (times.seconds - start) // step
    length = int(index.max()) + 1
    if length * len(ids) > max(_LARGE, _SPARSE * len(values)):
        raise FuelsError(
            f"{place}: {len(values)} rows at a step of {format_step(step)} would span {length}"
            f" steps, {_label(start, times)} to {_label(start + (length - 1) * step, times)}:"
            " is a date wrong?"
        )
    flat = index * len(ids) + codes
    found = np.zeros(length * len(ids), dtype=bool)
    found[flat] = True
    if np.count_nonzero(found) != len(flat):
        _refuse_duplicate(flat, codes, times, ids, place)
    grid = np.full(length * len(ids), np.nan)
    grid[flat] = values
    absent = len(found) - len(flat)
    return _build(grid.reshape(length, -1), ids, start, step, times, place, absent)


def panel_from_matrix(times: Times, values: Floats, ids: Sequence[str], place: str) -> Panel:
    """A panel from a matrix [row, client] and its times [row]."""
    one = np.zeros(len(times.seconds), dtype=np.int64)
    start, step = _regular_grid(times, one, (), place)
    index = (times.seconds - start) // step
    if len(np.unique(index)) != len(index):
        _refuse_duplicate(index, one, times, (), place)
    length = int(index.max()) + 1
    if length * len(ids) > max(_LARGE, _SPARSE * values.size):
        raise FuelsError(f"{place}: {len(index)} rows would span {length} steps: is a date wrong?")
    grid = np.full((length, len(ids)), np.nan)
    grid[index] = values
    absent = (length - len(index)) * len(ids)
    return _build(grid, ids, start, step, times, place, absent)


def _build(
    values: Floats, ids: Sequence[str], start: int, step: int, times: Times, place: str, absent: int
) -> Panel:
    notes = times.notes
    if absent:
        noun = "value was" if absent == 1 else "values were"
        notes = (*notes, f"{absent} {noun} absent from the file and marked as missing")
        nobody = np.flatnonzero(np.isnan(values).all(axis=1))
        if times.zone is None and len(nobody):
            when = _label(start + int(nobody[0]) * step, times)
            hint = f"no client has a value at {when}: if clocks were set forward then, give"
            notes = (*notes, f"{hint} --timezone")
    return Panel(
        values=values,
        ids=tuple(ids),
        start=np.datetime64(start, "s"),
        step=step * SECOND,
        timezone=times.zone,
        name=place,
        notes=notes,
    )


def refuse_extreme(panel: Panel) -> None:
    """Every reader ends here: a value too large to work with names its client and time."""
    extreme = np.abs(panel.values) > _LARGEST
    if extreme.any():
        row, column = np.unravel_index(int(np.argmax(extreme)), panel.values.shape)
        value = panel.values[row, column]
        what = "an infinite value" if np.isinf(value) else f"the value {value:g}"
        when = format_moment(panel.times[row], panel.timezone)
        raise FuelsError(
            f"{panel.name}: client {panel.ids[column]} has {what} at {when}; values must be smaller"
            f" than {_LARGEST:g}: correct it, or leave it empty (--missing tells which number means"
            " a missing value)"
        )


def check_years(first: int, last: int, place: str) -> None:
    """Refuse seconds since 1970 that only a damaged date gives, before anything counts in them."""
    for year in (1970 + first // _YEAR_SECONDS, 1970 + last // _YEAR_SECONDS):
        if year not in _YEARS:
            raise FuelsError(f"{place}: there is a time in the year {year}: is a date wrong?")


def _regular_grid(times: Times, codes: Codes, ids: Sequence[str], place: str) -> tuple[int, int]:
    """First time and step of the regular grid that every row must lie on."""
    seconds = times.seconds
    if len(seconds) == 0:
        raise FuelsError(f"{place}: there are no rows")
    check_years(int(seconds.min()), int(seconds.max()), place)
    gaps, ascending = _gaps(seconds, codes)
    if not ascending:
        order = np.lexsort((seconds, codes))
        gaps, _ = _gaps(seconds[order], codes[order])
    if len(gaps) == 0:  # one row per client: the distance between clients is all there is
        gaps = np.diff(np.unique(seconds)).astype(np.int64)
    if len(gaps) == 0:
        raise FuelsError(
            f"{place}: all rows have the one time {_label(int(seconds[0]), times)}, so there is"
            " no step between times"
        )
    sizes, counts = np.unique(gaps, return_counts=True)
    step = int(sizes[np.argmax(counts)])
    residues, counts = np.unique(seconds % step, return_counts=True)
    off = seconds % step != residues[np.argmax(counts)]
    if off.any():
        row = int(np.flatnonzero(off)[np.argmin(seconds[off])])
        of = f" of client {ids[codes[row]]}" if ids else ""
        hint = "correct it, or bring the data to one step first"
        if times.wall and step > 3600:  # midnights are 23 or 25 hours apart when clocks change
            hint = "if the step follows the wall clock, leave --timezone out"
        raise FuelsError(
            f"{place}: the time {_label(int(seconds[row]), times)}{of} does not lie on the regular"
            f" step of {format_step(step)}: {hint}"
        )
    return int(seconds.min()), step


def _gaps(seconds: Codes, codes: Codes) -> tuple[Codes, bool]:
    """Positive distances between successive rows of a client; whether rows come client by client.

    Files mostly do, and sorting millions of rows is what takes long here.
    """
    later, other = np.diff(seconds), np.diff(codes)
    ascending = bool(np.all((other > 0) | ((other == 0) & (later >= 0))))
    return later[(other == 0) & (later > 0)], ascending


def _refuse_duplicate(
    flat: Codes, codes: Codes, times: Times, ids: Sequence[str], place: str
) -> None:
    order = np.argsort(flat, kind="stable")
    row = int(order[1:][np.diff(flat[order]) == 0][0])
    of = f"client {ids[codes[row]]} has" if ids else "there is"
    hint = "" if times.zone else " (if clocks were set back then, times need a zone: --timezone)"
    raise FuelsError(
        f"{place}: {of} more than one row at {_label(int(times.seconds[row]), times)}{hint}"
    )


def _label(seconds: int, times: Times) -> str:
    return format_moment(np.datetime64(seconds, "s"), times.zone)
