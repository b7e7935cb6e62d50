"""Writing a panel to CSV, Parquet or npz so that `read_panel` restores the same panel.

Parquet keeps unit and coordinates in the file's metadata under the key `fuels`, and the zone in the
type of the time column. A CSV stores them in extra columns (fuels_timezone, fuels_unit,
fuels_synthetic, lng, lat), which the reader knows. A file appears under its name only when it is
complete. It is written in batches, so that memory stays small if the values are in a mapped file.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from fuels.data.arrays import npz_arrays
from fuels.data.files import check_target, writing
from fuels.data.header import ABOUT, Header
from fuels.data.inputs import EVERYONE, values_at
from fuels.data.panel import Panel
from fuels.data.spool import release_memory, rows_of
from fuels.errors import FuelsError

METADATA_KEY = "fuels"
FORMATS = (".parquet", ".csv", ".npz")
_BATCH_ROWS = 1 << 19  # rows per batch of a long table
_BATCH_VALUES = 1 << 23  # values per batch of a wide table or a matrix
# Parquet keeps about 4 KB per column and batch in memory until the file is complete.
_MOST_CHUNKS = 1 << 16


def write_panel(
    panel: Panel, path: str | Path, *, layout: str = "long", overwrite: bool = False
) -> tuple[str, ...]:
    """Write a panel in the format of the suffix; returns notes on what it could not store."""
    target = Path(path)
    check_format(target, layout, overwrite)
    if target.suffix != ".npz" and panel.length < 2:
        raise FuelsError(
            f"{target}: a table of {panel.length} time steps does not define the step: write .npz"
        )
    if target.suffix != ".npz" and layout == "wide":
        _check_column_names(panel)
    if target.suffix == ".parquet" and layout == "wide":
        _check_width(panel, target)
    with writing(target) as partial:
        _write(panel, partial, target.suffix, layout)
    if panel.coordinates is not None and layout == "wide" and target.suffix == ".csv":
        return ("a wide CSV cannot store coordinates: they were dropped",)
    return ()


def write_inputs(panel: Panel, path: Path) -> None:
    """Write the external inputs of a panel as a Parquet table, long unless all are for everyone."""
    sources = panel.inputs.values()
    start = min(source.start for source in sources)
    length = max(int((source.times[-1] - start) // panel.step) + 1 for source in sources)
    alike = all(source.ids == EVERYONE for source in sources)
    ids = EVERYONE if alike else panel.ids
    empty = replace(panel, values=np.empty((length, len(ids))), ids=ids, start=start)
    empty = replace(empty, coordinates=None, inputs={})
    table = pl.concat(_batches(empty, "long")).drop("value")
    for name, source in panel.inputs.items():
        column = pl.Series(values_at(source, ids, start, length).ravel()).fill_nan(None)
        table = table.with_columns(column.alias(name))
    with writing(path) as partial:
        (table.drop("client") if alike else table).write_parquet(partial)


def check_format(target: Path, layout: str, overwrite: bool) -> None:
    """Refuse, before any work is done, what cannot or should not be written."""
    if layout not in ("long", "wide"):
        raise FuelsError(f"--layout '{layout}' is not known: choose long or wide")
    check_target(target, FORMATS, overwrite)


def _write(panel: Panel, path: Path, suffix: str, layout: str) -> None:
    if suffix == ".npz":
        _write_npz(panel, path)
    elif suffix == ".csv":
        form = "%Y-%m-%dT%H:%M:%S" + ("%:z" if panel.timezone else "")
        with path.open("wb") as stream:
            for number, batch in enumerate(_batches(panel, layout)):
                table = _with_about(batch, panel, layout)
                table.write_csv(stream, datetime_format=form, include_header=number == 0)
    else:
        about: dict[str, Any] = {"unit": panel.unit, "synthetic": panel.synthetic}
        if panel.coordinates is not None:
            about["coordinates"] = dict(zip(panel.ids, panel.coordinates.tolist(), strict=True))

        def source(*_: Any) -> Iterator[pl.DataFrame]:
            return _batches(panel, layout)

        first = next(_batches(panel, layout))
        register_io_source(source, schema=first.schema).sink_parquet(
            path, metadata={METADATA_KEY: json.dumps(about)}, row_group_size=len(first)
        )


def _write_npz(panel: Panel, path: Path) -> None:
    """Like numpy.savez_compressed, but a few rows of the values at a time."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in npz_arrays(panel).items():
            with archive.open(f"{name}.npy", "w") as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)
        about = {"descr": "<f8", "fortran_order": False, "shape": panel.values.shape}
        with archive.open("values.npy", "w", force_zip64=True) as stream:
            np.lib.format.write_array_header_1_0(stream, about)
            for rows in _row_slices(panel):
                stream.write(rows_of(panel.values, rows).astype("<f8").data)


