"""Where clients are: longitude and latitude in degrees, from columns of a table or from an array.

Coordinates are used where all clients have them. A place that is not written leaves a panel without
coordinates; one that cannot be on Earth is an error of the file, and is named.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from fuels.data.panel import Floats
from fuels.errors import FuelsError

LONGITUDE = ("lng", "lon", "longitude")
LATITUDE = ("lat", "latitude")
MISSING_WORDS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "none", "-")
_LIMITS = {"longitude": (-180.0, 360.0), "latitude": (-90.0, 90.0)}  # both usual longitudes


def degree_columns(names: Sequence[str]) -> tuple[str, str] | None:
    """The columns of longitude and latitude among `names`, if both are there."""
    lower = {name.lower(): name for name in names}
    lng, lat = (next((lower[n] for n in w if n in lower), None) for w in (LONGITUDE, LATITUDE))
    return None if lng is None or lat is None else (lng, lat)


def read_places(
    table: pl.DataFrame, pair: tuple[str, str], clients: pl.Series, place: str
) -> dict[str, tuple[float, float]]:
    """Longitude and latitude of the clients of a table's rows, the first that is written of each.

    Columns may be numbers or text; `clients` [row] are the ids.
    """
    rows = (
        table.select(pl.col(pair[0]).alias("longitude"), pl.col(pair[1]).alias("latitude"))
        .with_columns(client=clients)
        .unique(maintain_order=True)  # the same place stands in every row of a client
        .with_columns(pl.col(*_LIMITS).cast(pl.String).str.strip_chars().fill_null(""))
        .filter(~pl.any_horizontal(pl.col(*_LIMITS).is_in(MISSING_WORDS)))
    )
    degrees = rows.with_columns(pl.col(*_LIMITS).cast(pl.Float64, strict=False))
    for name, (low, high) in _LIMITS.items():
        wrong = ~degrees[name].is_between(low, high).fill_null(False)  # NaN is in no range
        if wrong.any():
            row = int(wrong.arg_max() or 0)
            raise _refused(place, rows["client"][row], name, rows[name][row])
    firsts = degrees.unique("client", keep="first", maintain_order=True)
    return {client: (lng, lat) for lng, lat, client in firsts.iter_rows()}


def places_of(known: dict[str, tuple[float, float]], ids: Sequence[str]) -> Floats | None:
    """Coordinates [client, 2] of the clients; None where one of them is unknown."""
    if not all(client in known for client in ids):
        return None
    return np.array([known[client] for client in ids], dtype=np.float64).reshape(-1, 2)


def check_places(degrees: Floats, ids: Sequence[str], place: str) -> Floats | None:
    """An array [client, 2] of longitude and latitude; None where one is NaN, that is unknown."""
    for column, (name, (low, high)) in enumerate(_LIMITS.items()):
        values = degrees[:, column]
        wrong = ~np.isnan(values) & ~((low <= values) & (values <= high))
        if wrong.any():
            row = int(wrong.argmax())
            raise _refused(place, ids[row], name, f"{values[row]:g}")
    return None if np.isnan(degrees).any() else degrees


def _refused(place: str, client: str, name: str, value: str) -> FuelsError:
    low, high = _LIMITS[name]
    return FuelsError(
        f"{place}: client {client} has the {name} '{value}', which is no number of degrees between"
        f" {low:g} and {high:g}"
    )
