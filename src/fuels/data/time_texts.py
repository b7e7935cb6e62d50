"""From times as people write them to clock seconds: ISO, 31.12.2024, 12/31/2024, 1 Nov 2013, 6 PM.

Where day and month could change places, the other dates of the column decide; if they do not, the
user is asked. Dates with points have the day first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from fuels.arrays import Flags, Integers
from fuels.data.sources import Place
from fuels.errors import FuelsError

Seconds = Integers

OFFSET = r"(Z|[+-]\d{2}:?\d{2})$"
_SPAN = r"^(.*?\b(\d{1,2}):(\d{2})(?::\d{2})?) *[-–] *(?:.* )?(\d{1,2}):(\d{2})(?::\d{2})?$"
_FRACTION = r":\d{2}[.,]\d*[1-9]"
_COMPACT = r"^(\d{4})(\d\d)(\d\d)[T ](\d\d)(\d\d)"  # 20131101T0600
_ISO = ("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d")
_WRITE = "write times such as 2013-11-01T06:00, or say how they are written with --time-format"
NO_DATA = "delete rows that are not data, such as units, totals or a second header"
_WEEKDAY = r"^(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,? +)?"
_YEAR_FIRST = _WEEKDAY + r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})"
_YEAR_LAST = _WEEKDAY + r"(\d{1,2})([-/.])(\d{1,2})[-/.](\d{4}|\d{2})"
_DAY_NAME = _WEEKDAY + r"(\d{1,2})[-/. ]*([a-z]{3})[a-z]*\.?[-/., ]*(\d{4}|\d{2})"
_NAME_DAY = _WEEKDAY + r"([a-z]{3})[a-z]*\.?[-/. ]*(\d{1,2}),?[-/ ]+(\d{4})"
_OF_DAY = r"^(\d{1,2})(?:[:.h](\d{2}))?(?::(\d{2})(?:[.,]\d+)?)?(?: *([ap])\.?m\.?)?(?: uhr)?$"
_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_NAMES, 1)}
_DAY_FIRST, _MONTH_FIRST, _SHORT_YEAR_FIRST = "day", "month", "year"
_ORDERS = {_DAY_FIRST: "dmy", _MONTH_FIRST: "mdy", _SHORT_YEAR_FIRST: "ymd"}


@dataclass(frozen=True)
class ClockTimes:
    """Clock seconds as written, the UTC offsets if all times have one, and notes."""

    seconds: Seconds
    shift: Seconds | None
    fractions: Flags  # where a time has a fraction of a second, cut off here
    notes: tuple[str, ...] = ()


def parse_times(
    distinct: pl.Series, column: pl.Series, given: str | None, place: Place
) -> ClockTimes:
    """The times of distinct texts of a column; `given` is a format such as %d.%m.%Y %H:%M."""
    text, notes = _without_ends(distinct.str.strip_chars())
    text = text.str.replace(r"\s*(?:UTC|GMT)$", "Z")
    offset = text.str.extract(r"\d{1,2}:?\d{2}.*?" + OFFSET)
    if given is not None and not given.endswith("%z"):
        offset = pl.Series([None] * len(text), dtype=pl.String)
    shifted = len(offset) > 0 and offset.null_count() == 0
    bare = text.str.replace(OFFSET, "").str.strip_chars() if shifted else text
    if given is not None:
        parsed = _parse_given(bare, given.removesuffix("%z").strip())
    else:
        parsed = _parse_iso(bare)
        if parsed.null_count():
            parsed, said = _parse_any(bare.str.to_lowercase(), place)
            notes = (*notes, *said)
    if parsed.null_count():
        wrong = distinct[int(parsed.is_null().arg_max() or 0)]
        row = int((column == wrong).arg_max() or 0)
        some = offset.null_count() < len(offset)
        why = ": some times have an offset from UTC and some do not" if some else ""
        if given is not None:
            why = f", which is not written as --time-format='{given}' says"
        ask = "" if given is not None else f"; {_WRITE}"
        if not any(letter.isdigit() for letter in wrong):
            ask = f": {NO_DATA}"
        raise FuelsError(f"{place.row(row)} has '{wrong}' as its time{why}{ask}")
    seconds = parsed.to_numpy().astype(np.int64)
    # Parsing loses anything finer than a microsecond.
    fractions = bare.str.contains(_FRACTION).to_numpy()
    return ClockTimes(seconds, _offset_seconds(offset) if shifted else None, fractions, notes)


def _without_ends(text: pl.Series) -> tuple[pl.Series, tuple[str, ...]]:
    """The starts of spans such as "00:00-01:00", which are equally long and start at other times.

    An offset from UTC looks alike, but does not follow the time of day.
    """
    parts = _groups(text, _SPAN)
    begin, end = (parts[h].cast(pl.Int64) * 60 + parts[m].cast(pl.Int64) for h, m in ("23", "45"))
    if len(text) < 2 or begin.null_count() or begin.n_unique() < 2:
        return text, ()
    lengths = ((end - begin) % 1440).value_counts()["count"].to_numpy()
    if lengths.max() < 0.9 * len(text):  # another length is that of an hour when clocks change
        return text, ()
    return parts["1"], (f"times are spans such as '{text[0]}': the start of each was used",)


def _seconds(parsed: pl.Series) -> pl.Series:
    return parsed.dt.epoch("us") // 10**6


def _parse_given(text: pl.Series, form: str) -> pl.Series:
    if "%H" in form and "%M" not in form and "%T" not in form and "%R" not in form:
        text, form = text + "~00", f"{form}~%M"  # polars needs minutes
    try:
        return _seconds(text.str.to_datetime(form, strict=False, time_unit="us"))
    except pl.exceptions.PolarsError:
        raise FuelsError(
            f"--time-format '{form.removesuffix('~%M')}' is not understood: use %Y, %m, %d, %H, %M,"
            " %S, ..., such as %d.%m.%Y %H:%M"
        ) from None


def _parse_iso(text: pl.Series) -> pl.Series:
    """Times that begin with a year of four digits; null for others."""
    text = text.str.replace(_COMPACT + r"(\d\d)$", "${1}-${2}-${3}T${4}:${5}:${6}")
    text = text.str.replace(_COMPACT + "$", "${1}-${2}-${3}T${4}:${5}")
    text = text.set(~text.str.contains(r"^\d{4}[-/]"), None)
    text = text.str.replace(" ", "T").str.replace_all("/", "-")
    forms = (pl.lit(text).str.to_datetime(f, strict=False, time_unit="us") for f in _ISO)
    return _seconds(pl.select(pl.coalesce(forms)).to_series())


# -- other ways of writing -----------------------------------------------------------------------


def _parse_any(text: pl.Series, place: Place) -> tuple[pl.Series, tuple[str, ...]]:
    """Times in any common way of writing, in small letters; null for others."""
    of_day = _time_of_day(text)
    ambiguous = text.str.contains(_YEAR_LAST)
    readings = {}
    for order in _orders(text):
        days = _days(text, order)
        readings[order] = days * 86_400 + of_day
    fitting = {order: found for order, found in readings.items() if found.null_count() == 0}
    if not fitting:
        return max(readings.values(), key=lambda found: len(found) - found.null_count()), ()
    (first, found), *others = fitting.items()
    for order, other in others:
        differs = found != other
        if differs.any():
            one = text.filter(differs)[0]
            raise FuelsError(
                f"{place}: dates such as '{one.upper()}' could have the {first} or the {order}"
                f" first: say which with --time-format='{_format(one, first)}' or"
                f" --time-format='{_format(one, order)}'"
            )
    if len(readings) == 1 or not ambiguous.any():
        return found, ()
    wrong = next((other for order, other in readings.items() if order not in fitting), None)
    shows = text if wrong is None else text.filter(wrong.is_null())
    return found, (f"dates were read with the {first} first, as '{shows[0].upper()}' shows",)


def _orders(text: pl.Series) -> list[str]:
    """The orders of day, month and year to try."""
    parts = text.str.extract_groups(_YEAR_LAST).struct.unnest()
    marks = set(parts["2"].drop_nulls().unique())
    if not marks - {"."}:
        return [_DAY_FIRST]
    short = (parts["4"].str.len_chars() == 2).any() and "-" in marks
    return [_DAY_FIRST, _MONTH_FIRST, *([_SHORT_YEAR_FIRST] if short else [])]


def _days(text: pl.Series, order: str) -> pl.Series:
    """Days since 1970, null where a date does not exist in this order."""
    last = _groups(text, _YEAR_LAST)
    dates = dict(zip(_ORDERS[order], (last["1"], last["3"], last["4"]), strict=True))
    day_name, name_day = _groups(text, _DAY_NAME), _groups(text, _NAME_DAY)
    first = _groups(text, _YEAR_FIRST)
    found = [
        (first["1"], first["2"], first["3"]),
        (dates["y"], dates["m"], dates["d"]),
        (day_name["3"], _month(day_name["2"]), day_name["1"]),
        (name_day["3"], _month(name_day["1"]), name_day["2"]),
    ]
    year, month, day = (
        pl.select(pl.coalesce([pl.lit(part[i]).cast(pl.Int64, strict=False) for part in found]))
        .to_series()
        .fill_null(-1)
        .to_numpy()
        for i in range(3)
    )
    year = np.where((year >= 0) & (year < 69), year + 2000, year)  # as strptime does
    year = np.where((year >= 69) & (year < 100), year + 1900, year)
    known = (year >= 1000) & (month >= 1) & (month <= 12)
    months = (np.where(known, (year - 1970) * 12 + month - 1, 0)).astype("datetime64[M]")
    begin = months.astype("datetime64[D]").astype(np.int64)
    length = (months + 1).astype("datetime64[D]").astype(np.int64) - begin
    exists = known & (day >= 1) & (day <= length)
    days = pl.Series(begin + day - 1)
    return days.set(pl.Series(~exists), None)


def _groups(text: pl.Series, pattern: str) -> pl.DataFrame:
    return text.str.extract_groups(pattern).struct.unnest()


def _month(name: pl.Series) -> pl.Series:
    return name.replace_strict(_MONTHS, default=None, return_dtype=pl.Int64).cast(pl.String)


def _time_of_day(text: pl.Series) -> pl.Series:
    """Seconds since midnight of what follows the date, 0 if nothing does; null if not a time."""
    rest = text
    for pattern in (_YEAR_FIRST, _YEAR_LAST, _DAY_NAME, _NAME_DAY):
        rest = rest.str.replace(pattern, "~")
    rest = rest.str.replace(r"^~(?:t|,? +)?", "~").str.strip_chars()
    empty = rest == "~"
    parts = _groups(rest.str.strip_prefix("~"), _OF_DAY)
    hour, minute, second = (parts[n].cast(pl.Int64) for n in "123")
    minute, second = minute.fill_null(0), second.fill_null(0)
    half = parts["4"]
    hour = hour.set(half.is_not_null() & ~hour.is_between(1, 12).fill_null(False), None)
    hour = pl.select(
        pl.when(pl.lit(half) == "p")
        .then(pl.lit(hour) % 12 + 12)
        .when(pl.lit(half) == "a")
        .then(pl.lit(hour) % 12)
        .otherwise(pl.lit(hour))
    ).to_series()
    seconds = hour * 3600 + minute * 60 + second
    valid = (minute < 60) & (second < 60) & (seconds <= 86_400)  # 24:00 ends the day
    seconds = seconds.set(~valid.fill_null(False), None)
    return seconds.set(empty, 0)


def _format(text: str, order: str) -> str:
    """How a text is written, as --time-format takes it."""
    parts = _groups(pl.Series([text]), _YEAR_LAST)
    mark, year = str(parts["2"][0]), "%Y" if len(parts["4"][0]) == 4 else "%y"
    rest = str(pl.Series([text]).str.replace(_YEAR_LAST, "").str.strip_chars()[0]).lstrip("t, ")
    joint = text[: len(text) - len(rest)].rstrip()
    between = text[len(joint) : len(text) - len(rest)] or ("T" if rest else "")
    clock = {1: "%H:%M", 2: "%H:%M:%S"}.get(rest.count(":"), "%H")
    if "m" in rest:
        clock = clock.replace("%H", "%I") + (" %p" if " " in rest else "%p")
    days = mark.join(year if part == "y" else f"%{part}" for part in _ORDERS[order])
    return days + (between + clock if rest else "")


def _offset_seconds(offset: pl.Series) -> Seconds:
    digits = offset.str.replace("Z", "+0000").str.replace(":", "")
    sign = np.where((digits.str.slice(0, 1) == "-").to_numpy(), -1, 1)
    hours = digits.str.slice(1, 2).cast(pl.Int64).to_numpy()
    minutes = digits.str.slice(3, 2).cast(pl.Int64).to_numpy()
    return np.asarray(sign * (hours * 3600 + minutes * 60), dtype=np.int64)