def _row_slices(panel: Panel) -> Iterator[slice]:
    rows = max(1, _BATCH_VALUES // max(1, len(panel.ids)))
    return (slice(first, first + rows) for first in range(0, panel.length, rows))


def _batches(panel: Panel, layout: str) -> Iterator[pl.DataFrame]:
    """The panel as tables of bounded size; missing values are null, times are in its zone."""
    time = pl.Series("time", panel.times.astype("datetime64[ms]"))
    if panel.timezone is not None:
        time = time.dt.replace_time_zone("UTC").dt.convert_time_zone(panel.timezone)
    if layout == "wide":
        for rows in _row_slices(panel):
            table = pl.DataFrame(rows_of(panel.values, rows), schema=list(panel.ids))
            yield table.fill_nan(None).insert_column(0, time[rows])
        return
    clients = max(1, _BATCH_ROWS // max(1, panel.length))
    for first in range(0, len(panel.ids), clients):
        ids = panel.ids[first : first + clients]
        values = panel.values[:, first : first + clients].T.flatten()  # always a copy
        release_memory(panel.values)
        index = pl.Series(np.repeat(np.arange(len(ids), dtype=np.uint32), panel.length))
        yield pl.DataFrame(
            {
                "client": pl.Series(ids, dtype=pl.String).gather(index),
                "time": pl.concat([time] * len(ids), rechunk=True),
                "value": pl.Series(values).fill_nan(None),
            }
        )


def _with_about(table: pl.DataFrame, panel: Panel, layout: str) -> pl.DataFrame:
    said = {"timezone": panel.timezone, "unit": panel.unit if panel.unit != "value" else None}
    said["synthetic"] = "true" if panel.synthetic else None
    table = table.with_columns(pl.lit(v).alias(ABOUT[k]) for k, v in said.items() if v is not None)
    if panel.coordinates is None or layout == "wide":
        return table
    place = dict(zip(panel.ids, panel.coordinates.tolist(), strict=True))
    pairs = [place[client] for client in table["client"]]
    return table.with_columns(
        lng=pl.Series([lng for lng, _ in pairs]), lat=pl.Series([lat for _, lat in pairs])
    )


def _check_width(panel: Panel, target: Path) -> None:
    batches = -(-panel.values.size // _BATCH_VALUES)
    if batches > 1 and batches * len(panel.ids) > _MOST_CHUNKS:
        raise FuelsError(
            f"{target}: a Parquet table of {panel.length} rows and {len(panel.ids)} columns cannot"
            " be written in bounded memory: omit --layout wide, or write .npz or .csv"
        )


def _check_column_names(panel: Panel) -> None:
    """Reject a wide table with a client called, say, `id` or `date`: it could not be read back."""
    try:
        clear = Header(["time", *panel.ids], panel.name).layout().clients == panel.ids
    except FuelsError:
        clear = False
    if not clear:
        raise FuelsError(
            f"{panel.name}: a client has the name of a column with another meaning:"
            " use --layout long"
        )
