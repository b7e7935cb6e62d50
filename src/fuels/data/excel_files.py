"""Excel and OpenDocument spreadsheets: the first sheet with a table, as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from fuels.data.files import first_line
from fuels.data.header import header_names, refuse_doubled
from fuels.errors import FuelsError
from fuels.version import optional


def read_excel(path: Path) -> tuple[pl.DataFrame, list[str]]:
    """The first sheet that is not empty, all columns as text, and notes on the other sheets.

    Its first row that is not empty holds the column names. Dates and times become ISO text. Reads
    .xlsx, .xls, .xlsb and .ods; needs the extra `excel`.
    """
    fastexcel = optional("fastexcel", "fastexcel", "excel", path.name)
    try:
        reader = fastexcel.read_excel(path)
        sheets = {name: _cells(reader, name) for name in reader.sheet_names}
    except fastexcel.FastExcelError as error:
        reason = first_line(error)
        raise FuelsError(f"{path.name}: not readable as a spreadsheet ({reason})") from None
    filled = {name: cells for name, cells in sheets.items() if cells.height > 1}
    if not filled:
        raise FuelsError(f"{path.name}: no sheet has column names and rows")
    (name, cells), *others = filled.items()
    notes = []
    if others:
        unread = ", ".join(f"'{other}'" for other, _ in others)
        notes.append(f"{path.name}: only the sheet '{name}' was read, not {unread}")
    return _with_names(cells, path.name), notes


def _cells(reader: Any, sheet: str) -> pl.DataFrame:
    """All cells of a sheet as text, without empty rows."""
    cells: pl.DataFrame = reader.load_sheet(sheet, header_row=None, dtypes="string").to_polars()
    if cells.width == 0:
        return cells
    return cells.filter(~pl.all_horizontal(pl.all().is_null()))


def _with_names(cells: pl.DataFrame, source: str) -> pl.DataFrame:
    """The rows below the column names; columns without a name and content are left out."""
    names, rows = header_names(cells.row(0)), cells.slice(1)
    refuse_doubled(names, source)
    return rows.rename(dict(zip(rows.columns, names, strict=True)))
