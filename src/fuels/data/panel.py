"""The panel: a table of times x clients at a regular step, with missing values marked.

Every reader produces a Panel, and everything else starts from one. Times are stored as a start and
a step. If the time zone is known, `start` is in UTC and the panel is regular in real time, so
daylight saving neither skips nor repeats a step; the phase of a step (its hour of the day) follows
the zone's standard time all year. Without a zone, times are local clock times as found, assumed to
be regular.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fuels.arrays import Datetimes, Floats, Integers
from fuels.data.clock import (
    Moment,
    Step,
    format_moment,
    format_step,
    parse_moment,
    parse_step,
    standard_offset,
)
from fuels.data.means import mean
from fuels.errors import FuelsError


@dataclass(frozen=True)
class Panel:
    """Values [time, client] at times start, start + step, ...; NaN marks a missing value."""

    values: Floats
    ids: tuple[str, ...]
    start: np.datetime64  # second resolution; UTC if timezone is set, else as found
    step: np.timedelta64  # second resolution
    timezone: str | None = None
    coordinates: Floats | None = None  # [client, 2]: longitude, latitude
    name: str = "panel"
    unit: str = "value"
    synthetic: bool = False
    notes: tuple[str, ...] = field(default=())  # what the reader did, for the user
    inputs: Mapping[str, Panel] = field(default_factory=dict)  # external ones, see inputs.py

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.shape[1] != len(self.ids):
            raise FuelsError(
                f"{self.name}: values of shape {self.values.shape} do not fit"
                f" {len(self.ids)} clients"
            )
        if self.coordinates is not None and self.coordinates.shape != (len(self.ids), 2):
            raise FuelsError(
                f"{self.name}: coordinates of shape {self.coordinates.shape} do not fit"
                f" {len(self.ids)} clients"
            )
        if len(set(self.ids)) != len(self.ids):
            raise FuelsError(f"{self.name}: client ids are not unique")
        if self.step <= np.timedelta64(0, "s"):
            raise FuelsError(f"{self.name}: the step between times must be positive")

    # -- size and time -------------------------------------------------------------------------

    @property
    def length(self) -> int:
        """Number of time steps."""
        return int(self.values.shape[0])

    @property
    def step_seconds(self) -> int:
        return int(self.step / np.timedelta64(1, "s"))

    @property
    def times(self) -> Datetimes:
        """The time of every step, [time]; UTC if the zone is known."""
        return self.start + np.arange(self.length) * self.step

    @property
    def standard_offset(self) -> np.timedelta64:
        """The zone's standard time minus UTC; zero if no zone is known."""
        return standard_offset(self.timezone, int(str(self.start)[:4]))

    def phases(self, period: int) -> Integers:
        """Position of every step inside its period, [time]: the hour for 24 hourly steps.

        Counted from midnight 1970-01-01 in local standard time, so that panels with different
        start times agree on phase 0.
        """
        local = self.start + self.standard_offset
        since_epoch = (local - np.datetime64(0, "s")) // self.step
        return (int(since_epoch) + np.arange(self.length, dtype=np.int64)) % period

    @property
    def clock_seconds(self) -> int:
        """Offset of the steps from whole steps since midnight, local standard time: 1800 s for
        hourly values taken at half past."""
        local = self.start + self.standard_offset
        return int((local - np.datetime64(0, "s")) / np.timedelta64(1, "s")) % self.step_seconds

    # -- parts of a panel ----------------------------------------------------------------------

    def take(self, columns: Sequence[int] | Integers) -> Panel:
        """The panel of some clients, by position."""
        index = np.asarray(columns, dtype=np.int64)
        return replace(
            self,
            values=self.values[:, index],
            ids=tuple(self.ids[i] for i in index),
            coordinates=None if self.coordinates is None else self.coordinates[index],
        )

    def select(self, ids: Iterable[str]) -> Panel:
        """The panel of the named clients; an unknown id is an error."""
        return self.take(find_ids(self.ids, ids, self.name))

    def sorted(self) -> Panel:
        """The same panel with clients sorted by id."""
        ordered = tuple(sort_ids(self.ids))
        return self if ordered == self.ids else self.select(ordered)

    def between(self, start: Moment | None = None, end: Moment | None = None) -> Panel:
        """The panel from `start` (included) to `end`.

        A date denotes the whole day in local standard time, so an end that is a date is included;
        an end with a time of day is excluded. Times of day are wall-clock time in the zone.
        """
        first, last = 0, self.length
        if start is not None:
            lower = parse_moment(start, self.timezone, upper=False, option="--from")
            first = int(np.searchsorted(self.times, lower))
        if end is not None:
            upper = parse_moment(end, self.timezone, upper=True, option="--to")
            last = int(np.searchsorted(self.times, upper))
        if first >= last:
            asked = " ".join(
                f"{word} {bound}" for word, bound in (("from", start), ("to", end)) if bound
            )
            raise FuelsError(f"{self.name}: no data {asked}: the data run {self.span}")
        return replace(self, values=self.values[first:last], start=self.times[first])

    @property
    def span(self) -> str:
        """First and last time in words, in local time."""
        if self.length == 0:
            return "over no time steps"
        first, last = (format_moment(t, self.timezone) for t in (self.times[0], self.times[-1]))
        return f"from {first} to {last}"

    def resample(self, step: Step, how: str) -> Panel:
        """The panel on a coarser step: sums or means over bins aligned to local standard time.

        The sum of a bin with a missing part is missing; the mean ignores missing parts.
        Incomplete bins at the two ends are dropped.
        """
        wide = parse_step(step)
        if how not in ("sum", "mean"):
            raise FuelsError(f"how '{how}' is not known: choose sum or mean")
        if wide % self.step != np.timedelta64(0, "s"):
            raise FuelsError(
                f"{self.name}: a step of {format_step(self.step)} cannot be resampled to"
                f" {format_step(wide)}, which is not a multiple of it"
            )
        parts = int(wide / self.step)
        if parts == 1:
            return self
        since_bin = (self.start + self.standard_offset - np.datetime64(0, "s")) % wide
        # Steps before the first complete bin; a bin starts where floor(local time / wide) changes.
        skip = -int(since_bin // self.step) % parts
        bins = (self.length - skip) // parts
        if bins <= 0:
            raise FuelsError(
                f"{self.name}: {self.length} steps of {format_step(self.step)} contain no complete"
                f" {format_step(wide)}"
            )
        binned = self.values[skip : skip + bins * parts].reshape(bins, parts, -1)
        left_out = self.length - bins * parts
        note = f"resampled from {format_step(self.step)} to {format_step(wide)} by {how}" + (
            f"; {left_out} steps in incomplete bins at the ends were dropped" if left_out else ""
        )
        first = self.start + skip * self.step
        return replace(
            self,
            values=binned.sum(axis=1) if how == "sum" else mean(binned, axis=1),
            start=first - (first + self.standard_offset - np.datetime64(0, "s")) % wide,
            step=wide,
            notes=(*self.notes, note),
        )


def find_ids(ids: Sequence[str], wanted: Iterable[str], name: str) -> list[int]:
    """The positions of the wanted clients among `ids`; an unknown one is an error."""
    position = {client: i for i, client in enumerate(ids)}
    asked = list(wanted)
    unknown = [client for client in asked if client not in position]
    if unknown:
        raise FuelsError(
            f"{name}: no client {', '.join(unknown[:5])}{' ...' if len(unknown) > 5 else ''}"
            f" (there are {len(ids)} clients, e.g. {', '.join(ids[:3])})"
        )
    return [position[client] for client in asked]


def sort_ids(ids: Iterable[str]) -> list[str]:
    """Ids in a fixed order: numeric if all are numbers, else alphabetical."""
    listed = list(ids)
    if all(i.isascii() and i.isdigit() for i in listed):
        return sorted(listed, key=lambda i: (int(i), i))
    return sorted(listed)
