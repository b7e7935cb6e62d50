"""What the columns of a table mean: its header, and where names do not suffice, its first rows.

Long: one row per client and time, with a client, a time and a value column. Wide: one row per
time, with a time column and one column per client. Date and hour may be in separate columns.
Capitals, spaces, units in brackets and quotes do not matter: `Time Stamp` is `time_stamp`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from fuels.data.coordinates import LATITUDE, LONGITUDE, coordinate_columns
from fuels.data.numbers import is_number_text
from fuels.data.table_options import NOTHING_GIVEN, TableOptions
from fuels.errors import FuelsError

_CLIENT = {
    *("client", "unique_id", "id", "client_id", "cell_id", "cell", "square_id", "sensor_id"),
    *("sensor", "station_id", "station", "series_id", "series", "node_id", "node"),
    *("meter", "meter_id", "device", "device_id", "detector", "detector_id", "site_id"),
    *("location_id", "customer_id", "user_id", "item_id", "household_id"),
}
# A name of the first group is preferred to one of the second.
_TIME = (
    ("time", "ds", "timestamp", "datetime", "date_time", "date"),
    (
        *("time_stamp", "date_and_time", "datetimestamp", "timestamps", "times", "dates", "ts"),
        *("local_time", "time_local", "datetime_local", "local_datetime", "local_timestamp"),
        *("start_time", "start", "period_start", "interval_start", "measured_at", "recorded_at"),
        *("created_at", "event_time", "observation_time", "measurement_time", "reading_time"),
        *("day", "datum", "zeit", "zeitpunkt", "zeitstempel", "datum_zeit", "datum_uhrzeit"),
        *("messzeitpunkt",),
        *("horodatage", "date_heure", "fecha", "fecha_hora", "data_ora", "data"),
    ),
)
_DATE = {"date", "day", "datum", "fecha", "data", "jour"}
_HOUR = {
    *("time", "hour", "hr", "hh", "hour_of_day", "time_of_day", "uhrzeit", "zeit", "stunde"),
    *("hora", "ora", "heure"),
}
_INDEX = {"", "index", "unnamed:_0"}  # names of a frame's index saved to CSV
_VALUE = {"value", "y"}
# Columns that describe a row, and are not clients of a wide table.
_LABELS = {
    *("comment", "comments", "note", "notes", "remark", "remarks", "quality", "status", "flag"),
    *("unit", "units", "weekday", "day_of_week", "dow", "holiday", "bemerkung", "kommentar"),
    *("einheit", "wochentag"),
}
# Metadata columns that `fuels data convert` adds to a CSV; the prefix distinguishes them from a
# client called, say, unit.
ABOUT = {"timezone": "fuels_timezone", "unit": "fuels_unit", "synthetic": "fuels_synthetic"}
_TIME_PATTERN = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}")
_HOUR_PATTERN = r"^(1[89]\d\d-\d\d-\d\d )?([01]?\d|2[0-4])(:\d{2}(:\d{2}(\.0*)?)?)?( ?[AaPp][Mm])?$"


@dataclass(frozen=True)
class Layout:
    """The role of each column; a wide table has no `value` but one column for each of `clients`."""

    time: str
    client: str | None
    value: str | None
    clients: tuple[str, ...] = ()
    hour: str | None = None  # the hour or time of day, where `time` is only a date
    utc: bool = False  # the time column says that its times are UTC
    unused: tuple[str, ...] = ()

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns that hold values."""
        return self.clients if self.value is None else (self.value,)

    @property
    def times(self) -> tuple[str, ...]:
        return (self.time,) if self.hour is None else (self.time, self.hour)


