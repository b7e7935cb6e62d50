"""Client ids as text."""

from __future__ import annotations

import polars as pl

from fuels.data.sources import Place
from fuels.data.time_texts import NO_DATA
from fuels.errors import FuelsError


def id_texts(column: pl.Series, place: Place) -> pl.Series:
    """Client ids as text: 4050, 4050.0 and "4050" are the same client."""
    if column.dtype.is_float():
        column = column.fill_nan(None)
        whole = column.cast(pl.Int64, strict=False)
        column = whole if (whole == column).all() else column
    wrong = FuelsError(
        f"{place}: column '{column.name}' holds {column.dtype} values, not client ids"
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
        raise FuelsError(f"{place.row(row)} names no client in column '{column.name}': {NO_DATA}")
    return text
