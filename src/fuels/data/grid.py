"""From rows in any order to a regular panel.

The step is the most common distance between successive times of a client. Rows absent from the grid
become missing values. A time off the grid and a duplicate (client, time) are errors, because either
would put a wrong number somewhere, unless an option says what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fuels.arrays import Flags, Floats, Integers
from fuels.data.clock import SECOND, YEAR_SECONDS, format_moment, format_step, parse_step
from fuels.data.groups import resolve_duplicates
from fuels.data.irregular import binned, mostly_regular, nearly_regular, usual_step
from fuels.data.panel import Panel
from fuels.data.sources import Place
from fuels.data.table_options import NOTHING_GIVEN, TableOptions
from fuels.data.times import Times, rounded
from fuels.errors import FuelsError

# A large grid with fewer than one value in fifty points to a wrong date, not to missing data.
_LARGE, _SPARSE = 10**7, 50
# Models use float32, which ends at 3e38; sums and squares need headroom.
_LARGEST = 1e30
_YEARS = range(1900, 2200)


@dataclass(frozen=True)
class Rows:
    """Values [row, column] of clients, by code, at times; a wide table has code 0 and no ids."""

    codes: Integers
    times: Times
    values: Floats  # NaN marks a missing value
    place: Place
    given: TableOptions = NOTHING_GIVEN
    ids: tuple[str, ...] = ()
    step: int = 0  # seconds, once known

    def panel(self, ids: Sequence[str]) -> Panel:
        """The panel with one row for each step and one column for each of the `ids`."""
        rows = self.regular()
        start, index = rows.placed(len(ids))
        cells = len(ids) // rows.values.shape[1]  # at each step: one for each client, or the row
        keys, found, notes = rows.without_duplicates(index * cells + rows.codes)
        length = int(index.max()) + 1
        grid = np.full((length * cells, found.shape[1]), np.nan)
        grid[keys] = found
        values = grid.reshape(length, len(ids))
        notes = (*rows.times.notes, *notes, *rows.gap_notes(values, start, grid.size - found.size))
        return Panel(
            values=values,
            ids=tuple(ids),
            start=np.datetime64(start, "s"),
            step=rows.step * SECOND,
            timezone=rows.times.zone,
            name=self.place.name,
            notes=notes,
        )

    def regular(self) -> Rows:
        """The rows on a regular step; those that are not are moved or combined by --resample."""
        seconds, given = self.times.seconds, self.given
        if len(seconds) == 0:
            raise FuelsError(f"{self.place}: there are no rows")
        check_years(int(seconds.min()), int(seconds.max()), self.place)
        if given.step and not given.resample and not ((seconds - seconds[0]) % given.step).any():
            return replace(self, step=given.step)
        step, gaps, off = self._usual_gap()
        sparse = len(gaps) > 0 and step < np.median(gaps) / 2
        if not off.any() and not (sparse and given.resample):
            return replace(self, step=step)
        usual = usual_step(gaps)
        if given.resample is None or given.how is None:
            raise self._off_step(off, step, usual)
        if usual and nearly_regular(self.times, usual):
            return replace(self, times=rounded(self.times, usual), step=usual)
        if mostly_regular(self.times, usual or step):
            raise self._off_step(off, step, None)
        times, codes, values = binned(self.times, self.codes, self.values, gaps, given)
        step = int(parse_step(given.resample) / SECOND)
        return replace(self, times=times, codes=codes, values=values, step=step)

    def _usual_gap(self) -> tuple[int, Integers, Flags]:
        """The most common distance between times, all distances, and which rows are off it."""
        seconds = self.times.seconds
        gaps, ascending = _gaps(seconds, self.codes)
        if not ascending:
            order = np.lexsort((seconds, self.codes))
            gaps, _ = _gaps(seconds[order], self.codes[order])
        if len(gaps) == 0:  # one row per client: use the distances between clients
            gaps = np.diff(np.unique(seconds)).astype(np.int64)
        if len(gaps) == 0:
            raise FuelsError(
                f"{self.place}: all rows have the same time, {_label(int(seconds[0]), self.times)},"
                " so the step is unknown"
            )
        sizes, counts = np.unique(gaps, return_counts=True)
        step = int(sizes[np.argmax(counts)])
        residues, counts = np.unique(seconds % step, return_counts=True)
        return step, gaps, seconds % step != residues[np.argmax(counts)]

    def _off_step(self, off: Flags, step: int, usual: int | None) -> FuelsError:
        seconds = self.times.seconds
        row = int(np.flatnonzero(off)[np.argmin(seconds[off])])
        of = f" of client {self.ids[self.codes[row]]}" if self.ids else ""
        near = format_step(usual or step)
        hint = (
            f"correct it, round the times (--round-times={near}), or combine the rows into a longer"
            " step (--resample with --how)"
        )
        if self.times.wall and step > 3600:  # midnights are 23 or 25 hours apart when clocks change
            hint = "if the step follows the wall clock, omit --timezone"
        return FuelsError(
            f"{self.place}: the time {_label(int(seconds[row]), self.times)}{of} does not fall on"
            f" the regular step of {near}: {hint}"
        )

    def placed(self, clients: int) -> tuple[int, Integers]:
        """Start of the grid, and the position of every row on it."""
        times, seconds, step = self.times, self.times.seconds, self.step
        start = int(seconds.min())
        index = (seconds - start) // step
        length = int(index.max()) + 1
        if length * clients > max(_LARGE, _SPARSE * self.values.size):
            raise FuelsError(
                f"{self.place}: {len(index)} rows at a step of {format_step(step)} would span"
                f" {length} steps, {_label(start, times)} to"
                f" {_label(start + (length - 1) * step, times)}: is a date wrong?"
            )
        return start, index

    def without_duplicates(self, keys: Integers) -> tuple[Integers, Floats, tuple[str, ...]]:
        """The rows, one of each key, and a note on those that were more."""
        seen = np.zeros(int(keys.max()) + 1, dtype=bool)
        seen[keys] = True
        if np.count_nonzero(seen) == len(keys):  # sorting millions of rows would be slow
            return keys, self.values, ()
        clocks = "" if self.times.zone else " (if the clocks went back then, give --timezone)"

        def refuse(row: int, held: str) -> FuelsError:
            of = f"client {self.ids[self.codes[row]]} has" if self.ids else "there is"
            when = _label(int(self.times.seconds[row]), self.times)
            what = f", with the values {held}" if held else ""
            long = "" if self.ids else "; if a column names the client, give --client-column=NAME"
            return FuelsError(
                f"{self.place}: {of} more than one row at {when}{what}{clocks}: choose with"
                f" --duplicates=first, last, sum or mean{long}"
            )

        unique, values, more = resolve_duplicates(keys, self.values, self.given.duplicates, refuse)
        policy, rows = self.given.duplicates or "same", "row" if more == 1 else "rows"
        if policy == "same":
            was = "was" if more == 1 else "were"
            note = f"{more} duplicate {rows} (same client, time and value) {was} dropped{clocks}"
        else:
            used = {"first": "first row", "last": "last row"}.get(policy, policy)
            note = f"{more} duplicate {rows} (same client and time): the {used} was used"
        return unique, values, (note,)

    def gap_notes(self, values: Floats, start: int, absent: int) -> list[str]:
        """What the user should know about values [time, client] that the rows do not have."""
        if not absent:
            return []
        noun = "value was" if absent == 1 else "values were"
        notes = [f"{absent} {noun} absent from the file and marked as missing"]
        empty = np.flatnonzero(np.isnan(values).all(axis=1))
        if self.times.zone is None and len(empty):
            when = _label(start + int(empty[0]) * self.step, self.times)
            hint = "if the clocks went forward then, give --timezone"
            notes.append(f"no client has a value at {when}: {hint}")
        return notes


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


def check_years(first: int, last: int, source: object) -> None:
    """Reject seconds since 1970 that can only come from a damaged date."""
    for year in (1970 + first // YEAR_SECONDS, 1970 + last // YEAR_SECONDS):
        if year not in _YEARS:
            raise FuelsError(f"{source}: a time is in the year {year}: is a date wrong?")


def _gaps(seconds: Integers, codes: Integers) -> tuple[Integers, bool]:
    """Positive distances between successive rows of a client, and whether rows are sorted.

    Most files are, and sorting millions of rows would be slow.
    """
    later, other = np.diff(seconds), np.diff(codes)
    ascending = bool(np.all((other > 0) | ((other == 0) & (later >= 0))))
    return later[(other == 0) & (later > 0)], ascending


def _label(seconds: int, times: Times) -> str:
    return format_moment(np.datetime64(seconds, "s"), times.zone)
