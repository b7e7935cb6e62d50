"""Reading any format: `read_panel` chooses the reader by the path and returns a sorted Panel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from fuels.data.arrays import read_hdf5, read_npz
from fuels.data.clock import Moment, Step, parse_step, zone_info
from fuels.data.coordinates import coordinates_of, read_coordinates
from fuels.data.grid import check_magnitudes
from fuels.data.panel import Panel, find_ids
from fuels.data.spool import gather, gather_in_file
from fuels.data.table_files import read_csv, read_parquet
from fuels.data.tables import Columns, find_coordinate_columns, id_texts
from fuels.data.telecom import Sums, is_telecom, telecom_sums
from fuels.data.telecom_file import Progress
from fuels.errors import FuelsError

_HDF5 = (".h5", ".hdf5", ".hdf")
_BAND_VALUES = 1 << 21  # values of raw records processed at once


@dataclass(frozen=True)
class PanelOptions:
    """What to do with a panel after reading: select clients and times, mark missing values, ..."""

    ids: Sequence[str] | None = None
    missing: str | float | None = None
    start: Moment | None = None
    end: Moment | None = None
    resample: Step | None = None
    how: str | None = None
    coordinates: str | Path | None = None

    def check(self) -> None:
        """Reject invalid options before reading, which may take long."""
        if self.how is not None and self.how not in ("sum", "mean"):
            raise FuelsError(f"--how '{self.how}' is not known: choose sum or mean")
        if self.how is not None and self.resample is None:
            raise FuelsError("--how needs --resample as well, such as --resample 1h")
        if self.resample is not None:
            parse_step(self.resample)
        _number(self.missing)

    def apply(self, panel: Panel) -> Panel:
        """The panel with all options applied."""
        panel = panel.sorted() if self.ids is None else panel.select(self.ids).sorted()
        return self.finish(*self.transform(panel))

    def transform(self, panel: Panel) -> tuple[Panel, int]:
        """Apply what concerns each client separately; also counts the values marked as missing."""
        if self.start is not None or self.end is not None:
            panel = panel.between(self.start, self.end)
        panel, marked = mark_missing(panel, self.missing)
        check_magnitudes(panel)
        if self.resample is not None:
            if self.how is None:
                raise FuelsError("--resample needs --how sum (counts) or --how mean (levels)")
            panel = panel.resample(self.resample, self.how)
        return panel, marked

    def finish(self, panel: Panel, marked: int) -> Panel:
        """Apply what concerns the whole panel: coordinates, and a note on missing values."""
        if _number(self.missing) is not None:
            note = f"{marked} values equal to {_number(self.missing):g} were marked as missing"
            panel = replace(panel, notes=(*panel.notes, note))
        return panel if self.coordinates is None else with_coordinates(panel, self.coordinates)


def read_panel(
    path: str | Path,
    *,
    client: str | None = None,
    time: str | None = None,
    value: str | None = None,
    ids: Sequence[str] | None = None,
    resample: Step | None = None,
    how: str | None = None,
    start: Moment | None = None,
    end: Moment | None = None,
    timezone: str | None = None,
    missing: str | float | None = None,
    activity: str | None = None,
    coordinates: str | Path | None = None,
    progress: Progress | None = None,
) -> Panel:
    """Read a panel, select and resample it; clients are sorted by id.

    `client`, `time` and `value` name the columns of a table; `missing` is the number that marks
    missing values ("none": no number does); `activity` (net, sms or call) chooses from raw Telecom
    Italia records, and `progress` is called with the number of bytes read from them.
    """
    file = Path(path)
    options = PanelOptions(ids, missing, start, end, resample, how, coordinates)
    options.check()
    if timezone is not None:
        zone_info(timezone, "--timezone")
    if is_raw(file):
        activities = (activity or "net",)
        return next(p for _, p in read_activities(file, activities, timezone, options, progress))
    if activity is not None:
        raise FuelsError(f"{file.name}: --activity is for raw Telecom Italia records only")
    with _os_errors_name(file):
        panel = _read(file, Columns(client, time, value), timezone)
    if missing is None and file.suffix.lower() in _HDF5:
        options = replace(options, missing="0")  # METR-LA's convention; the notes say so
    return replace(options.apply(panel), name=Path(file.name.removesuffix(".gz")).stem)


def is_raw(file: Path) -> bool:
    """Whether the path holds raw records; a path that does not exist is an error."""
    if not file.exists():
        raise FuelsError(f"{file}: no such file or folder")
    with _os_errors_name(file):
        return file.is_dir() or is_telecom(file)


def read_activities(
    path: Path,
    activities: Sequence[str],
    timezone: str | None,
    options: PanelOptions,
    progress: Progress | None = None,
    spool_folder: Path | None = None,
) -> Iterator[tuple[str, Panel]]:
    """Panels of several activities from one pass over raw records, with the options applied.

    With `spool_folder`, values are stored in a temporary file there and processed a few clients at
    a time: memory does not grow with the number of records, files, cells or days.
    """
    if options.how == "mean":  # sums first, at the step of the records
        step: Step = "10min"
    else:  # summed to the final step while reading, which needs less space
        step, options = options.resample or "1h", replace(options, resample=None, how=None)
    with (
        _os_errors_name(path),
        telecom_sums(path, activities, step, timezone, progress, spool_folder) as sums,
    ):
        for activity in activities:
            yield activity, _in_bands(sums, activity, options, spool_folder)


def _in_bands(sums: Sums, activity: str, options: PanelOptions, spool_folder: Path | None) -> Panel:
    cells = sums.cells
    if options.ids is not None:
        chosen = find_ids([str(cell) for cell in cells], options.ids, sums.root.stem)
        cells = cells[sorted(chosen)]
    marked = 0

    def bands() -> Iterator[Panel]:
        nonlocal marked
        width = max(1, _BAND_VALUES // sums.bins)
        for first in range(0, len(cells), width):
            band, more = options.transform(sums.panel(activity, cells[first : first + width]))
            marked += more
            yield band

    ids = [str(cell) for cell in cells]
    panel = (
        gather(bands(), ids) if spool_folder is None else gather_in_file(bands(), ids, spool_folder)
    )
    return options.finish(panel, marked)


@contextmanager
def _os_errors_name(file: Path) -> Iterator[None]:
    """Turn an operating-system error into a FuelsError that names the file."""
    try:
        yield
    except OSError as error:
        raise FuelsError(f"{file}: could not be read ({error.strerror or error})") from None


def _read(file: Path, columns: Columns, timezone: str | None) -> Panel:
    if file.stat().st_size == 0:
        raise FuelsError(f"{file.name}: the file is empty")
    suffix = Path(file.name.lower().removesuffix(".gz")).suffix
    if suffix == ".npz":
        return read_npz(file, timezone)
    if suffix in (".csv", ".tsv"):
        return read_csv(file, columns, timezone)
    if suffix in (".parquet", ".pq"):
        return read_parquet(file, columns, timezone)
    if suffix in _HDF5:
        return read_hdf5(file, timezone)
    raise FuelsError(
        f"{file.name}: unknown format; known are .csv, .parquet, .npz, .h5 (METR-LA's layout) and"
        " raw Telecom Italia records (.txt, .tsv or a folder of them)"
    )


def mark_missing(panel: Panel, missing: str | float | None) -> tuple[Panel, int]:
    """The panel with every value equal to `missing` marked as missing, and how many there are."""
    number = _number(missing)
    if number is None:
        return panel, 0
    hit = panel.values == number
    return replace(panel, values=np.where(hit, np.nan, panel.values)), int(hit.sum())


def _number(missing: str | float | None) -> float | None:
    if missing is None or str(missing).lower() == "none":
        return None
    try:
        return float(missing)
    except ValueError:
        raise FuelsError(f"--missing '{missing}' is not a number (or none)") from None


def with_coordinates(panel: Panel, source: str | Path) -> Panel:
    """The panel with longitude and latitude from a CSV of client (or cell_id), lng, lat."""
    path = Path(source)
    if path.is_dir():
        raise FuelsError(f"{path}: is a folder, but --coordinates needs a CSV file")
    try:
        table = pl.read_csv(path, infer_schema=False, glob=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error).splitlines()[0]
        raise FuelsError(f"{path}: not readable as a CSV of coordinates ({reason})") from None
    client, *pair = find_coordinate_columns(table.columns, path.name)
    clients = id_texts(table[client], path.name)
    known = read_coordinates(table, (pair[0], pair[1]), clients, path.name)
    found = coordinates_of(known, panel.ids)
    if found is None:
        lost = next(client for client in panel.ids if client not in known)
        raise FuelsError(f"{path.name}: no coordinates for client {lost}")
    return replace(panel, coordinates=found)
