"""Tables with columns: CSV, Parquet, and pandas or polars frames, long or wide.

Long: one row per client and time, with a client, a time and a value column. Wide: one row per
time, with a time column and one column per client. The column names decide which; unusual names
can be given as options.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from fuels.data.coordinates import (
    LATITUDE,
    LONGITUDE,
    MISSING_WORDS,
    coordinate_columns,
    coordinates_of,
    read_coordinates,
)
from fuels.data.grid import check_magnitudes, panel_from_matrix, panel_from_rows
from fuels.data.panel import Floats, Panel, sort_ids
from fuels.data.times import read_times
from fuels.errors import FuelsError

_CLIENT = {
    *("client", "unique_id", "id", "client_id", "cell_id", "cell", "square_id", "sensor_id"),
    *("sensor", "station_id", "station", "series_id", "series", "node_id", "node"),
}
_TIME = {"time", "ds", "timestamp", "datetime", "date_time", "date"}
_INDEX = {"", "index", "unnamed: 0"}  # names of a frame's index saved to CSV
_VALUE = {"value", "y"}
# Metadata columns that `fuels data convert` adds to a CSV; the prefix distinguishes them from a
# client called, say, unit.
ABOUT = {"timezone": "fuels_timezone", "unit": "fuels_unit", "synthetic": "fuels_synthetic"}
_TIME_PATTERN = re.compile(r"\d{4}[-/]\d{2}[-/]\d{2}|\d{2}[-/.]\d{2}[-/.]\d{4}")
_DECIMAL_COMMA = re.compile(r"[+-]?[\d.]*,\d+([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Columns:
    """Column names given by the user; None: look for the usual names."""

    client: str | None = None
    time: str | None = None
    value: str | None = None


DEFAULT_COLUMNS = Columns()


@dataclass(frozen=True)
class Layout:
    """The role of each column; a wide table has no `value` but one column for each of `clients`."""

    time: str
    client: str | None
    value: str | None
    clients: tuple[str, ...] = ()

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns that hold values."""
        return self.clients if self.value is None else (self.value,)


def find_layout(names: Sequence[str], source: str, given: Columns = DEFAULT_COLUMNS) -> Layout:
    """Distinguish long from wide by the column names; names given by the user take precedence."""
    time_column = _find(names, given.time, _TIME, "time", source)
    if time_column is None and names and names[0].strip().lower() in _INDEX:
        time_column = names[0]
    if time_column is None:
        raise FuelsError(
            f"{source}: no time column among {_listed(names)}: name it with --time-column"
        )
    others = [n for n in names if n != time_column and n not in ABOUT.values()]
    client_column = _find(others, given.client, _CLIENT, "client", source)
    if client_column is None:
        if given.value is not None:  # one series among other columns
            _find(others, given.value, (), "value", source)
            others = [given.value]
        if not others:
            raise FuelsError(f"{source}: there is no value column besides '{time_column}'")
        if not all(name.strip() for name in others):
            raise FuelsError(f"{source}: a column has no name: give it a client id, or remove it")
        return Layout(time_column, None, None, tuple(others))
    others = [n for n in others if n != client_column]
    value_column = _find(others, given.value, _VALUE, "value", source)
    if value_column is None:
        plain = [n for n in others if n.lower() not in (*LONGITUDE, *LATITUDE)]
        if not plain:
            raise FuelsError(
                f"{source}: there is no value column besides '{time_column}' and '{client_column}'"
            )
        if len(plain) > 1:
            raise FuelsError(
                f"{source}: which of the columns {_listed(plain)} holds the values?"
                " Name it with --value-column"
            )
        value_column = plain[0]
    return Layout(time_column, client_column, value_column)