@dataclass(frozen=True)
class Header:
    """The column names of a table, its first rows, and what the user says about them."""

    names: Sequence[str]
    source: object
    given: TableOptions = NOTHING_GIVEN
    head: pl.DataFrame = field(default_factory=pl.DataFrame)  # for what names leave open

    def layout(self) -> Layout:
        """Distinguish long from wide by the names; those given by the user take precedence."""
        time, hour = self._times()
        about = {time, hour, *self.given.inputs, *ABOUT.values()}
        others = [n for n in self.names if n not in about]
        others = [n for n in others if n.strip() or not self._is_empty(n)]  # after a last separator
        utc = normal(time).endswith("_utc") or normal(time).startswith("utc_")
        client = self._one(others, self.given.client, _CLIENT, "client")
        if client is None:
            clients = self._wide_columns(others, time)
            unused = tuple(n for n in others if n not in clients)
            return Layout(time, None, None, tuple(clients), hour, utc, unused)
        others = [n for n in others if n != client]
        value = self._one(others, self.given.value, _VALUE, "value")
        if value is None:
            value = self._value_column(others, time, client)
        places = coordinate_columns(self.names) or ()
        unused = tuple(n for n in others if n != value and n not in places)
        return Layout(time, client, value, (), hour, utc, unused)

    def check(self) -> None:
        """Reject a first line that holds values instead of column names."""
        names, usual = self.names, {name for group in _TIME for name in group}
        if (self.given.time or "").split(",")[0] in names or any(_forms(n) & usual for n in names):
            return
        if any(_TIME_PATTERN.match(name) for name in names) or all(map(is_number_text, names)):
            raise FuelsError(
                f"{self.source}: the first line, {listed(names)}, holds values, not column names:"
                " add a line such as client,time,value above it"
            )

    def coordinates(self) -> tuple[str, str, str]:
        """Client, longitude and latitude columns of a table of coordinates."""
        client, pair = (
            self._one(self.names, None, _CLIENT, "client"),
            coordinate_columns(self.names),
        )
        if client is None or pair is None:
            raise FuelsError(
                f"{self.source}: coordinates need the columns client (or cell_id), lng and lat,"
                f" not {listed(self.names)}"
            )
        return client, *pair

    # -- roles ---------------------------------------------------------------------------------

    def _times(self) -> tuple[str, str | None]:
        """The time column, or the columns of date and hour."""
        names, given = self.names, self.given.time
        if given is not None:
            both = [part.strip() for part in given.split(",")]
            if given not in names and len(both) == 2:
                return self._named(names, both[0]), self._named(names, both[1])
            return self._named(names, given), None
        if pair := self._date_and_hour():
            return pair
        for usual in _TIME:
            if found := self._one(names, None, set(usual), "time"):
                return found, None
        if names and normal(names[0]) in _INDEX:
            return names[0], None
        likely = [n for n in names if self._like_times(n)]
        hint = f"name it with --time-column={_quoted(likely[0]) if len(likely) == 1 else 'NAME'}"
        raise FuelsError(f"{self.source}: no time column among {listed(names)}: {hint}")

    def _date_and_hour(self) -> tuple[str, str] | None:
        """Two columns, one of dates and one of hours or times of day."""
        dates = [n for n in self.names if _forms(n) & _DATE]
        hours = [n for n in self.names if _forms(n) & _HOUR and n not in dates]
        if len(dates) != 1 or len(hours) != 1:
            return None
        texts, days = self._texts(hours[0]), self._texts(dates[0])
        if len(texts) == 0 or not texts.str.contains(_HOUR_PATTERN).all():
            return None
        midnight = days.str.contains(r"00:00(:00)?(\.0*)?$")
        return (dates[0], hours[0]) if (midnight | ~days.str.contains(r":")).all() else None

    def _wide_columns(self, others: Sequence[str], time: str) -> list[str]:
        """The columns of a wide table's clients."""
        if self.given.value is not None:  # one series among other columns
            return [self._named(others, self.given.value)]
        if not others:
            raise FuelsError(f"{self.source}: there is no value column besides '{time}'")
        if not all(name.strip() for name in others):
            raise FuelsError(
                f"{self.source}: a column has no name: give it a client id, or remove it"
            )
        texts = [n for n in others if self._is_text(n)]
        strange = [n for n in texts if not _forms(n) & _LABELS]
        if strange and len(strange) < len(others):
            text = self._texts(strange[0])[0]
            raise FuelsError(
                f"{self.source}: column '{strange[0]}' holds text such as '{text}':"
                f" if it names the clients, give --client-column={_quoted(strange[0])}; otherwise"
                " name the one column to use with --value-column=NAME, or remove the text"
            )
        return [n for n in others if n not in texts] or list(others)

    def _value_column(self, others: Sequence[str], time: str, client: str) -> str:
        """The value column of a long table in which none has a usual name."""
        plain = [n for n in others if n.lower() not in (*LONGITUDE, *LATITUDE)]
        if not plain:
            raise FuelsError(
                f"{self.source}: there is no value column besides '{time}' and '{client}'"
            )
        if len(plain) == 1:
            return plain[0]
        numbers = [n for n in plain if not (_forms(n) & _LABELS or self._is_text(n))]
        if len(numbers) == 1:
            return numbers[0]
        raise FuelsError(
            f"{self.source}: which of the columns {listed(plain)} holds the values?"
            " Name it with --value-column=NAME"
        )

    def _one(
        self, names: Sequence[str], given: str | None, usual: Collection[str], role: str
    ) -> str | None:
        """The column given, or the only one with a usual name."""
        if given is not None:
            return self._named(names, given)
        matches = [n for n in names if _forms(n) & set(usual)]
        if len(matches) > 1:  # `value` rather than `value (old)`
            exact = [n for n in matches if normal(n) in usual]
            matches = exact if len(exact) == 1 else matches
        if len(matches) > 1:
            raise FuelsError(
                f"{self.source}: the columns {listed(matches)} could each be the {role}:"
                f" choose one with --{role}-column={_quoted(matches[0])}"
            )
        return matches[0] if matches else None

    def _named(self, names: Sequence[str], given: str) -> str:
        """The column that the user named; spaces around it and capitals do not matter."""
        if given in names:
            return given
        close = [n for n in names if n.strip().lower() == given.strip().lower()]
        if len(close) != 1:
            raise FuelsError(f"{self.source}: no column '{given}' among {listed(names)}")
        return close[0]

    # -- the first rows ------------------------------------------------------------------------

    def _texts(self, name: str) -> pl.Series:
        """What is in the first rows of a column, without empty fields."""
        nothing = pl.Series([], dtype=pl.String)
        column = self.head[name] if name in self.head.columns else nothing
        if column.dtype.is_nested() or column.dtype == pl.Binary:
            return nothing
        texts = column.cast(pl.String, strict=False).str.strip_chars()
        return texts.replace("", None).drop_nulls()

    def _is_empty(self, name: str) -> bool:
        return name in self.head.columns and len(self._texts(name)) == 0

    def _is_text(self, name: str) -> bool:
        """Whether a column has text in its first rows, and nothing that looks like a number."""
        texts = self._texts(name)
        if len(texts) == 0 or self.head[name].dtype != pl.String:
            return False
        return not any(is_number_text(text) for text in texts)

    def _like_times(self, name: str) -> bool:
        texts = self._texts(name)
        return len(texts) > 0 and all(_TIME_PATTERN.match(text) is not None for text in texts)


