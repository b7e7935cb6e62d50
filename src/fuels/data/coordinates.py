"""Longitude and latitude of clients in degrees, from the columns of a table or from an array.

Coordinates are used only if all clients have them: if one is missing, the panel has none. A value
that is out of range is an error that names the client.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from fuels.arrays import Floats
from fuels.data.numbers import MISSING_WORDS
from fuels.errors import FuelsError

LONGITUDE = ("lng", "lon", "longitude")
LATITUDE = ("lat", "latitude")
_LIMITS = {"longitude": (-180.0, 360.0), "latitude": (-90.0, 90.0)}  # 0 to 360 is common too


def coordinate_columns(names: Sequence[str]) -> tuple[str, str] | None:
    """The longitude and latitude columns among `names`, if both exist."""
    lower = {name.lower(): name for name in names}
    lng, lat = (next((lower[n] for n in w if n in lower), None) for w in (LONGITUDE, LATITUDE))
    return None if lng is None or lat is None else (lng, lat)


def read_coordinates(
    table: pl.DataFrame, pair: tuple[str, str], clients: pl.Series, source: str
) -> dict[str, tuple[float, float]]:
    """Longitude and latitude by client: the first values found for each.

    Columns may be numbers or text; `clients` [row] are the ids of the rows.
    """
    rows = (
        table.select(pl.col(pair[0]).alias("longitude"), pl.col(pair[1]).alias("latitude"))
        .with_columns(client=clients)
        .unique(maintain_order=True)  # mostly the same in every row of a client
        .with_columns(pl.col(*_LIMITS).cast(pl.String).str.strip_chars().fill_null(""))
        .filter(~pl.any_horizontal(pl.col(*_LIMITS).str.to_lowercase().is_in(MISSING_WORDS)))
    )
    degrees = rows.with_columns(pl.col(*_LIMITS).cast(pl.Float64, strict=False))
    for name, (low, high) in _LIMITS.items():
        wrong = ~degrees[name].is_between(low, high).fill_null(False)  # NaN is out of range too
        if wrong.any():
            row = int(wrong.arg_max() or 0)
            raise _out_of_range(source, rows["client"][row], name, rows[name][row])
    firsts = degrees.unique("client", keep="first", maintain_order=True)
    return {client: (lng, lat) for lng, lat, client in firsts.iter_rows()}


def coordinates_of(known: dict[str, tuple[float, float]], ids: Sequence[str]) -> Floats | None:
    """Coordinates [client, 2] of the clients; None if one of them is unknown."""
    if not all(client in known for client in ids):
        return None
    return np.array([known[client] for client in ids], dtype=np.float64).reshape(-1, 2)


def check_coordinates(degrees: Floats, ids: Sequence[str], source: str) -> Floats | None:
    """Check an array [client, 2] of longitude and latitude; None if one is unknown (NaN)."""
    for column, (name, (low, high)) in enumerate(_LIMITS.items()):
        values = degrees[:, column]
        wrong = ~np.isnan(values) & ~((low <= values) & (values <= high))
        if wrong.any():
            row = int(wrong.argmax())
            raise _out_of_range(source, ids[row], name, f"{values[row]:g}")
    return None if np.isnan(degrees).any() else degrees


def _out_of_range(source: str, client: str, name: str, value: str) -> FuelsError:
    low, high = _LIMITS[name]
    return FuelsError(
        f"{source}: client {client} has the {name} '{value}', which is not a number of degrees"
        f" between {low:g} and {high:g}"
    )
