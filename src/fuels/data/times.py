"""From a column of times, as found in a table, to whole seconds on one clock.

Times that say where they stand (an offset, a zone, seconds since 1970) become UTC. Times without
any of that are local clock times: with `timezone` given they become UTC too, where the hour that
occurs twice in autumn is told apart by order (first occurrence = daylight time); otherwise they
are kept as found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fuels.data.clock import zone_info
from fuels.errors import FuelsError

Seconds = NDArray[np.int64]

_OFFSET = r"(Z|[+-]\d{2}:?\d{2})$"
_FORMATS = ("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d")
# Seconds since 1970 in other units: a plausible time has about 1e9 seconds, 1e12 ms, ...
_EPOCH_UNITS = ((1e17, 10**9, "nanoseconds"), (1e14, 10**6, "microseconds"), (1e11, 10**3, "ms"))
_EARLIEST_EPOCH = 10**8  # 1973: smaller numbers are row counters or years, not times


@dataclass(frozen=True)
class Times:
    """Seconds since 1970 of every row, [row]: UTC where `zone` is set, else local as found."""

    seconds: Seconds
    zone: str | None
    notes: tuple[str, ...] = ()


def read_times(
    column: pl.Series, *, timezone: str | None, place: str, client: pl.Series | None = None
) -> Times:
    """The times of a column; `client` [row] tells series apart where an hour occurs twice."""
    if timezone is not None:
        zone_info(timezone)
    if column.null_count():
        row = int(column.is_null().arg_max() or 0)
        raise FuelsError(f"{place}: row {row + 1} has no time in column '{column.name}'")
    kind = column.dtype
    if isinstance(kind, pl.Datetime) and kind.time_zone is not None:
        zone = timezone or kind.time_zone
        utc = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        return Times(_whole_seconds(utc, column, place), zone)
    if isinstance(kind, pl.Datetime):
        return _local(_whole_seconds(column, column, place), client, timezone, place)
    if kind == pl.Date:
        return _local(
            _whole_seconds(column.cast(pl.Datetime), column, place), client, timezone, place
        )
    if kind.is_integer():
        return _epoch(column.cast(pl.Int64), timezone, place)
    if kind == pl.String and column.str.contains(r"^\s*\d+\s*$").all():
        return _epoch(column.str.strip_chars().cast(pl.Int64, strict=False), timezone, place)
    if kind == pl.String:
        return _text(column, client, timezone, place)
    raise FuelsError(f"{place}: column '{column.name}' holds no times but {kind} values")


def _whole_seconds(naive: pl.Series, column: pl.Series, place: str) -> Seconds:
    micro = naive.cast(pl.Datetime("us")).to_physical().to_numpy()
    broken = micro % 1_000_000 != 0
    if broken.any():
        row = int(np.argmax(broken))
        raise FuelsError(
            f"{place}: the time {column[row]} has a fraction; times must be whole seconds"
        )
    return np.asarray(micro // 1_000_000, dtype=np.int64)


def _epoch(column: pl.Series, timezone: str | None, place: str) -> Times:
    numbers = column.fill_null(0).to_numpy()  # null: more digits than any time has
    smallest, largest = int(numbers.min()), int(numbers.max())
    if smallest < _EARLIEST_EPOCH:
        raise FuelsError(
            f"{place}: column '{column.name}' holds numbers such as {smallest} and no times:"
            " name the time column, or write times such as 2013-11-01T06:00"
        )
    ticks, unit = next(((t, u) for least, t, u in _EPOCH_UNITS if largest >= least), (1, "seconds"))
    if (numbers % ticks != 0).any():
        raise FuelsError(f"{place}: column '{column.name}' has times that are not whole seconds")
    note = f"times are {unit} since 1970 in UTC"
    return Times(numbers // ticks, timezone or "UTC", (note,))


def _text(column: pl.Series, client: pl.Series | None, timezone: str | None, place: str) -> Times:
    # The same times come back for every client: each is parsed once.
    distinct = column.unique(maintain_order=True)
    seconds, shift = _parse(distinct, column, place)
    number = pl.int_range(len(distinct), eager=True)
    rows = column.replace_strict(distinct, number, return_dtype=pl.Int64).to_numpy()
    if shift is None:
        return _local(seconds[rows], client, timezone, place)
    utc = (seconds - shift)[rows]
    if timezone is not None:
        return Times(utc, timezone)
    zone, note = _zone_of_offset(int(shift.min()))
    return Times(utc, zone, (note,))


def _parse(distinct: pl.Series, column: pl.Series, place: str) -> tuple[Seconds, Seconds | None]:
    """Seconds on the clock as written, and the offsets from UTC where all times carry one."""
    text = distinct.str.strip_chars()
    offset = text.str.extract(r"\d{2}:?\d{2}.*?" + _OFFSET)
    all_offset = offset.null_count() == 0
    bare = text.str.replace(_OFFSET, "") if all_offset else text
    bare = bare.str.strip_chars().str.replace(" ", "T").str.replace_all("/", "-")
    parsed = pl.select(
        pl.coalesce(pl.lit(bare).str.to_datetime(f, strict=False, time_unit="us") for f in _FORMATS)
    ).to_series()
    if parsed.null_count():
        wrong = distinct[int(parsed.is_null().arg_max() or 0)]
        row = int((column == wrong).arg_max() or 0)
        some = offset.null_count() < len(offset)
        why = ": some times have an offset from UTC and some do not" if some else ""
        raise FuelsError(
            f"{place}: row {row + 1} has '{wrong}' as its time{why};"
            " write times such as 2013-11-01T06:00"
        )
    seconds = _whole_seconds(parsed, distinct, place)
    return seconds, _offset_seconds(offset) if all_offset else None


def _offset_seconds(offset: pl.Series) -> Seconds:
    digits = offset.str.replace("Z", "+0000").str.replace(":", "")
    sign = np.where((digits.str.slice(0, 1) == "-").to_numpy(), -1, 1)
    hours = digits.str.slice(1, 2).cast(pl.Int64).to_numpy()
    minutes = digits.str.slice(3, 2).cast(pl.Int64).to_numpy()
    return np.asarray(sign * (hours * 3600 + minutes * 60), dtype=np.int64)


def _zone_of_offset(smallest: int) -> tuple[str, str]:
    """A zone for times that carry offsets only: their smallest offset is taken as standard time."""
    if smallest == 0 or smallest % 3600 or not -12 * 3600 <= smallest <= 14 * 3600:
        return "UTC", "times carry offsets from UTC; days are counted in UTC (else give --timezone)"
    hours = smallest // 3600
    # The names of the Etc zones have the sign of the POSIX convention: Etc/GMT-1 is UTC+1.
    return (
        f"Etc/GMT{-hours:+d}",
        f"times carry offsets from UTC; days are counted at UTC{hours:+d} (else give --timezone)",
    )


def _local(seconds: Seconds, client: pl.Series | None, timezone: str | None, place: str) -> Times:
    if timezone is None:
        return Times(seconds, None)
    table = pl.DataFrame({"naive": pl.Series(seconds * 1000, dtype=pl.Datetime("ms"))})
    table = table.with_columns(client=pl.lit("") if client is None else client)
    naive = pl.col("naive")
    table = table.with_columns(
        early=naive.dt.replace_time_zone(timezone, ambiguous="earliest", non_existent="null"),
        late=naive.dt.replace_time_zone(timezone, ambiguous="latest", non_existent="null"),
    )
    if table["early"].null_count():
        row = int(table["early"].is_null().arg_max() or 0)
        raise FuelsError(
            f"{place}: row {row + 1} has the time {table['naive'][row]}, which does not exist in"
            f" {timezone} (the clock skips it in spring), so these times do not follow daylight"
            " saving: leave --timezone out or give a fixed zone such as Etc/GMT-1"
        )
    twice = table["early"] != table["late"]
    notes: tuple[str, ...] = ()
    if twice.any():
        second = pl.lit(twice) & (pl.int_range(pl.len()).over("client", "naive") >= 1)
        table = table.with_columns(early=pl.when(second).then("late").otherwise("early"))
        day = str(table["naive"].filter(twice).min())[:10]
        notes = (f"the repeated hour of {day} was told apart: first occurrence = daylight time",)
    utc = table["early"].dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return Times(np.asarray(utc.to_physical().to_numpy() // 1000, dtype=np.int64), timezone, notes)
