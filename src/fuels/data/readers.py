"""Reading any format: `read_panel` chooses the reader by the path and returns a sorted Panel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import polars as pl

from fuels.config import Data
from fuels.data.arrays import read_hdf5, read_npz
from fuels.data.clock import Moment, Step, parse_step, zone_id
from fuels.data.coordinates import coordinates_of, read_coordinates
from fuels.data.files import os_errors, table_errors
from fuels.data.grid import check_magnitudes
from fuels.data.header import Header
from fuels.data.ids import id_texts
from fuels.data.panel import Panel, find_ids
from fuels.data.sources import (
    Place,
    Source,
    find_files,
    source_title,
    suffix_of,
    table_files,
)
from fuels.data.spool import gather, gather_in_file
from fuels.data.table_files import read_tables
from fuels.data.table_options import TableOptions, missing_numbers
from fuels.data.tables import MARKED, missing_note
from fuels.data.telecom import ZONE, Request, Sums, is_telecom, telecom_sums
from fuels.data.telecom_file import Progress
from fuels.errors import FuelsError, options_renamed, renamed

_HDF5 = (".h5", ".hdf5", ".hdf")
_BAND_VALUES = 1 << 21  # values of raw records processed at once
# Arguments of read_panel that have another name than the option.
_ARGUMENTS = {"client_column": "client", "time_column": "time", "value_column": "value"}
_ARGUMENTS |= {"from": "start", "to": "end"}


def argument(option: str, value: str | None) -> str:
    """An option as Python names it: `how`, or with a value `how='sum'`."""
    name = _ARGUMENTS.get(option, option)
    return name if value is None else f"{name}={value!r}"


@dataclass(frozen=True)
class PanelOptions(TableOptions):
    """What to do with a panel after reading, too: select clients and times, name its unit, ..."""

    ids: Sequence[str] | None = None
    start: Moment | None = None
    end: Moment | None = None
    coordinates: str | Path | None = None
    unit: str | None = None

    @classmethod
    def of(cls, data: Data) -> PanelOptions:
        """How the settings say that data are read."""
        alike = {field.name for field in fields(cls)} & vars(data).keys() - {"inputs"}
        return cls(
            client=data.client_column or None,
            time=data.time_column or None,
            value=data.value_column or None,
            inputs=data.inputs,
            **{name: getattr(data, name) or None for name in alike},
        )

    def check(self) -> None:
        """Reject invalid options before reading, which may take long."""
        if self.how is not None and self.how not in ("sum", "mean"):
            raise FuelsError(f"--how '{self.how}' is not known: choose sum or mean")
        if self.how is not None and self.resample is None:
            raise FuelsError("--how needs --resample as well, such as --resample=1h")
        if self.resample is not None:
            parse_step(self.resample)
        super().check()

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
                raise FuelsError(
                    "--resample needs --how as well: --how=sum (counts) or --how=mean (levels)"
                )
            panel = panel.resample(self.resample, self.how)
        return panel, marked

    def finish(self, panel: Panel, marked: int) -> Panel:
        """Apply what concerns the whole panel: coordinates, unit, and a note on missing values."""
        marks = missing_numbers(self.missing)
        if marks and (marked or not any(note.endswith(MARKED) for note in panel.notes)):
            panel = replace(panel, notes=(*panel.notes, missing_note(marked, marks)))
        if self.unit is not None:
            panel = replace(panel, unit=self.unit)
        return panel if self.coordinates is None else with_coordinates(panel, self.coordinates)


@options_renamed(argument)
def read_panel(
    path: Source,
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
    time_format: str | None = None,
    decimal: str | None = None,
    thousands: str | None = None,
    duplicates: str | None = None,
    round_times: Step | None = None,
    unit: str | None = None,
    progress: Progress | None = None,
) -> Panel:
    """Read a panel, select and resample it; clients are sorted by id.

    `path` is a file, several (a list, or a text with commas), a pattern such as daily/*.csv, or a
    folder. `client`, `time` and `value` name the columns of a table (`time="date,hour"`: two
    columns); `time_format`, `decimal` and `thousands` say how times and numbers are written;
    `duplicates` (error, same, first, last, sum or mean) what to do with several rows of a client at
    a time, and `round_times` to which step times are rounded. `missing` is the number that marks
    missing values ("none": no number does); `activity` (net, sms or call) chooses from raw Telecom
    Italia records, and `progress` is called with the number of bytes read from them. `unit` names
    the unit of the values.
    """
    options = PanelOptions(
        *(client, time, value, timezone, time_format, decimal, thousands, duplicates, round_times),
        *(missing, resample, how),
        ids=ids,
        start=start,
        end=end,
        coordinates=coordinates,
        unit=unit,
    )
    panel = read_source(path, options, activity, progress)
    return replace(panel, notes=tuple(renamed(note, argument) for note in panel.notes))


def read_source(
    path: Source,
    options: PanelOptions,
    activity: str | None = None,
    progress: Progress | None = None,
) -> Panel:
    """`read_panel` with its options as one; messages name the options of the command line."""
    options.check()
    zone = None if options.timezone is None else zone_id(options.timezone)
    options = replace(options, timezone=zone)
    files = find_files(path)
    if len(files) == 1 and is_raw(files[0]):
        activities = (activity or "net",)
        return next(p for _, p in read_activities(files[0], activities, options, progress))
    with os_errors(path, "cannot be read"):
        files = table_files(files)
        title = source_title(path)
        if activity is not None:
            raise FuelsError(f"{files[0].name}: --activity is for raw Telecom Italia records only")
        suffix = suffix_of(files[0])
        if len(files) == 1 and suffix in (".npz", *_HDF5):
            _refuse_table_options(files[0], options)
            panel = (read_npz if suffix == ".npz" else read_hdf5)(files[0], zone)
        else:
            _refuse_mixture(files)
            panel = read_tables(files, options)
    if options.missing is None and suffix in _HDF5:
        options = replace(options, missing="0")  # METR-LA's convention; the notes say so
    return replace(options.apply(panel), name=title)


def _refuse_table_options(file: Path, table: TableOptions) -> None:
    """Options that would do nothing to an array."""
    if file.stat().st_size == 0:
        raise FuelsError(f"{file.name}: the file is empty")
    for name in ("time_format", "decimal", "thousands", "duplicates", "round_times"):
        if getattr(table, name) is not None:
            raise FuelsError(
                f"{file.name}: --{name.replace('_', '-')} is for tables (CSV, Parquet, Excel) only"
            )


def _refuse_mixture(files: Sequence[Path]) -> None:
    """Several files are read only if they are tables."""
    for file in files:
        if len(files) > 1 and (suffix_of(file) in (".npz", *_HDF5) or is_raw(file)):
            raise FuelsError(
                f"{file.name}: only tables (CSV, Parquet, Excel) can be read several at once; raw"
                " records are read from their folder"
            )


def is_raw(file: Path) -> bool:
    """Whether the path holds raw records; a path that does not exist is an error."""
    if not file.exists():
        raise FuelsError(f"{file}: no such file or folder")
    with os_errors(file, "cannot be read"):
        return is_telecom(file)


def read_activities(
    path: Path,
    activities: Sequence[str],
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
    asked = Request(path, activities, parse_step(step), options.timezone or ZONE)
    with (
        os_errors(path, "cannot be read"),
        telecom_sums(asked, progress, spool_folder) as sums,
    ):
        for activity in activities:
            yield activity, _in_bands(sums, activity, options, spool_folder)


def _in_bands(sums: Sums, activity: str, options: PanelOptions, spool_folder: Path | None) -> Panel:
    cells = sums.cells
    if options.ids is not None:
        chosen = find_ids([str(cell) for cell in cells], options.ids, sums.asked.root.stem)
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


def mark_missing(panel: Panel, missing: str | float | None) -> tuple[Panel, int]:
    """The panel with values that mark missing ones set to NaN, and how many there are."""
    marks = missing_numbers(missing)
    if not marks:
        return panel, 0
    hit = np.isin(panel.values, marks)
    return replace(panel, values=np.where(hit, np.nan, panel.values)), int(hit.sum())


def with_coordinates(panel: Panel, source: str | Path) -> Panel:
    """The panel with longitude and latitude from a CSV of client (or cell_id), lng, lat."""
    path = Path(source)
    if path.is_dir():
        raise FuelsError(f"{path}: is a folder, but --coordinates needs a CSV file")
    with table_errors(path, "not readable as a CSV of coordinates"):
        table = pl.read_csv(path, infer_schema=False, glob=False)
    client, *pair = Header(table.columns, path.name).coordinates()
    clients = id_texts(table[client], Place(path.name))
    known = read_coordinates(table, (pair[0], pair[1]), clients, path.name)
    found = coordinates_of(known, panel.ids)
    if found is None:
        lost = next(client for client in panel.ids if client not in known)
        raise FuelsError(f"{path.name}: no coordinates for client {lost}")
    return replace(panel, coordinates=found)
