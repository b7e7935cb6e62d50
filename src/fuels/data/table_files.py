"""From files with tables to a panel: CSV, Parquet and Excel, one file or several that continue."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fuels.data.coordinates import check_coordinates, coordinate_columns
from fuels.data.excel_files import read_excel
from fuels.data.files import table_errors
from fuels.data.header import ABOUT, Header, Layout, listed, renamed_like
from fuels.data.numbers import may_be_grouped
from fuels.data.panel import Panel
from fuels.data.sources import EXCEL, PARQUET, TEXT, place_of, suffix_of
from fuels.data.table_options import TableOptions
from fuels.data.tables import HEAD, panel_from_table
from fuels.data.text_files import TextFile, csv_error, open_text
from fuels.data.writers import METADATA_KEY
from fuels.errors import FuelsError


@dataclass(frozen=True)
class _Table:
    """A table as found, or a CSV file whose header is known, and the roles of its columns."""

    name: str
    layout: Layout
    content: pl.DataFrame | TextFile
    notes: tuple[str, ...] = ()
    about: str = "{}"  # metadata of a Parquet file


def read_tables(files: Sequence[Path], given: TableOptions) -> Panel:
    """The panel of one file, or of several whose rows belong together."""
    tables = [_open(file, given) for file in files]
    frames = _frames(tables, plain=given.decimal is None and given.thousands is None)
    layout = _joint_layout(tables)
    place = place_of([table.name for table in tables], [frame.height for frame in frames])
    renamed = [
        frame.rename(dict(renamed_like(table.layout, layout)))
        for table, frame in zip(tables, frames, strict=True)
    ]
    with table_errors(place, "the columns of the files do not match"):
        frame = renamed[0] if len(renamed) == 1 else pl.concat(renamed, how="diagonal_relaxed")
    del frames, renamed
    european = any(isinstance(t.content, TextFile) and t.content.separator == ";" for t in tables)
    panel = panel_from_table(frame, layout, place, given, european=european)
    if len(tables) > 1:
        panel = replace(panel, notes=(f"{len(tables)} files were read as one table", *panel.notes))
    notes = (*panel.notes, *(note for table in tables for note in table.notes))
    panel = replace(panel, notes=notes)
    return _with_about(panel, tables[0]) if len(tables) == 1 else panel


def _open(path: Path, given: TableOptions) -> _Table:
    """A file's column names and their roles; large files are not read yet."""
    suffix = suffix_of(path)
    if path.stat().st_size == 0:
        raise FuelsError(f"{path.name}: the file is empty")
    if suffix in TEXT:
        file = open_text(path, given)
        try:
            head = file.read(file.names, rows=HEAD)
        except pl.exceptions.PolarsError as error:
            raise csv_error(file, error) from None
        return _Table(path.name, Header(file.names, path.name, given, head).layout(), file)
    if suffix in PARQUET:
        with table_errors(path.name, "not readable as Parquet"):
            about = pl.read_parquet_metadata(path).get(METADATA_KEY, "{}")
            frame = pl.read_parquet(path, glob=False)
        header = Header(frame.columns, path.name, given, frame.head(HEAD))
        return _Table(path.name, header.layout(), frame, about=about)
    if suffix in EXCEL:
        frame, notes = read_excel(path)
        header = Header(frame.columns, path.name, given, frame.head(HEAD))
        header.check()
        return _Table(path.name, header.layout(), frame, tuple(notes))
    raise FuelsError(
        f"{path.name}: unknown format; known are .csv, .parquet, .xlsx, .npz, .h5 (METR-LA's"
        " layout) and raw Telecom Italia records (.txt, .tsv or a folder of them)"
    )


def column_names(path: Path) -> Sequence[str]:
    """The column names of a table; none of a file that is not one."""
    suffix = suffix_of(path)
    if suffix in TEXT:
        return open_text(path, TableOptions()).names
    if suffix in PARQUET:
        with table_errors(path.name, "not readable as Parquet"):
            return list(pl.read_parquet_schema(path))
    return read_excel(path)[0].columns if suffix in EXCEL else ()


def _frames(tables: Sequence[_Table], *, plain: bool) -> list[pl.DataFrame]:
    """The columns that are used. Values are read as numbers if all are plain ones, else as text.

    Text is needed to name a value that is not a number, or to see how numbers are written.
    """
    if plain:
        try:
            return [_read(table, numeric=True) for table in tables]
        except (pl.exceptions.PolarsError, _GroupedError):
            pass
    return [_read(table, numeric=False) for table in tables]


class _GroupedError(Exception):
    """The points in a file may stand between thousands."""


def _read(table: _Table, *, numeric: bool) -> pl.DataFrame:
    layout, content = table.layout, table.content
    if isinstance(content, pl.DataFrame):
        return content
    places = coordinate_columns(content.names) or () if layout.client else ()
    wanted = {*layout.times, layout.client, *layout.numbers, *places, *ABOUT.values()}
    columns = [name for name in content.names if name in wanted]
    if numeric:
        frame = content.read(columns, layout.numbers)
        if content.separator == ";" and any(may_be_grouped(frame[n]) for n in layout.numbers):
            raise _GroupedError
        return frame
    try:
        return content.read(columns)
    except pl.exceptions.PolarsError as error:
        raise csv_error(content, error) from None


def _joint_layout(tables: Sequence[_Table]) -> Layout:
    """The layout of all files together: that of the first, with the clients of all."""
    first = tables[0]
    kinds = ["wide" if table.layout.client is None else "long" for table in tables]
    for table, kind in zip(tables, kinds, strict=True):
        same = (table.layout.hour is None) == (first.layout.hour is None)
        if kind != kinds[0] or not same:
            raise FuelsError(
                f"{table.name}: its columns {listed(_columns(table))} differ from those of"
                f" {first.name}, {listed(_columns(first))}: read them separately"
            )
    clients = dict.fromkeys(name for table in tables for name in table.layout.clients)
    unused = dict.fromkeys(name for table in tables for name in table.layout.unused)
    return replace(first.layout, clients=tuple(clients), unused=tuple(unused))


def _columns(table: _Table) -> Sequence[str]:
    content = table.content
    return content.columns if isinstance(content, pl.DataFrame) else content.names


def _with_about(panel: Panel, table: _Table) -> Panel:
    """The panel with the metadata of a Parquet file that `write_panel` wrote."""
    try:
        about = json.loads(table.about)
        unit, synthetic = about.get("unit", panel.unit), about.get("synthetic", panel.synthetic)
        if not isinstance(unit, str) or not isinstance(synthetic, bool):
            raise TypeError
        return replace(panel, unit=unit, synthetic=synthetic, coordinates=_places(panel, about))
    except (ValueError, TypeError, AttributeError):
        raise FuelsError(
            f"{table.name}: the metadata '{METADATA_KEY}' of the file was not written by"
            " `fuels data convert`: remove it, or convert the data again"
        ) from None


def _places(panel: Panel, about: Any) -> Any:
    places = about.get("coordinates", {})
    if not places or not all(client in places for client in panel.ids):
        return panel.coordinates
    pairs = np.array([places[client] for client in panel.ids], dtype=np.float64)
    return check_coordinates(pairs.reshape(len(panel.ids), 2), panel.ids, panel.name)
