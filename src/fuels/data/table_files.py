"""Reading CSV and Parquet files into tables, and tables into panels."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fuels.data.coordinates import check_coordinates
from fuels.data.panel import Panel
from fuels.data.tables import Columns, Layout, check_header, find_layout, panel_from_table
from fuels.data.writers import METADATA_KEY
from fuels.errors import FuelsError


def read_csv(path: Path, columns: Columns, timezone: str | None) -> Panel:
    """The panel of a CSV file (also gzipped; separated by comma, semicolon or tab)."""
    names, separator = _header(path, columns)
    layout = find_layout(names, path.name, columns)
    table = _read_columns(path, names, separator, layout)
    table = table.filter(~pl.all_horizontal(pl.all().is_null()))  # blank lines
    return panel_from_table(table, layout, timezone=timezone, source=path.name)


def _header(path: Path, columns: Columns) -> tuple[list[str], str]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            first = file.readline()
    except UnicodeDecodeError:
        raise _not_utf8(path) from None
    except (gzip.BadGzipFile, EOFError) as error:
        raise FuelsError(f"{path.name}: not readable as gzip ({error})") from None
    if not first.strip():
        raise FuelsError(f"{path.name}: the file is empty or does not start with column names")
    separator = max(",;\t", key=first.count)
    names = [name.strip() for name in next(csv.reader([first], delimiter=separator))]
    if len(names) == 1 and not names[0].isidentifier():  # an unknown separator
        raise FuelsError(
            f"{path.name}: the first line, '{names[0]}', has only one column: separate columns by"
            " comma, semicolon or tab"
        )
    check_header(names, path.name, columns)
    doubled = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if doubled is not None:
        raise FuelsError(f"{path.name}: there are two columns named '{doubled}'")
    return names, separator


def _read_columns(path: Path, names: list[str], separator: str, layout: Layout) -> pl.DataFrame:
    numeric = set(layout.numbers)
    # Ids stay text ("007") and times are parsed later; only values are numbers here.
    schema: dict[str, Any] = {n: pl.Float64 if n in numeric else pl.String for n in names}
    try:
        return pl.read_csv(path, schema=schema, separator=separator, glob=False)
    except pl.exceptions.PolarsError:
        # Some value is not a plain number: read text, so that the message can name it and its row.
        schema = dict.fromkeys(names, pl.String)
    try:
        return pl.read_csv(path, schema=schema, separator=separator, glob=False)
    except pl.exceptions.PolarsError as error:
        if "utf-8" in str(error):
            raise _not_utf8(path) from None
        if separator == "," and "more fields" in str(error):
            raise FuelsError(
                f"{path.name}: a row has more fields than there are column names: if decimals are"
                " written with a comma, write them with a point"
            ) from None
        raise FuelsError(f"{path.name}: not readable as CSV ({_first_line(error)})") from None


def read_parquet(path: Path, columns: Columns, timezone: str | None) -> Panel:
    """The panel of a Parquet file, with the metadata that `write_panel` stored."""
    try:
        said = pl.read_parquet_metadata(path).get(METADATA_KEY, "{}")
        table = pl.read_parquet(path, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise FuelsError(f"{path.name}: not readable as Parquet ({_first_line(error)})") from None
    layout = find_layout(table.columns, path.name, columns)
    panel = panel_from_table(table, layout, timezone=timezone, source=path.name)
    try:
        return _with_about(panel, json.loads(said), path.name)
    except (ValueError, TypeError, AttributeError):
        raise FuelsError(
            f"{path.name}: the metadata '{METADATA_KEY}' of the file was not written by `fuels data"
            " convert`: remove it, or convert the data again"
        ) from None


def _with_about(panel: Panel, about: Any, source: str) -> Panel:
    """The panel with its metadata; malformed metadata raise ValueError, TypeError or similar."""
    unit, synthetic = about.get("unit", panel.unit), about.get("synthetic", panel.synthetic)
    if not isinstance(unit, str) or not isinstance(synthetic, bool):
        raise TypeError
    places = about.get("coordinates", {})
    coordinates = panel.coordinates
    if places and all(client in places for client in panel.ids):
        pairs = np.array([places[client] for client in panel.ids], dtype=np.float64)
        coordinates = check_coordinates(pairs.reshape(len(panel.ids), 2), panel.ids, source)
    return replace(panel, unit=unit, synthetic=synthetic, coordinates=coordinates)


def _not_utf8(path: Path) -> FuelsError:
    return FuelsError(f"{path.name}: not readable as text: save it in UTF-8")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