def header_names(cells: Iterable[str | None]) -> list[str]:
    """Names from the cells of a header; of several empty ones, each gets as many blanks."""
    return [(cell or "").strip() or " " * i for i, cell in enumerate(cells)]


def refuse_doubled(names: Sequence[str], source: object) -> None:
    doubled = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if doubled is not None:
        raise FuelsError(f"{source}: there are two columns named '{doubled}'")


def normal(name: str) -> str:
    """A column's name as it is compared: in small letters, words joined by underscores."""
    words = re.sub(r"[\s\-/.\[\]()]+", "_", name.strip().strip("'\"").lower())
    return words.strip("_")


def _forms(name: str) -> set[str]:
    """The names that a column may go by: with and without a unit in brackets or `utc`."""
    plain = normal(re.sub(r"[\[(].*?[\])]", "", name))
    forms = {normal(name), plain}
    forms |= {form.removesuffix("_utc").removeprefix("utc_") for form in forms}
    return forms if normal(name) else {""}


def listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{n}'" for n in names[:8])
    return f"{shown} ... ({len(names)} columns)" if len(names) > 8 else shown or "(no columns)"


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[\w.]+", name) else f"'{name}'"


def renamed_like(layout: Layout, first: Layout) -> Mapping[str, str]:
    """New names for a table's columns, by their roles, so that it continues the first one."""
    roles = ("time", "hour", "client", "value")
    pairs = [(getattr(layout, role), getattr(first, role)) for role in roles]
    return {old: new for old, new in pairs if old is not None and new is not None and old != new}
