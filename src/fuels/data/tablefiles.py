"""CSV and Parquet files: into tables and back.

A Parquet file written here keeps unit and coordinates in its metadata under the key `fuels` and
the zone in the type of its time column. A CSV has no such place: what is known about the panel
stands in extra columns (timezone, unit, synthetic, lng, lat), which the reader knows.
"""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from fuels.data.panel import Panel
from fuels.data.tables import Layout, find_layout, panel_from_table
from fuels.errors import FuelsError

LayoutName = Literal["long", "wide"]
_KEY = "fuels"


def read_csv(
    path: Path, *, client: str | None, time: str | None, value: str | None, timezone: str | None
) -> Panel:
    """The panel of a CSV file (also gzipped; separated by comma, semicolon or tab)."""
    names, separator = _header(path)
    layout = find_layout(names, path.name, client, time, value)
    table = _read_columns(path, names, separator, layout)
    return panel_from_table(table, layout, timezone=timezone, place=path.name)


def _header(path: Path) -> tuple[list[str], str]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            first = file.readline()
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
        raise FuelsError(f"{path.name}: not readable as text ({error})") from None
    if not first.strip():
        raise FuelsError(f"{path.name}: the file is empty or does not start with column names")
    separator = max(",;\t", key=first.count)
    names = [name.strip() for name in next(csv.reader([first], delimiter=separator))]
    doubled = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if doubled is not None:
        raise FuelsError(f"{path.name}: there are two columns named '{doubled}'")
    return names, separator


def _read_columns(path: Path, names: list[str], separator: str, layout: Layout) -> pl.DataFrame:
    numeric = set(layout.numbers)
    # Ids stay text ("007"), times are parsed with care later; only values are numbers here.
    strict: dict[str, Any] = {n: pl.Float64 if n in numeric else pl.String for n in names}
    try:
        return _polars_csv(path, strict, separator)
    except pl.exceptions.PolarsError:
        pass  # Some value is not plainly a number: as text, the word and its row can be named.
    try:
        return _polars_csv(path, dict.fromkeys(names, pl.String), separator)
    except pl.exceptions.PolarsError as error:
        raise FuelsError(f"{path.name}: not readable as CSV ({_first_line(error)})") from None


def _polars_csv(path: Path, schema: dict[str, Any], separator: str) -> pl.DataFrame:
    return pl.read_csv(path, schema=schema, separator=separator, glob=False)


def read_parquet(
    path: Path, *, client: str | None, time: str | None, value: str | None, timezone: str | None
) -> Panel:
    """The panel of a Parquet file, with what `write_table` noted about it."""
    try:
        said = pl.read_parquet_metadata(path).get(_KEY, "{}")
        table = pl.read_parquet(path, glob=False)
    except pl.exceptions.PolarsError as error:
        raise FuelsError(f"{path.name}: not readable as Parquet ({_first_line(error)})") from None
    layout = find_layout(table.columns, path.name, client, time, value)
    panel = panel_from_table(table, layout, timezone=timezone, place=path.name)
    about = json.loads(said)
    places: dict[str, list[float]] = about.get("coordinates", {})
    known = bool(places) and all(client in places for client in panel.ids)
    return replace(
        panel,
        unit=about.get("unit", panel.unit),
        synthetic=about.get("synthetic", panel.synthetic),
        coordinates=np.array([places[c] for c in panel.ids]) if known else panel.coordinates,
    )


def write_table(panel: Panel, path: Path, layout: LayoutName) -> None:
    """Write a panel to a .csv or .parquet file that reads back as the same panel."""
    table = panel_table(panel, layout)
    if path.suffix == ".csv":
        table = _with_about(table, panel, layout)
    _refuse_confusion(table.columns, panel, layout)
    if path.suffix == ".csv":
        form = "%Y-%m-%dT%H:%M:%S" + ("%:z" if panel.timezone else "")
        table.write_csv(path, datetime_format=form)
    else:
        about: dict[str, Any] = {"unit": panel.unit, "synthetic": panel.synthetic}
        if panel.coordinates is not None:
            about["coordinates"] = dict(zip(panel.ids, panel.coordinates.tolist(), strict=True))
        table.write_parquet(path, metadata={_KEY: json.dumps(about)})


def panel_table(panel: Panel, layout: LayoutName) -> pl.DataFrame:
    """The panel as a polars table; missing values are null, times in the panel's zone."""
    time = pl.Series("time", panel.times.astype("datetime64[ms]"))
    if panel.timezone is not None:
        time = time.dt.replace_time_zone("UTC").dt.convert_time_zone(panel.timezone)
    if layout == "wide":
        table = pl.DataFrame(panel.values, schema=list(panel.ids)).fill_nan(None)
        return table.insert_column(0, time)
    index = pl.Series(np.repeat(np.arange(len(panel.ids), dtype=np.uint32), panel.length))
    return pl.DataFrame(
        {
            "client": pl.Series(panel.ids, dtype=pl.String).gather(index),
            "time": pl.concat([time] * len(panel.ids), rechunk=True),
            "value": panel.values.T.ravel(),
        }
    ).with_columns(pl.col("value").fill_nan(None))


def _with_about(table: pl.DataFrame, panel: Panel, layout: LayoutName) -> pl.DataFrame:
    said = {"timezone": panel.timezone, "unit": panel.unit if panel.unit != "value" else None}
    said["synthetic"] = "true" if panel.synthetic else None
    table = table.with_columns(**{k: pl.lit(v) for k, v in said.items() if v is not None})
    if panel.coordinates is None or layout == "wide":
        return table
    return table.with_columns(
        lng=np.repeat(panel.coordinates[:, 0], panel.length),
        lat=np.repeat(panel.coordinates[:, 1], panel.length),
    )


def _refuse_confusion(names: list[str], panel: Panel, layout: LayoutName) -> None:
    """A wide table whose client is called, say, `id` or `date` would not read back."""
    if layout == "wide" and find_layout(names, panel.name).clients != panel.ids:
        raise FuelsError(
            f"{panel.name}: a client has the name of a column with another meaning:"
            " write it with --layout long"
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