def check_header(names: Sequence[str], source: str, given: Columns) -> None:
    """Reject a first line that holds values instead of column names."""
    if given.time in names or any(name.lower() in _TIME for name in names):
        return
    if any(_TIME_PATTERN.match(name) for name in names) or all(map(_is_number, names)):
        raise FuelsError(
            f"{source}: the first line, {_listed(names)}, holds values, not column names:"
            " add a line such as client,time,value above it"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _find(
    names: Sequence[str], given: str | None, usual: Collection[str], role: str, source: str
) -> str | None:
    if given is not None:
        if given not in names:
            raise FuelsError(f"{source}: no column '{given}' among {_listed(names)}")
        return given
    matches = [n for n in names if n.strip().lower() in usual]
    if len(matches) > 1:
        raise FuelsError(
            f"{source}: the columns {_listed(matches)} could each be the {role}:"
            f" choose one with --{role}-column"
        )
    return matches[0] if matches else None


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{n}'" for n in names[:8])
    return f"{shown} ... ({len(names)} columns)" if len(names) > 8 else shown or "(no columns)"


def panel_from_table(
    table: pl.DataFrame, layout: Layout, *, timezone: str | None, source: str
) -> Panel:
    """The panel of a polars table whose columns are known."""
    if table.height == 0:
        raise FuelsError(f"{source}: there are no rows")
    about = _read_about(table, source)
    timezone = timezone or about.get("timezone")
    if layout.client is None or layout.value is None:
        times = read_times(table[layout.time], timezone=timezone, source=source)
        columns = [numbers(table[name], source) for name in layout.clients]
        panel = panel_from_matrix(times, np.stack(columns, axis=1), layout.clients, source)
    else:
        client = id_texts(table[layout.client], source)
        times = read_times(table[layout.time], timezone=timezone, source=source, client=client)
        ids = sort_ids(client.unique())
        codes = client.cast(pl.Enum(ids)).to_physical().cast(pl.Int64).to_numpy()
        panel = panel_from_rows(codes, times, numbers(table[layout.value], source), ids, source)
        if pair := coordinate_columns(table.columns):
            known = read_coordinates(table, pair, client, source)
            panel = replace(panel, coordinates=coordinates_of(known, ids))
    return replace(
        panel,
        unit=about.get("unit", panel.unit),
        synthetic=about.get("synthetic", "false").lower() == "true",
    )


def numbers(column: pl.Series, source: str) -> Floats:
    """A column as float64 [row], NaN if empty; anything but a number is an error."""
    kind = column.dtype
    if kind == pl.String:
        text = column.str.strip_chars()
        text = text.set(text.is_in(MISSING_WORDS), None)
        parsed = text.cast(pl.Float64, strict=False)
        wrong = parsed.is_null() & text.is_not_null()
        if wrong.any():
            row = int(wrong.arg_max() or 0)
            comma = _DECIMAL_COMMA.fullmatch(str(text[row])) is not None
            raise FuelsError(
                f"{source}: row {row + 1} has '{column[row]}' in column '{column.name}',"
                f" which is not a number{': write decimals with a point' if comma else ''}"
            )
    elif kind.is_numeric() or kind == pl.Null:
        parsed = column.cast(pl.Float64)
    else:
        raise FuelsError(f"{source}: column '{column.name}' holds {kind} values, not numbers")
    return np.asarray(parsed.fill_null(float("nan")).to_numpy(), dtype=np.float64)


def id_texts(column: pl.Series, source: str) -> pl.Series:
    """Client ids as text: 4050, 4050.0 and "4050" are the same client."""
    if column.dtype.is_float():
        column = column.fill_nan(None)
        whole = column.cast(pl.Int64, strict=False)
        column = whole if (whole == column).all() else column
    wrong = FuelsError(
        f"{source}: column '{column.name}' holds {column.dtype} values, not client ids"
    )
    if column.dtype.is_nested():  # polars would write a struct as text
        raise wrong
    try:
        text = column.cast(pl.String).str.strip_chars()
    except pl.exceptions.PolarsError:
        raise wrong from None
    empty = text.is_null() | (text == "")
    if empty.any():
        row = int(empty.arg_max() or 0)
        raise FuelsError(f"{source}: row {row + 1} names no client in column '{column.name}'")
    return text


def _read_about(table: pl.DataFrame, source: str) -> dict[str, str]:
    found = {}
    for what, name in ABOUT.items():
        if name in table.columns:
            said = table[name].drop_nulls().unique()
            if len(said) > 1:
                raise FuelsError(f"{source}: column '{name}' must have the same value in every row")
            if len(said) == 1:
                found[what] = str(said[0])
    return found


def find_coordinate_columns(names: Sequence[str], source: str) -> tuple[str, str, str]:
    """Client, longitude and latitude columns of a table of coordinates."""
    client, pair = _find(names, None, _CLIENT, "client", source), coordinate_columns(names)
    if client is None or pair is None:
        raise FuelsError(
            f"{source}: coordinates need the columns client (or cell_id), lng and lat,"
            f" not {_listed(names)}"
        )
    return client, *pair


def panel_from_frame(
    frame: Any,
    *,
    client: str | None = None,
    time: str | None = None,
    value: str | None = None,
    timezone: str | None = None,
    name: str = "frame",
) -> Panel:
    """The panel of a pandas or polars frame, long or wide, with clients sorted by id."""
    table, given = _as_polars(frame, name), Columns(client, time, value)
    try:
        layout = find_layout(table.columns, name, given)
    except FuelsError:
        if given != DEFAULT_COLUMNS:
            raise
        raise FuelsError(
            f"{name}: the columns unique_id, ds and y are needed, or ds and one column per"
            f" client; found {_listed(table.columns)}"
        ) from None
    panel = panel_from_table(table, layout, timezone=timezone, source=name).sorted()
    check_magnitudes(panel)
    return panel


def _as_polars(frame: Any, name: str) -> pl.DataFrame:
    if isinstance(frame, pl.LazyFrame):
        return frame.collect()
    if isinstance(frame, pl.DataFrame):
        return frame
    # Recognise a pandas frame by its module, without importing pandas.
    if type(frame).__module__.split(".")[0] != "pandas" or not hasattr(frame, "columns"):
        raise FuelsError(f"{name}: a pandas or polars frame is needed, not {type(frame).__name__}")
    names = [str(column) for column in frame.columns]
    if twice := sorted({column for column in names if names.count(column) > 1}):
        raise FuelsError(f"{name}: there are two columns named {twice[0]}")
    return pl.DataFrame([_pandas_column(n, frame.iloc[:, i]) for i, n in enumerate(names)])


def _pandas_column(name: str, column: Any) -> pl.Series:
    zone = getattr(column.dtype, "tz", None)
    if zone is not None:
        utc = column.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
        return pl.Series(name, utc).dt.replace_time_zone("UTC").dt.convert_time_zone(str(zone))
    array = column.to_numpy()
    if array.dtype != object:
        return pl.Series(name, array)
    missing = column.isna().to_numpy()
    values = [None if m else x for x, m in zip(array, missing, strict=True)]
    try:
        return pl.Series(name, values)
    except (TypeError, pl.exceptions.PolarsError):
        raise FuelsError(
            f"column {name} holds values of several kinds, such as text and numbers"
        ) from None
