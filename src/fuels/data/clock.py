"""Steps, moments and time zones: what `--resample 15min`, `--from` and `--timezone` mean.

A panel stores whole seconds. If its zone is known, they are UTC, and days are counted in the zone's
standard time all year; otherwise they are local clock times as found.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from fuels.errors import FuelsError

Step = str | int | timedelta | np.timedelta64
Moment = str | date | datetime

SECOND = np.timedelta64(1, "s")
YEAR_SECONDS = 31_556_952  # on average
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_UNITS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), "s"),
    **dict.fromkeys(("min", "minute", "minutes"), "min"),
    **dict.fromkeys(("h", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days"), "d"),
}


def parse_step(step: Step) -> np.timedelta64:
    """A step in whole seconds from "15min", "1h", "1d", a number of seconds or a timedelta."""
    if isinstance(step, timedelta):
        seconds = step.total_seconds()
    elif isinstance(step, np.timedelta64):
        seconds = float(step / SECOND)
    elif isinstance(step, str):
        match = re.fullmatch(r"\s*(\d*)\s*([a-z]+)\s*", step.lower())
        if match is None or match[2] not in _UNITS:
            raise FuelsError(
                f"step '{step}' is not understood: write a number and s, min, h or d,"
                " such as 15min or 1h"
            )
        seconds = int(match[1] or 1) * _SECONDS[_UNITS[match[2]]]
    else:
        seconds = step
    if seconds <= 0 or seconds != int(seconds):
        raise FuelsError(f"step '{step}' must be a positive whole number of seconds")
    return np.timedelta64(int(seconds), "s")


def format_step(step: Step) -> str:
    """A step in its largest whole unit: 1h rather than 60min."""
    seconds = int(parse_step(step) / SECOND)
    unit = next(unit for unit in ("d", "h", "min", "s") if seconds % _SECONDS[unit] == 0)
    return f"{seconds // _SECONDS[unit]}{unit}"


def zone_info(name: str, source: str = "") -> ZoneInfo:
    """The zone with this name, such as Europe/Rome; `source` is the file or option it came from."""
    try:
        return ZoneInfo(zone_id(name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        where = f"{source}: " if source else ""
        raise FuelsError(
            f"{where}time zone '{name}' is not known: use a name such as Europe/Rome, or a fixed"
            " offset such as UTC+1"
        ) from None


def zone_id(name: str) -> str:
    """The name of a zone in the time zone database: Etc/GMT-8 for UTC+8, others as they are."""
    match = re.fullmatch(r"(?:UTC|GMT)([+-])0?(\d{1,2})(?::?00)?", name.strip(), re.IGNORECASE)
    if match is None:
        return name
    if int(match[2]) == 0:
        return "UTC"
    # The names of the Etc zones have the sign of the POSIX convention.
    return f"Etc/GMT{'-' if match[1] == '+' else '+'}{int(match[2])}"


def zone_name(zone: str) -> str:
    """A zone as people write it: UTC+8 for Etc/GMT-8, others by their name."""
    match = re.fullmatch(r"Etc/GMT([+-])(\d{1,2})", zone)
    return zone if match is None else f"UTC{'-' if match[1] == '+' else '+'}{match[2]}"


def standard_offset(zone: str | None, year: int) -> np.timedelta64:
    """The zone's standard time minus UTC; zero if no zone is known."""
    if zone is None:
        return np.timedelta64(0, "s")
    info = zone_info(zone)
    moments = [datetime(year, month, 1, tzinfo=UTC).astimezone(info) for month in range(1, 13)]
    # Standard time has the smallest offset of the year.
    offset = min(moment.utcoffset() or timedelta(0) for moment in moments)
    return np.timedelta64(int(offset.total_seconds()), "s")


def parse_moment(moment: Moment, zone: str | None, *, upper: bool, option: str) -> np.datetime64:
    """The instant that `moment` denotes in a panel in `zone`.

    A date denotes the whole day in standard time: its start as a lower bound, its end as an upper
    bound. A moment with a time of day is wall-clock time in the zone unless it has an offset.
    """
    parsed = _parse_text(moment, option) if isinstance(moment, str) else moment
    if not isinstance(parsed, datetime):
        day = np.datetime64(parsed, "s") + (np.timedelta64(86400, "s") if upper else 0 * SECOND)
        return day - standard_offset(zone, parsed.year)
    if parsed.tzinfo is None and zone is None:
        return np.datetime64(parsed, "s")
    if zone is None:
        raise FuelsError(
            f"{option} {moment} has a UTC offset, but the time zone of the data is not known:"
            " omit the offset or give --timezone"
        )
    aware = parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=zone_info(zone))
    return np.datetime64(aware.astimezone(UTC).replace(tzinfo=None), "s")


def _parse_text(text: str, option: str) -> date | datetime:
    for kind in (date, datetime):
        try:
            return kind.fromisoformat(text.strip())
        except ValueError:
            continue
    raise FuelsError(
        f"{option} '{text}' is not a date or time: write 2013-11-01 or 2013-11-01T06:00"
    )


def format_moment(moment: np.datetime64, zone: str | None) -> str:
    """An instant of a panel in wall-clock time, to the minute if its seconds are zero."""
    naive = moment.astype("datetime64[s]").astype(datetime)
    if zone is not None:
        naive = naive.replace(tzinfo=UTC).astimezone(zone_info(zone)).replace(tzinfo=None)
    text = naive.isoformat(sep=" ")
    return str(text if naive.second else text[:-3])
