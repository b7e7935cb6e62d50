"""Array files: npz as written by `fuels data convert`, and HDF5 in the layout of METR-LA."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fuels.arrays import Floats
from fuels.data.clock import SECOND, parse_moment, parse_step, zone_id, zone_info
from fuels.data.coordinates import check_coordinates
from fuels.data.grid import Rows, check_years
from fuels.data.ids import id_texts
from fuels.data.panel import Panel
from fuels.data.sources import Place
from fuels.data.times import TimeReader
from fuels.errors import FuelsError
from fuels.version import optional

_IDS = ("ids", "id", "client", "clients", "unique_id", "cell_id", "sensor_id", "station_id")


def read_npz(path: Path, timezone: str | None) -> Panel:
    """`values` [time, client], an array of ids, `t0` (ISO, local time) and `step_minutes`.

    Optional: `timezone`, `unit`, `synthetic` and `coordinates` [client, 2].
    """
    source = path.name
    if not zipfile.is_zipfile(path):
        raise FuelsError(f"{source}: not a readable npz file: not a zip archive of arrays")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, AttributeError) as error:
        raise FuelsError(f"{source}: not a readable npz file ({error})") from None
    absent = [key for key in ("values", "t0", "step_minutes") if key not in arrays]
    found = ", ".join(arrays) or "nothing"
    if absent:
        raise FuelsError(f"{source}: no array '{absent[0]}' (found: {found})")
    id_key = next((key for key in _IDS if key in arrays), None)
    if id_key is None:
        raise FuelsError(f"{source}: no array of client ids, such as 'ids' (found: {found})")
    values = _matrix(arrays["values"], source)
    ids = _ids(arrays[id_key], source)
    for key in ("t0", "step_minutes", "timezone", "unit", "synthetic"):
        _check_scalar(arrays, key, source)
    zone = timezone or (str(arrays["timezone"]) if "timezone" in arrays else None)
    if zone is not None:
        zone_info(zone, source)
        zone = zone_id(zone)
    try:
        moment, step = _start(str(arrays["t0"])), _step(60 * float(arrays["step_minutes"]))
    except (ValueError, TypeError, OverflowError, FuelsError):
        raise FuelsError(
            f"{source}: t0 must be an ISO time in whole seconds and step_minutes a positive"
            f" number of whole seconds, not {arrays['t0']} and {arrays['step_minutes']}"
        ) from None
    begin = int(moment.replace(tzinfo=UTC).timestamp())
    check_years(begin, begin + len(values) * int(step / SECOND), source)
    panel = Panel(
        values=values,
        ids=ids,
        start=parse_moment(moment, zone, upper=False, option=f"{source}: t0"),
        step=step,
        timezone=zone,
        coordinates=_matrix(arrays["coordinates"], source, "coordinates")
        if "coordinates" in arrays
        else None,
        name=source,
        unit=str(arrays.get("unit", "value")),
        synthetic=bool(arrays.get("synthetic", False)),
    )
    if panel.length == 0 or not panel.ids:
        raise FuelsError(f"{source}: values of shape {values.shape} contain no data")
    if panel.coordinates is None:
        return panel
    return replace(panel, coordinates=check_coordinates(panel.coordinates, ids, source))


# Required NumPy kind of some scalars, and its name in messages.
_KINDS = {"timezone": ("U", "text"), "unit": ("U", "text"), "synthetic": ("b", "true or false")}


def _check_scalar(arrays: Mapping[str, NDArray[Any]], key: str, source: str) -> None:
    """Reject an array that is not a scalar or has the wrong type."""
    if key not in arrays:
        return
    array = arrays[key]
    kind, word = _KINDS.get(key, (array.dtype.kind, "a single value"))
    if array.ndim or array.dtype.kind != kind:
        raise FuelsError(
            f"{source}: '{key}' must be {word}, not {array.dtype} of shape {array.shape}"
        )


def _start(text: str) -> datetime:
    if re.search(r"[.,]\d*[1-9]", text):
        raise ValueError("a fraction of a second")
    return datetime.fromisoformat(text)


def _step(seconds: float) -> np.timedelta64:
    if not math.isclose(seconds, round(seconds), rel_tol=1e-6):  # ten seconds are 0.1667 minutes
        raise ValueError("a fraction of a second")
    return parse_step(round(seconds))


def npz_arrays(panel: Panel) -> dict[str, NDArray[Any]]:
    """The arrays, besides `values`, from which `read_npz` restores the panel."""
    arrays: dict[str, NDArray[Any]] = {
        "ids": np.array(panel.ids),
        "step_minutes": np.array(panel.step_seconds / 60),
        "unit": np.array(panel.unit),
        "synthetic": np.array(panel.synthetic),
    }
    start = panel.start.astype("datetime64[s]").astype(datetime)
    if panel.timezone is None:
        arrays["t0"] = np.array(start.isoformat())
    else:
        local = start.replace(tzinfo=UTC).astimezone(zone_info(panel.timezone))
        arrays["t0"] = np.array(local.isoformat())
        arrays["timezone"] = np.array(panel.timezone)
    if panel.coordinates is not None:
        arrays["coordinates"] = panel.coordinates
    return arrays


def read_hdf5(path: Path, timezone: str | None) -> Panel:
    """METR-LA's layout: a pandas frame in fixed format, one row per time, one column per sensor."""
    source = path.name
    h5py = optional("h5py", "h5py", "hdf5", source)
    try:
        with h5py.File(path, "r") as file:
            groups = [g for g in file.values() if _is_frame(g, h5py.Dataset)]
            if len(groups) != 1:
                raise FuelsError(
                    f"{source}: {len(groups) or 'no'} frames in METR-LA's layout (a group with"
                    " axis0, axis1, block0_items and block0_values); exactly one is needed"
                )
            group = groups[0]
            items, stamps = group["block0_items"][()], np.atleast_1d(group["axis1"][()])
            values = _matrix(np.asarray(group["block0_values"][()]), source)
            zone = group["axis1"].attrs.get("tz")
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise FuelsError(f"{source}: not a readable HDF5 file ({error})") from None
    ids = _ids(np.asarray(items), source)
    if stamps.dtype.kind not in "iu" or values.shape != (len(stamps), len(ids)):
        raise FuelsError(
            f"{source}: axis1 of type {stamps.dtype} and {len(ids)} columns do not match values of"
            f" shape {values.shape}"
        )
    column = pl.Series("axis1", stamps.astype(np.int64)).cast(pl.Datetime("ns"))
    if zone is not None:
        named = zone.decode(errors="replace") if isinstance(zone, bytes) else str(zone)
        zone_info(named, source)
        column = column.dt.replace_time_zone("UTC").dt.convert_time_zone(named)
    times = TimeReader(Place(source), timezone).read(column)
    nobody = np.zeros(len(stamps), dtype=np.int64)
    return Rows(nobody, times, values, Place(source)).panel(ids)


def _is_frame(group: Any, dataset: type) -> bool:
    parts = ("axis0", "axis1", "block0_items", "block0_values")
    return hasattr(group, "keys") and all(isinstance(group.get(p), dataset) for p in parts)


def _matrix(values: NDArray[Any], source: str, name: str = "values") -> Floats:
    if values.ndim != 2 or values.dtype.kind not in "fiu":
        axes = "[time, client]" if name == "values" else "[client, 2]"
        raise FuelsError(
            f"{source}: {name} must be numbers {axes}, not {values.dtype} of shape {values.shape}"
        )
    return values.astype(np.float64)


def _ids(array: NDArray[Any], source: str) -> tuple[str, ...]:
    items = array.ravel().tolist()
    try:
        texts = [item.decode() if isinstance(item, bytes) else item for item in items]
        return tuple(id_texts(pl.Series("ids", texts, strict=False), Place(source)))
    except (UnicodeDecodeError, TypeError, OverflowError):
        raise FuelsError(
            f"{source}: client ids must be text in UTF-8 or whole numbers, not {items[0]!r} ..."
        ) from None
