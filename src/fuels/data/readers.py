"""One door for every format: `read_panel` looks at the path and returns a sorted Panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from fuels.data.arrays import read_hdf5, read_npz
from fuels.data.clock import Moment, Step
from fuels.data.panel import How, Panel
from fuels.data.tablefiles import read_csv, read_parquet
from fuels.data.tables import coordinates_of, find_coordinate_columns, id_texts
from fuels.errors import FuelsError


def read_panel(
    path: str | Path,
    *,
    client: str | None = None,
    time: str | None = None,
    value: str | None = None,
    ids: Sequence[str] | None = None,
    resample: Step | None = None,
    how: How | None = None,
    start: Moment | None = None,
    end: Moment | None = None,
    timezone: str | None = None,
    missing: str | float | None = None,
    activity: str | None = None,
    coordinates: str | Path | None = None,
) -> Panel:
    """Read a panel and bring it into the wanted form: clients, missing values, span, step.

    `client`, `time`, `value` name the columns of a table; `missing` is the number that stands for
    a missing value ("none" for no such number); `activity` (net, sms or call) chooses from raw
    Telecom Italia records. Clients come back sorted by id.
    """
    file = Path(path)
    if not file.exists():
        raise FuelsError(f"{file}: no such file or folder")
    panel = _read(file, client, time, value, timezone)
    panel = replace(panel, name=Path(file.name.removesuffix(".gz")).stem).sorted()
    if ids is not None:
        panel = panel.select(ids).sorted()
    panel = mark_missing(panel, missing)
    if start is not None or end is not None:
        panel = panel.between(start, end)
    if resample is not None:
        if how is None:
            raise FuelsError("--resample needs --how sum (for counts) or --how mean (for levels)")
        panel = panel.resample(resample, how)
    elif how is not None:
        raise FuelsError("--how says how to resample: give --resample too, such as --resample 1h")
    return panel if coordinates is None else with_coordinates(panel, Path(coordinates))


def _read(
    file: Path, client: str | None, time: str | None, value: str | None, timezone: str | None
) -> Panel:
    if file.stat().st_size == 0:
        raise FuelsError(f"{file.name}: the file is empty")
    kind = file.name.lower().removesuffix(".gz").rsplit(".", 1)[-1]
    if kind == "npz":
        return read_npz(file, timezone)
    if kind == "csv":
        return read_csv(file, client=client, time=time, value=value, timezone=timezone)
    if kind in ("parquet", "pq"):
        return read_parquet(file, client=client, time=time, value=value, timezone=timezone)
    if kind in ("h5", "hdf5", "hdf"):
        return read_hdf5(file, timezone)
    raise FuelsError(
        f"{file.name}: unknown format; known are .csv, .parquet, .npz, .h5 (METR-LA's layout) and"
        " raw Telecom Italia records (.txt, .tsv or a folder of them)"
    )


def mark_missing(panel: Panel, missing: str | float | None) -> Panel:
    """The panel with every value equal to `missing` marked as missing."""
    if missing is None or str(missing).lower() == "none":
        return panel
    try:
        number = float(missing)
    except ValueError:
        raise FuelsError(f"--missing '{missing}' is no number (or none)") from None
    hit = panel.values == number
    note = f"{hit.sum()} values equal to {number:g} were marked as missing"
    return replace(panel, values=np.where(hit, np.nan, panel.values), notes=(*panel.notes, note))


def with_coordinates(panel: Panel, path: Path) -> Panel:
    """The panel with longitude and latitude from a CSV of client (or cell_id), lng, lat."""
    try:
        table = pl.read_csv(path, infer_schema=False, glob=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error).splitlines()[0]
        raise FuelsError(f"{path}: not readable as a CSV of coordinates ({reason})") from None
    client, lng, lat = find_coordinate_columns(table.columns, path.name)
    places = table.select(
        id_texts(table[client], path.name).alias("client"),
        pl.col(lng).cast(pl.Float64, strict=False).alias("lng"),
        pl.col(lat).cast(pl.Float64, strict=False).alias("lat"),
    ).unique("client", keep="first")
    found = coordinates_of(places, panel.ids)
    if found is None:
        known = set(places.drop_nulls()["client"])
        lost = next(c for c in panel.ids if c not in known)
        raise FuelsError(f"{path.name}: no coordinates for client {lost}")
    return replace(panel, coordinates=found)
