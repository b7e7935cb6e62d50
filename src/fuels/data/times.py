"""From a column of times, as found in a table, to whole seconds on one clock.

Times with an offset or a zone, and seconds since 1970, become UTC. Other times are local clock
times. If `timezone` is given they become UTC too, and the hour that occurs twice in autumn is
resolved by the order of rows (the first occurrence is daylight time; a time that occurs only once
is daylight time, with a note). Otherwise they stay as found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from fuels.arrays import Flags
from fuels.data.clock import (
    SECOND,
    YEAR_SECONDS,
    Step,
    format_step,
    parse_step,
    standard_offset,
    zone_info,
)
from fuels.data.sources import Place
from fuels.data.table_options import NOTHING_GIVEN, TableOptions
from fuels.data.time_texts import NO_DATA, Seconds, parse_times
from fuels.errors import FuelsError

_TICKS = {"ms": 10**3, "us": 10**6, "ns": 10**9}  # in a second
# Seconds since 1970 in other units: a plausible time has about 1e9 seconds, 1e12 ms, ...
_EPOCH_UNITS = ((1e17, 10**9, "nanoseconds"), (1e14, 10**6, "microseconds"), (1e11, 10**3, "ms"))
_PLAUSIBLE_EPOCH = 946_684_800, 4_102_444_800  # the years 2000 to 2099
# Digits that look like a date, to the day, hour, minute or second; some files have an hour 24.
_COMPACT_DATE = (
    r"^(19|20|21)\d{2}(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(([01]\d|2[0-4])([0-5]\d){0,2})?$"
)


@dataclass(frozen=True)
class Times:
    """Seconds since 1970 of every row, [row]: UTC if `zone` is set, else local as found."""

    seconds: Seconds
    zone: str | None
    notes: tuple[str, ...] = ()
    wall: bool = False  # whether they were wall-clock times, converted to UTC by `zone`


@dataclass(frozen=True)
class TimeReader:
    """Reads a column of times as the user says, or as they are found."""

    place: Place
    timezone: str | None = None
    given: TableOptions = NOTHING_GIVEN
    client: pl.Series | None = None  # [row]: separates the series if an hour occurs twice

    def read(self, column: pl.Series) -> Times:
        if self.timezone is not None:
            zone_info(self.timezone, self.place.name)
        if column.null_count():
            row = int(column.is_null().arg_max() or 0)
            raise FuelsError(
                f"{self.place.row(row)} has no time in column '{column.name}': {NO_DATA}"
            )
        times = self._read(column)
        step = self.given.round_times
        return times if step is None else rounded(times, step)

    def _read(self, column: pl.Series) -> Times:
        if column.dtype == pl.Date:
            column = column.cast(pl.Datetime)
        kind, written = column.dtype, self.given.time_format
        if isinstance(kind, pl.Datetime) and kind.time_zone is not None:
            utc = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
            return Times(self._whole_seconds(utc, column), self.timezone or kind.time_zone)
        if isinstance(kind, pl.Datetime):
            return self._local(self._whole_seconds(column, column))
        if kind.is_integer():
            return self._epoch(column) if written is None else self._text(column.cast(pl.String))
        if kind != pl.String:
            raise FuelsError(f"{self.place}: column '{column.name}' holds {kind} values, not times")
        if written is None and column.str.contains(r"^\s*\d+(\.0*)?\s*$").all():
            return self._epoch(column.str.strip_chars().str.replace(r"\..*", ""))
        return self._text(column)

    def _whole_seconds(self, naive: pl.Series, column: pl.Series) -> Seconds:
        assert isinstance(naive.dtype, pl.Datetime)
        ticks, second = naive.to_physical().to_numpy(), _TICKS[naive.dtype.time_unit]
        self._check_fractions(ticks % second != 0, column)
        return np.asarray(ticks // second, dtype=np.int64)

    def _check_fractions(self, broken: Flags, column: pl.Series) -> None:
        if broken.any() and self.given.round_times is None:
            wrong = column.filter(broken).head(1).cast(pl.String)[0]
            raise FuelsError(
                f"{self.place}: the time {wrong} has a fraction; times must be whole seconds: round"
                " them with --round-times=1s or another step"
            )

    def _epoch(self, column: pl.Series) -> Times:
        distinct = column.unique(maintain_order=True)
        dates = distinct.cast(pl.String).str.contains(_COMPACT_DATE)
        if 2 * int(dates.sum()) > len(distinct):  # a few true seconds of the 2030s match by chance
            shown = str(distinct.filter(dates)[0])
            form = "%Y%m%d%H%M%S"[: len(shown) - 2]
            raise FuelsError(
                f"{self.place}: column '{column.name}' holds numbers such as {shown}, which look"
                f" like dates: if they are, give --time-format={form}"
            )
        # A number that does not fit has more digits than any time.
        numbers = column.cast(pl.Int64, strict=False).fill_null(0).to_numpy()
        largest = numbers.max()
        ticks, unit = next(
            ((t, u) for least, t, u in _EPOCH_UNITS if largest >= least), (1, "seconds")
        )
        earliest, latest = _PLAUSIBLE_EPOCH
        wrong = (numbers // ticks < earliest) | (numbers // ticks >= latest)
        if wrong.any():
            raise FuelsError(
                f"{self.place}: column '{column.name}' holds numbers such as"
                f" {column[int(np.argmax(wrong))]} and no times since 2000: name the time column"
                " with --time-column=NAME, say how times are written with --time-format, or write"
                " times such as 2013-11-01T06:00"
            )
        if (numbers % ticks != 0).any():
            raise FuelsError(
                f"{self.place}: column '{column.name}' has times that are not whole seconds"
            )
        note = f"times are {unit} since 1970 in UTC"
        return Times(numbers // ticks, self.timezone or "UTC", (note,))

    def _text(self, column: pl.Series) -> Times:
        # Times repeat for every client: parse each only once.
        distinct = column.unique(maintain_order=True)
        clock = parse_times(distinct, column, self.given.time_format, self.place)
        self._check_fractions(clock.fractions, distinct)
        number = pl.int_range(len(distinct), eager=True)
        rows = column.replace_strict(distinct, number, return_dtype=pl.Int64).to_numpy()
        if clock.shift is None:
            local = self._local(clock.seconds[rows])
            return replace(local, notes=(*clock.notes, *local.notes))
        utc = (clock.seconds - clock.shift)[rows]
        if self.timezone is not None:
            return Times(utc, self.timezone, clock.notes)
        zone, note = _zone_of_offset(int(clock.shift.min()))
        return Times(utc, zone, (*clock.notes, note))

    def _local(self, seconds: Seconds) -> Times:
        zone = self.timezone
        if zone is None:
            return Times(seconds, None)
        table = pl.DataFrame({"naive": pl.Series(seconds * 1000, dtype=pl.Datetime("ms"))})
        table = table.with_columns(client=pl.lit("") if self.client is None else self.client)
        naive = pl.col("naive")
        table = table.with_columns(
            early=naive.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null"),
            late=naive.dt.replace_time_zone(zone, ambiguous="latest", non_existent="null"),
        )
        if table["early"].null_count():
            row = int(table["early"].is_null().arg_max() or 0)
            raise FuelsError(
                f"{self.place.row(row)} has the time {table['naive'][row]}, which does not exist in"
                f" {zone} (the clock skips it in spring), so these times do not follow daylight"
                " saving: omit --timezone or give a fixed offset such as --timezone=UTC+1"
            )
        # Milliseconds since 1970 in UTC.
        table = table.with_columns(pl.col("early", "late").to_physical())
        notes: tuple[str, ...] = ()
        utc = table["early"]
        if (utc != table["late"]).any():
            utc, notes = self._resolve_repeated_hour(table)
        seconds = np.asarray(utc.to_numpy() // 1000, dtype=np.int64)
        return Times(seconds, zone, notes, wall=True)

    def _resolve_repeated_hour(self, table: pl.DataFrame) -> tuple[pl.Series, tuple[str, ...]]:
        """The instants of clock times, some of which occur twice, by the order of a client's rows.

        This requires all rows of the client to be in chronological order.
        """
        twice = pl.col("early") != pl.col("late")
        second = twice & (pl.int_range(pl.len()).over("client", "naive") >= 1)
        table = table.with_columns(
            twice=twice,
            second=second,
            alone=twice & (pl.len().over("client", "naive") == 1),
            utc=pl.when(second).then("late").otherwise("early"),
        )
        backwards = table.select(
            (pl.col("utc").diff().over("client") < 0) & pl.col("twice").any().over("client")
        ).to_series()
        repeated = table.filter("twice")["naive"].dt.date().unique().sort()
        days = ", ".join(str(day) for day in repeated)
        if backwards.any():
            row = int(backwards.arg_max() or 0)
            client = table["client"][row]
            raise FuelsError(
                f"{self.place.row(row)}{f' of client {client}' if client else ''} is not in"
                f" chronological order, so the hour that {self.timezone} repeats on {days} is"
                " ambiguous: sort the rows, or write times with their offset, such as"
                " 2013-10-27T02:00+01:00"
            )
        notes: list[str] = []
        if table["second"].any():
            notes.append(
                f"the repeated hour of {days}: the first occurrence was taken as daylight time"
            )
        if alone := int(table["alone"].sum()):
            noun = "time occurs" if alone == 1 else "times of a client occur"
            notes.append(
                f"{alone} {noun} only once in the repeated hour of {days}: taken as daylight time"
            )
        return table["utc"], tuple(notes)


def _zone_of_offset(smallest: int) -> tuple[str, str]:
    """A zone for times that have only offsets: the smallest is taken as standard time."""
    if smallest == 0 or smallest % 3600 or not -12 * 3600 <= smallest <= 14 * 3600:
        return (
            "UTC",
            "times have UTC offsets; days are counted in UTC (or give --timezone)",
        )
    hours = smallest // 3600
    # The names of the Etc zones have the sign of the POSIX convention: Etc/GMT-1 is UTC+1.
    return (
        f"Etc/GMT{-hours:+d}",
        f"times have UTC offsets; days are counted in UTC{hours:+d} (or give --timezone)",
    )


def joined_times(date: pl.Series, hour: pl.Series) -> pl.Series:
    """Date and hour of two columns as one text; null where one of them is missing."""
    dates = date.cast(pl.String).str.strip_chars().str.replace(r"[T ]0?0:00(:00)?(\.0*)?$", "")
    hours = hour.cast(pl.String).str.strip_chars()
    # Spreadsheets write a time of day as one on the first day of their calendar.
    hours = hours.str.replace(r"^1[89]\d\d-\d\d-\d\d ", "").str.replace(r"^(\d+)\.0$", "${1}")
    return (dates + " " + hours).alias(f"{date.name}' and '{hour.name}")


def rounded(times: Times, step: Step) -> Times:
    """The times, each rounded to the nearest step of local standard time."""
    wide = int(parse_step(step) / SECOND)
    seconds = times.seconds + local_offset(times)
    near = (seconds + wide // 2) // wide * wide
    moved = np.abs(near - seconds)
    if not moved.any():
        return times
    count = int(np.count_nonzero(moved))
    note = (
        f"{count} time{'s were' if count != 1 else ' was'} rounded to {format_step(step)}, by at"
        f" most {int(moved.max())} s"
    )
    return replace(times, seconds=near - local_offset(times), notes=(*times.notes, note))


def local_offset(times: Times) -> int:
    """Seconds from the panel's clock to local standard time; 0 if the zone is not known."""
    if times.zone is None or len(times.seconds) == 0:
        return 0
    year = 1970 + int(times.seconds.min()) // YEAR_SECONDS
    return int(standard_offset(times.zone, min(max(year, 1), 9998)) / SECOND)
