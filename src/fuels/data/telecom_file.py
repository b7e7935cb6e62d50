"""Summing one file of raw Telecom Italia records in bounded memory.

A file is read in pieces. Sums are kept in blocks of a day with one column per square id, so memory
depends on the span of the file, not on its size, and records may come in any order. The first
blocks are in memory; if a file spans many days, the others are in a temporary file. All sums of a
finished file go there too, so memory does not grow with the number of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats, Integers
from fuels.data.spool import Spool, Stored, release_memory
from fuels.errors import FuelsError
from fuels.kernels.telecom import ELSEWHERE, MALFORMED, NO_NUMBER, sum_lines

# Activity -> the fields of a record, counted after the country code, that it sums.
ACTIVITIES = {"sms": (0, 1), "call": (2, 3), "net": (4,)}
_PIECE = 1 << 20  # bytes read at once
_IN_MEMORY = 150 << 20  # bytes of sums per file; several files are read at once
_MAX_CELL = 1 << 20
_PLAUSIBLE_MS = (946_684_800_000, 4_102_444_800_000)  # the years 2000 to 2099
_LONGEST_MS = 3660 * 86_400_000  # ten years: a longer span means a wrong time

Progress = Callable[[int], object]  # called with the number of bytes read since the last call


@dataclass
class _Block:
    """Sums of one file over consecutive bins: sums [activity, bin, cell], seen [bin, cell]."""

    sums: Floats
    seen: NDArray[np.uint8]


def check_span(first_ms: int, last_ms: int, source: str) -> None:
    """Reject records so far apart that a time must be wrong, before allocating memory for them."""
    if last_ms - first_ms > _LONGEST_MS:
        first, last = (str(np.datetime64(ms, "ms"))[:10] for ms in (first_ms, last_ms))
        raise FuelsError(f"{source}: the records run from {first} to {last}: is a time wrong?")


@dataclass(frozen=True)
class Part:
    """The sums of one file over consecutive bins: for each activity [cell, bin]."""

    file: Path
    first_bin: int
    bins: int
    mask: NDArray[np.uint8]  # one bit per square id in the file: there may be many parts
    sums: list[Stored]
    seen: Stored  # [cell, bin], bool
    span: tuple[int, int]  # first and last time of the file, ms

    @property
    def cells(self) -> Integers:
        """The square ids of the file, ascending: the cells of `sums` and `seen`."""
        return np.flatnonzero(np.unpackbits(self.mask))


@dataclass
class FileSums:
    """Sums one file in memory or, if it spans many days, in a temporary file."""

    file: Path
    step_ms: int
    shift_ms: int
    activities: Sequence[str]
    spool: Spool
    capacity: int = 1 << 14  # one column per id; untouched zero pages cost nothing
    blocks: dict[int, _Block] = field(default_factory=dict)
    span: Integers = field(default_factory=lambda: np.array([1 << 62, -1]))

    def __post_init__(self) -> None:
        self.bins = max(1, 86_400_000 // self.step_ms)  # bins of a block: a day
        self.block = _Block(np.zeros((len(self.activities), 0, 0)), np.zeros((0, 0), np.uint8))
        self.key = self.held = 0
        self.slots = np.full(5, -1, dtype=np.int64)
        for slot, activity in enumerate(self.activities):
            self.slots[list(ACTIVITIES[activity])] = slot

    def read(self, progress: Progress | None) -> None:
        piece = bytearray(_PIECE + 1)  # room for a final line feed
        text = np.frombuffer(piece, dtype=np.uint8)
        kept, lines = 0, 0
        with self.file.open("rb", buffering=0) as stream:
            while True:
                got = stream.readinto(memoryview(piece)[kept:_PIECE])
                size = kept + got
                if got == 0 and size:
                    piece[size] = ord("\n")
                    size += 1
                end = piece.rfind(b"\n", 0, size) + 1
                if end == 0 and size == _PIECE:
                    raise self._malformed(lines, "is longer than any record")
                lines = self._add(text, end, lines)
                self._release_blocks()
                if progress is not None:
                    progress(got)
                if got == 0:
                    return
                kept = size - end
                piece[:kept] = piece[end:size]

    def _add(self, text: NDArray[np.uint8], end: int, lines: int) -> int:
        at = 0
        while at < end:
            status, at, read, time_bin, cell = sum_lines(
                text,
                at,
                end,
                self.shift_ms,
                self.step_ms,
                self.key * self.bins,
                self.slots,
                self.block.sums,
                self.block.seen,
                self.span,
            )
            lines += read
            if status == MALFORMED:
                raise self._malformed(lines, "is not a record of eight tab-separated fields")
            if status == NO_NUMBER:
                raise self._malformed(
                    lines, "has an activity that is not a plain number such as 0.25"
                )
            if status == ELSEWHERE:
                time = time_bin * self.step_ms - self.shift_ms
                if not _PLAUSIBLE_MS[0] <= time < _PLAUSIBLE_MS[1]:
                    raise self._malformed(lines, "has a time that is not in ms since 1970")
                if cell >= _MAX_CELL:
                    raise self._malformed(lines, f"has the square id {cell}, which is too large")
                while cell >= self.capacity:
                    self._widen()
                self.key = time_bin // self.bins
                if self.key not in self.blocks:
                    self.blocks[self.key] = self._empty()
                self.block = self.blocks[self.key]
        return lines

    def _malformed(self, lines: int, what: str) -> FuelsError:
        return FuelsError(f"{self.file.name}: line {lines + 1} {what}")

    def _empty(self) -> _Block:
        shape = self._shape
        size = (8 * shape[0] + 1) * self.bins * self.capacity
        if self.held + size > _IN_MEMORY:
            return _Block(self.spool.room(shape, np.float64), self.spool.room(shape[1:], np.uint8))
        self.held += size
        return _Block(np.zeros(shape), np.zeros(shape[1:], np.uint8))

    @property
    def _shape(self) -> tuple[int, int, int]:
        return len(self.activities), self.bins, self.capacity

    def _widen(self) -> None:
        old = self.capacity
        self.capacity *= 2
        self.held = 0  # the old blocks are replaced one by one
        for key, block in self.blocks.items():
            wide = self._empty()
            wide.sums[:, :, :old], wide.seen[:, :old] = block.sums, block.seen
            self.blocks[key] = wide
            self._release_blocks()

    def _release_blocks(self) -> None:
        """Release the memory of blocks in the temporary file."""
        for block in self.blocks.values():
            release_memory(block.sums)
            release_memory(block.seen)

    def parts(self) -> Iterator[Part]:
        """The sums without empty columns, limited to the file's span; frees the blocks."""
        check_span(int(self.span[0]), int(self.span[1]), self.file.name)
        first, last = (int(t + self.shift_ms) // self.step_ms for t in self.span)
        found = np.any([block.seen.any(axis=0) for block in self.blocks.values()], axis=0)
        cells, mask = np.flatnonzero(found), np.packbits(found)
        self._release_blocks()
        silent = np.zeros(self._shape)  # a day without records
        for key in range(first // self.bins, last // self.bins + 1):
            block = self.blocks.pop(key, None) or _Block(silent, silent[0].astype(np.uint8))
            rows = slice(
                max(first - key * self.bins, 0), min(last - key * self.bins + 1, self.bins)
            )
            yield Part(
                file=self.file,
                first_bin=key * self.bins + rows.start,
                mask=mask,
                bins=rows.stop - rows.start,
                sums=[self.spool.put(sums[rows][:, cells].T) for sums in block.sums],
                seen=self.spool.put(block.seen[rows][:, cells].T.astype(bool)),
                span=(int(self.span[0]), int(self.span[1])),
            )
