"""Raw records of the Telecom Italia Big Data Challenge, Milano or Trentino, as panels.

Files are named sms-call-internet-{mi,tn}-DATE.txt, one a day, with several records (country
codes) per cell and ten minutes. Activities are summed over country codes and over the step:
sms = in + out, call = in + out, net. Files are read in pieces and added up as they pass, so memory
holds the sums and a few pieces, never the records. (Barlacchi et al. 2015, Scientific Data 2.)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fuels.data.clock import Step, format_moment, format_step, parse_step, standard_offset
from fuels.data.panel import Floats, Panel
from fuels.data.telecom_kernel import ELSEWHERE, MALFORMED, sum_lines
from fuels.errors import FuelsError

# Activity -> the fields of a record (counted after the country code) that it sums.
ACTIVITIES = {"sms": (0, 1), "call": (2, 3), "net": (4,)}
ZONE = "Europe/Rome"
INTERVAL_MS = 600_000
_PIECE = 1 << 23  # bytes read at once
_MAX_CELL = 1 << 20
_PLAUSIBLE_MS = (946_684_800_000, 4_102_444_800_000)  # the years 2000 to 2099

Progress = Callable[[int], object]  # called with the number of bytes read since the last call


@dataclass
class _Block:
    """Sums of one file over consecutive bins: sums [activity, bin, cell], seen [bin, cell]."""

    sums: Floats
    seen: NDArray[np.uint8]


@dataclass
class _Part:
    """What one file says about consecutive bins: sums [activity] of [bin, cell]."""

    file: Path
    first_bin: int
    cells: NDArray[np.int64]
    sums: list[Floats]
    seen: NDArray[np.bool_]
    span: tuple[int, int]  # first and last time of the file, ms


@dataclass
class _FileSums:
    """Adds up one file; memory grows with the file's span, not with its size."""

    file: Path
    step_ms: int
    shift_ms: int
    activities: Sequence[str]
    capacity: int = 1 << 14  # cells are columns by id; zero pages that are never touched are free
    blocks: dict[int, _Block] = field(default_factory=dict)
    span: NDArray[np.int64] = field(default_factory=lambda: np.array([1 << 62, -1]))

    def __post_init__(self) -> None:
        self.bins = max(1, 86_400_000 // self.step_ms)  # bins of a block: a day
        self.slots = np.full(5, -1, dtype=np.int64)
        for slot, activity in enumerate(self.activities):
            self.slots[list(ACTIVITIES[activity])] = slot

    def read(self, progress: Progress | None) -> None:
        text = np.empty(_PIECE + 1, dtype=np.uint8)  # one place for a last line feed
        kept, lines = 0, 0
        with self.file.open("rb", buffering=0) as stream:
            while True:
                got = stream.readinto(memoryview(text)[kept:_PIECE])
                size = kept + got
                if got == 0 and size and text[size - 1] != 10:
                    text[size] = 10
                    size += 1
                end = size - int(np.argmax(text[:size][::-1] == 10)) if size else 0
                if size and text[end - 1] != 10:
                    raise self._malformed(lines, "is longer than any record")
                lines = self._add(text, end, lines)
                if progress is not None:
                    progress(got)
                if got == 0:
                    return
                kept = size - end
                text[:kept] = text[end:size]

    def _add(self, text: NDArray[np.uint8], end: int, lines: int) -> int:
        at, key = 0, next(iter(self.blocks), 0)
        while at < end:
            block = self._block(key)
            status, at, read, time_bin, cell = sum_lines(
                text,
                at,
                end,
                self.shift_ms,
                self.step_ms,
                key * self.bins,
                self.slots,
                block.sums,
                block.seen,
                self.span,
            )
            lines += read
            if status == MALFORMED:
                raise self._malformed(lines, "is no record of eight fields between tabs")
            if status == ELSEWHERE:
                time = time_bin * self.step_ms - self.shift_ms
                if not _PLAUSIBLE_MS[0] <= time < _PLAUSIBLE_MS[1]:
                    raise self._malformed(lines, "has a time that is not in ms since 1970")
                if cell >= _MAX_CELL:
                    raise self._malformed(lines, f"has the square id {cell}, which is too large")
                while cell >= self.capacity:
                    self._widen()
                key = time_bin // self.bins
        return lines

    def _malformed(self, lines: int, what: str) -> FuelsError:
        return FuelsError(f"{self.file.name}: line {lines + 1} {what}")

    def _block(self, key: int) -> _Block:
        if key not in self.blocks:
            shape = (len(self.activities), self.bins, self.capacity)
            self.blocks[key] = _Block(np.zeros(shape), np.zeros(shape[1:], dtype=np.uint8))
        return self.blocks[key]

    def _widen(self) -> None:
        for block in self.blocks.values():
            block.sums = np.concatenate((block.sums, np.zeros_like(block.sums)), axis=2)
            block.seen = np.concatenate((block.seen, np.zeros_like(block.seen)), axis=1)
        self.capacity *= 2

    def parts(self) -> Iterator[_Part]:
        """The sums without empty columns, limited to the file's span; blocks are given up."""
        first, last = (int(t + self.shift_ms) // self.step_ms for t in self.span)
        cells = np.flatnonzero(
            np.any([block.seen.any(axis=0) for block in self.blocks.values()], axis=0)
        )
        for key in range(first // self.bins, last // self.bins + 1):
            block = self._block(key)
            rows = slice(max(first - key * self.bins, 0), min(last - key * self.bins, self.bins) + 1)
            yield _Part(
                file=self.file,
                first_bin=key * self.bins + rows.start,
                cells=cells,
                sums=[block.sums[slot][rows][:, cells] for slot in range(len(self.activities))],
                seen=block.seen[rows][:, cells].astype(bool),
                span=(int(self.span[0]), int(self.span[1])),
            )
            del self.blocks[key]
