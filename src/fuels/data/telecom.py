"""Raw records of the Telecom Italia Big Data Challenge (Milan or Trentino) as panels.

Files are named sms-call-internet-{mi,tn}-DATE.txt, one per day, with several records (country
codes) per cell and ten minutes. Activities are summed over country codes and over the step:
sms = in + out, call = in + out, net. Memory holds the sums of a few files, never the records; the
sums of all files go to a temporary file, from which panels of any cells are built.
(Format: Barlacchi et al. 2015, Scientific Data 2.)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fuels.arrays import Flags, Floats, Integers
from fuels.data.clock import SECOND, format_moment, format_step, standard_offset
from fuels.data.panel import Panel
from fuels.data.spool import Spool, open_spool
from fuels.data.telecom_file import ACTIVITIES, FileSums, Part, Progress, check_span
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
    """The files to read, sorted by name; if any have names of the challenge, only those."""
    if path.is_file():
        return [path]
    files = sorted(file for file in path.iterdir() if file.is_file())
    named = [file for file in files if _NAME.fullmatch(file.name)]
    cities = sorted({match[1] for f in named if (match := _NAME.fullmatch(f.name))})
    if len(cities) > 1:
        raise FuelsError(
            f"{path.name}: holds records of Milan (mi) and Trentino (tn), whose cells have the"
            " same ids: keep them in separate folders"
        )
    return named or [file for file in files if is_telecom(file)]


@dataclass(frozen=True)
class Request:
    """What is summed: the activities of a file or a folder of files, over a step of a zone."""

    root: Path
    activities: Sequence[str]
    step: np.timedelta64
    zone: str

    @property
    def step_ms(self) -> int:
        return int(self.step / SECOND) * 1000

    @property
    def shift_ms(self) -> int:
        """Bins follow local standard time, so that a daily step is a local day."""
        return int(standard_offset(self.zone, 2013) / SECOND) * 1000

    def parts(self, files: Sequence[Path], spool: Spool, progress: Progress | None) -> list[Part]:
        """The sums of every file."""

        def one(file: Path) -> list[Part]:
            sums = FileSums(file, self.step_ms, self.shift_ms, self.activities, spool)
            sums.read(progress)
            return list(sums.parts())

        # The compiled loop releases the interpreter lock, so threads run in parallel.
        workers = max(1, min(4, os.cpu_count() or 1, len(files)))
        with ThreadPoolExecutor(workers) as pool:
            try:
                return [part for parts in pool.map(one, files) for part in parts]
            finally:  # after an error, skip the files that are still waiting
                pool.shutdown(cancel_futures=True)

    def sums(self, parts: Sequence[Part]) -> Sums:
        """The sums of all files together, without bins at the ends that are covered only partly."""
        spans = [part.span for part in parts]
        start_ms, end_ms = min(s for s, _ in spans), max(e for _, e in spans) + INTERVAL_MS
        check_span(start_ms, end_ms, self.root.name)
        start, end = start_ms + self.shift_ms, end_ms + self.shift_ms
        first, last = -(-start // self.step_ms), end // self.step_ms
        if first >= last:
            raise FuelsError(
                f"{self.root.name}: the records do not cover one complete step of"
                f" {format_step(self.step)}"
            )
        dropped = start % self.step_ms != 0 or end % self.step_ms != 0
        found = np.zeros(max(len(part.mask) for part in parts), dtype=np.uint8)
        for part in parts:
            found[: len(part.mask)] |= part.mask
        notes = (
            f"raw records summed over country codes to {format_step(self.step)}",
            "an interval without a record of a cell counts as 0; a cell without any record in a"
            " file is missing for the span of that file",
            *["incomplete steps at the ends of the records were dropped"] * dropped,
        )
        return Sums(self, parts, np.flatnonzero(np.unpackbits(found)), first, last - first, notes)


@dataclass(frozen=True)
class Sums:
    """The sums of all files, in a temporary file, from which panels of some cells are built."""

    asked: Request
    parts: Sequence[Part]
    cells: Integers  # all square ids, ascending
    first_bin: int
    bins: int
    notes: tuple[str, ...]

    def panel(self, activity: str, cells: Integers) -> Panel:
        """One activity of some cells, ascending; missing if a file has no record of a cell."""
        slot = self.asked.activities.index(activity)
        values = np.full((len(cells), self.bins), np.nan)  # [cell, bin], like the parts
        seen = np.zeros(values.shape, dtype=bool)
        for part in self.parts:
            self._add(part, slot, cells, values, seen)
        return Panel(
            values=values.T,
            ids=tuple(str(cell) for cell in cells),
            start=np.datetime64(self._time_ms(self.first_bin) // 1000, "s"),
            step=self.asked.step,
            timezone=self.asked.zone,
            name=self.asked.root.stem,
            unit=_UNITS[activity],
            notes=self.notes,
        )

    def _add(self, part: Part, slot: int, cells: Integers, values: Floats, seen: Flags) -> None:
        low = max(part.first_bin, self.first_bin)
        high = min(part.first_bin + part.bins, self.first_bin + self.bins)
        known = part.cells
        begin, end = np.searchsorted(known, [cells[0], cells[-1] + 1])
        known = known[begin:end]
        there = np.isin(known, cells, assume_unique=True)
        if low >= high or not there.any():
            return
        inside = slice(low - part.first_bin, high - part.first_bin)
        rows = np.searchsorted(cells, known[there])
        columns = np.arange(low - self.first_bin, high - self.first_bin)
        area = np.ix_(rows, columns)
        recorded = part.seen.get(begin, end)[there, inside]
        if (twice := seen[area] & recorded).any():
            row, column = np.argwhere(twice)[0]
            time = np.datetime64(self._time_ms(low + int(column)), "ms")
            when = format_moment(time, self.asked.zone)
            raise FuelsError(
                f"{part.file.name}: cell {cells[rows[row]]} at {when} is also in another file of"
                " the folder: remove the copy"
            )
        seen[area] |= recorded
        # Two files may share hours but not cells, or vice versa.
        so_far = np.nan_to_num(values[area], nan=0.0)
        values[area] = so_far + part.sums[slot].get(begin, end)[there, inside]

    def _time_ms(self, time_bin: int) -> int:
        return time_bin * self.asked.step_ms - self.asked.shift_ms


@contextmanager
def telecom_sums(asked: Request, progress: Progress | None, folder: Path | None) -> Iterator[Sums]:
    """Sums of several activities from one pass over the records of a file or a folder of files.

    They are stored in a temporary file in `folder`, or in the system's temporary folder.
    """
    root, step = asked.root, asked.step
    for activity in asked.activities:
        if activity not in ACTIVITIES:
            raise FuelsError(f"activity '{activity}' is not known: choose net, sms or call")
    if step % np.timedelta64(600, "s"):
        raise FuelsError(
            f"{root.name}: records are ten minutes apart, so a step of {format_step(step)}"
            " is not possible: use a multiple of 10min"
        )
    files = _files(root)
    if not files:
        raise FuelsError(f"{root}: this folder has no raw records (sms-call-internet-*.txt)")
    with open_spool(folder) as spool:
        parts = asked.parts(files, spool, progress)
        if not parts:
            raise FuelsError(f"{root.name}: there are no records")
        yield asked.sums(parts)
