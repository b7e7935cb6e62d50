"""Tables with columns: CSV, Parquet, and pandas or polars frames, long or wide.

Long: one row per client and time, with a client, a time and a value column. Wide: one row per
time, with a time column and one column per client. The column names decide which; unusual names
can be given as options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from fuels.arrays import Floats
from fuels.data.clock import zone_id
from fuels.data.coordinates import coordinate_columns, coordinates_of, read_coordinates
from fuels.data.grid import Rows, check_magnitudes
from fuels.data.header import ABOUT, Header, Layout, listed
from fuels.data.ids import id_texts
from fuels.data.numbers import read_numbers
from fuels.data.panel import Panel, sort_ids
from fuels.data.sources import Place
from fuels.data.table_options import NOTHING_GIVEN, TableOptions, missing_numbers
from fuels.data.times import TimeReader, joined_times
from fuels.errors import FuelsError

HEAD = 200  # rows that decide on the roles of columns
MARKED = "were marked as missing"


def panel_from_table(
    table: pl.DataFrame,
    layout: Layout,
    place: Place,
    given: TableOptions = NOTHING_GIVEN,
    *,
    european: bool = False,
) -> Panel:
    """The panel of a polars table whose columns are known."""
    if table.height == 0:
        raise FuelsError(f"{place}: there are no rows")
    about = _read_about(table, place)
    zone = given.timezone or about.get("timezone") or ("UTC" if layout.utc else None)
    zone = None if zone is None else zone_id(zone)
    when = table[layout.time]
    if layout.hour is not None:
        when = joined_times(when, table[layout.hour])
    client = None if layout.client is None else id_texts(table[layout.client], place)
    times = TimeReader(place, zone, given, client).read(when)
    columns, notes = read_numbers(
        [table[name] for name in layout.numbers], place, given, european=european
    )
    notes = (*_column_notes(layout, zone), *notes, *_mark_missing(columns, given))
    if client is None:
        nobody = np.zeros(table.height, dtype=np.int64)
        panel = Rows(nobody, times, np.stack(columns, axis=1), place, given).panel(layout.clients)
    else:
        ids = sort_ids(client.unique())
        codes = client.cast(pl.Enum(ids)).to_physical().cast(pl.Int64).to_numpy()
        panel = Rows(codes, times, columns[0][:, None], place, given, tuple(ids)).panel(ids)
        if pair := coordinate_columns(table.columns):
            known = read_coordinates(table, pair, client, place.name)
            panel = replace(panel, coordinates=coordinates_of(known, ids))
    return replace(
        panel,
        unit=about.get("unit", panel.unit),
        synthetic=about.get("synthetic", "false").lower() == "true",
        notes=(*panel.notes, *notes),
    )


def _column_notes(layout: Layout, zone: str | None) -> list[str]:
    notes = []
    if layout.unused:
        notes.append(f"columns not used: {listed(layout.unused)}")
    if layout.hour is not None:
        notes.append(f"times are in the columns '{layout.time}' and '{layout.hour}'")
    if layout.utc and zone == "UTC":
        notes.append(f"times are UTC, as the column '{layout.time}' says")
    return notes


def _mark_missing(columns: list[Floats], given: TableOptions) -> list[str]:
    """Set values that mark missing ones to NaN, in place, before rows are combined.

    Otherwise readers.py does it, after the choice of clients and times.
    """
    combined = given.resample is not None or given.duplicates not in (None, "error", "same")
    marks = missing_numbers(given.missing) if combined else ()
    if not marks:
        return []
    count = 0
    for i, values in enumerate(columns):
        hit = np.isin(values, marks)
        columns[i] = np.where(hit, np.nan, values)
        count += int(hit.sum())
    return [missing_note(count, marks)]


def missing_note(count: int, marks: Sequence[float]) -> str:
    return f"{count} values equal to {' or '.join(f'{m:g}' for m in marks)} {MARKED}"


def _read_about(table: pl.DataFrame, place: Place) -> dict[str, str]:
    found = {}
    for what, name in ABOUT.items():
        if name in table.columns:
            said = table[name].drop_nulls().unique()
            if len(said) > 1:
                raise FuelsError(f"{place}: column '{name}' must have the same value in every row")
            if len(said) == 1:
                found[what] = str(said[0])
    return found


def panel_from_frame(
    frame: Any, *, name: str = "frame", given: TableOptions = NOTHING_GIVEN
) -> Panel:
    """The panel of a pandas or polars frame, long or wide, with clients sorted by id."""
    table = _as_polars(frame, name)
    place = Place(name)
    try:
        layout = Header(table.columns, name, given, table.head(HEAD)).layout()
    except FuelsError as error:
        if given.time is not None or "no time column" not in str(error):
            raise
        raise FuelsError(
            f"{name}: the columns unique_id, ds and y are needed, or ds and one column per"
            f" client; found {listed(table.columns)}"
        ) from None
    panel = panel_from_table(table, layout, place, given).sorted()
    check_magnitudes(panel)
    return panel


def frame_columns(frame: Any, name: str) -> set[str]:
    """The column names of a pandas or polars frame."""
    return set(_as_polars(frame, name).columns)


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
