"""Raw records of the Telecom Italia Big Data Challenge, Milano or Trentino, as panels.

Files are named sms-call-internet-{mi,tn}-DATE.txt, one a day, with several records (country
codes) per cell and ten minutes. Activities are summed over country codes and over the step:
sms = in + out, call = in + out, net. Memory holds the sums and a few pieces of text, never the
records, however many files there are. (The format: Barlacchi et al. 2015, Scientific Data 2.)
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import numpy as np

from fuels.data.clock import SECOND, Step, format_moment, format_step, parse_step, standard_offset
from fuels.data.panel import Panel
from fuels.data.telecom_file import ACTIVITIES, FileSums, Part, Progress, Spool, check_span
from fuels.errors import FuelsError

ZONE = "Europe/Rome"
INTERVAL_MS = 600_000
_NAME = re.compile(r"sms-call-internet-(mi|tn)-.*\.txt")
_RECORD = re.compile(rb"\d+\t\d+\t\d*(\t[0-9.eE+-]*){5}\r?\n?")
_UNITS = {"sms": "SMS activity", "call": "call activity", "net": "Internet activity"}


def is_telecom(path: Path) -> bool:
    """Whether a .txt or .tsv file starts with a record, or a folder holds such files."""
    if path.is_dir():
        return bool(_files(path))
    if path.suffix.lower() not in (".txt", ".tsv"):
        return False
    with path.open("rb") as stream:
        return _RECORD.fullmatch(stream.readline(4096)) is not None


def _files(path: Path) -> list[Path]:
    """The files to read, in the order of their names; names of the challenge come first."""
    if path.is_file():
        return [path]
    files = sorted(file for file in path.iterdir() if file.is_file())
    named = [file for file in files if _NAME.fullmatch(file.name)]
    cities = sorted({match[1] for f in named if (match := _NAME.fullmatch(f.name))})
    if len(cities) > 1:
        raise FuelsError(
            f"{path.name}: holds records of Milano (mi) and Trentino (tn), whose cells have the"
            " same ids: keep them in two folders"
        )
    return named or [file for file in files if is_telecom(file)]


def read_telecom(
    path: str | Path,
    activity: str = "net",
    step: Step = 3600,
    *,
    timezone: str | None = None,
    progress: Progress | None = None,
) -> Panel:
    """The panel of one activity (net, sms or call) from one file or a folder of files."""
    return next(panel for _, panel in telecom_panels(path, [activity], step, timezone, progress))


def telecom_panels(
    path: str | Path,
    activities: Sequence[str] = tuple(ACTIVITIES),
    step: Step = 3600,
    timezone: str | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[str, Panel]]:
    """Panels of several activities from one pass over the records, one after another."""
    root, seconds = Path(path), parse_step(step)
    for activity in activities:
        if activity not in ACTIVITIES:
            raise FuelsError(f"activity '{activity}' is not known: choose net, sms or call")
    if seconds % np.timedelta64(600, "s"):
        raise FuelsError(
            f"{root.name}: records are ten minutes apart, so a step of {format_step(seconds)}"
            " is not possible: give a multiple of 10min"
        )
    files = _files(root)
    if not files:
        raise FuelsError(
            f"{root}: no files of raw records (sms-call-internet-*.txt) in this folder"
        )
    zone = timezone or ZONE
    # Bins follow local standard time, so that a step of a day means the day of the place.
    shift = int(standard_offset(zone, 2013) / SECOND) * 1000
    with tempfile.TemporaryFile() as stream:
        parts = _add_up(files, int(seconds / SECOND) * 1000, shift, activities, stream, progress)
        if not parts:
            raise FuelsError(f"{root.name}: there are no records")
        for slot, activity in enumerate(activities):
            yield activity, _join(parts, slot, seconds, shift, zone, _UNITS[activity], root)


def _add_up(
    files: Sequence[Path],
    step_ms: int,
    shift_ms: int,
    activities: Sequence[str],
    stream: IO[bytes],
    progress: Progress | None,
) -> list[Part]:
    spool = Spool(stream)

    def one(file: Path) -> list[Part]:
        sums = FileSums(file, step_ms, shift_ms, activities)
        sums.read(progress)
        return list(sums.parts(spool))

    # The compiled loop runs without the interpreter's lock, so threads use the cores.
    workers = max(1, min(4, os.cpu_count() or 1, len(files)))
    with ThreadPoolExecutor(workers) as pool:
        try:
            return [part for parts in pool.map(one, files) for part in parts]
        finally:  # after an error, files not yet begun are not read at all
            pool.shutdown(cancel_futures=True)


def _join(
    parts: Sequence[Part],
    slot: int,
    step: np.timedelta64,
    shift_ms: int,
    zone: str,
    unit: str,
    root: Path,
) -> Panel:
    """One panel from all parts; where a file has no record of a cell at all, values are missing."""
    step_ms = int(step / SECOND) * 1000
    spans = [part.span for part in parts]
    start_ms, end_ms = min(s for s, _ in spans), max(e for _, e in spans) + INTERVAL_MS
    check_span(start_ms, end_ms, root.name)
    # A bin that the records enter or leave in the middle would be a sum of a part: left out.
    first = -(-(start_ms + shift_ms) // step_ms)
    last = (end_ms + shift_ms) // step_ms
    if first >= last:
        raise FuelsError(
            f"{root.name}: the records do not cover one complete step of {format_step(step)}"
        )
    dropped = (start_ms + shift_ms) % step_ms != 0, (end_ms + shift_ms) % step_ms != 0
    cells = np.unique(np.concatenate([part.cells for part in parts]))
    values = np.full((last - first, len(cells)), np.nan)
    seen = np.zeros(values.shape, dtype=bool)
    for part in parts:
        low, high = max(part.first_bin, first), min(part.first_bin + part.bins, last)
        if low >= high:
            continue
        inside = slice(low - part.first_bin, high - part.first_bin)
        area = np.ix_(np.arange(low - first, high - first), np.searchsorted(cells, part.cells))
        recorded = part.seen.get()[inside]
        if (twice := seen[area] & recorded).any():
            row, column = np.argwhere(twice)[0]
            time = np.datetime64((low + int(row)) * step_ms - shift_ms, "ms")
            raise FuelsError(
                f"{part.file.name}: cell {part.cells[column]} at {format_moment(time, zone)} is"
                " also in another file of the folder: remove the copy"
            )
        seen[area] |= recorded
        # Two files may share hours but not cells, or the other way round.
        so_far = np.nan_to_num(values[area], nan=0.0)
        values[area] = so_far + part.sums[slot].get()[inside]
    return Panel(
        values=values,
        ids=tuple(str(cell) for cell in cells),
        start=np.datetime64((first * step_ms - shift_ms) // 1000, "s"),
        step=step,
        timezone=zone,
        name=root.stem,
        unit=unit,
        notes=_notes(step, any(dropped)),
    )


def _notes(step: np.timedelta64, dropped: bool) -> tuple[str, ...]:
    notes = [
        f"raw records summed over country codes to {format_step(step)}",
        "no record of a cell in an interval counts as 0; a cell without any record in a file is"
        " missing for the span of that file",
    ]
    if dropped:
        notes.append("incomplete steps at the ends of the records were left out")
    return tuple(notes)
