"""Arrays stored in a temporary file, so that memory does not grow with the data.

The file has no directory entry, so it disappears when the process ends, however it ends.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats
from fuels.data.files import os_errors
from fuels.data.panel import Panel
from fuels.errors import FuelsError

_CLIENTS_AT_ONCE = 512
UNWRITABLE = "a temporary file could not be written there"


@contextmanager
def open_spool(folder: Path | None = None) -> Iterator[Spool]:
    """A spool in `folder`, or in the system's temporary folder; removed after the block."""
    with ExitStack() as stack:
        with os_errors(folder or "temporary files", UNWRITABLE):
            place = str(folder or tempfile.gettempdir())
            stream = stack.enter_context(tempfile.TemporaryFile(dir=place, buffering=0))
        yield Spool(place, stream)


class Spool:
    """A temporary file to which several threads may write arrays."""

    def __init__(self, folder: str, stream: IO[bytes]) -> None:
        self.folder = folder
        self.stream = stream
        self.end = 0
        self.lock = threading.Lock()

    def put(self, array: NDArray[Any]) -> Stored:
        with self.lock:
            offset, self.end = self.end, self.end + array.nbytes
        rest, at = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, offset
        with os_errors(self.folder, UNWRITABLE):
            while rest:
                written = os.pwrite(self.stream.fileno(), rest, at)
                rest, at = rest[written:], at + written
        return Stored(self, offset, array.shape, array.dtype)

    def room(self, shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
        """An array of zeros mapped from the file; `release_memory` may free its pages any time."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        with self.lock:
            offset = -(-self.end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
            self.end = offset + size
        # Reserve space now: a full disk on a later write would kill the process.
        with os_errors(self.folder, UNWRITABLE):
            _reserve(self.stream.fileno(), offset, size)
        return np.asarray(np.memmap(self.stream, dtype, "r+", offset, shape))


def _reserve(file: int, offset: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, offset, size)
        return
    zeros = bytes(1 << 20)  # macOS has no such call, but writing zeros does the same
    for start in range(offset, offset + size, len(zeros)):
        os.pwrite(file, zeros[: offset + size - start], start)


@dataclass(frozen=True)
class Stored:
    """The position of an array in a spool."""

    spool: Spool
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def get(self, first: int, last: int) -> NDArray[Any]:
        """The rows [first:last] of the array's leading axis."""
        size = math.prod(self.shape[1:]) * self.dtype.itemsize
        content = os.pread(
            self.spool.stream.fileno(), (last - first) * size, self.offset + first * size
        )
        return np.frombuffer(content, self.dtype).reshape(last - first, *self.shape[1:])


def gather(bands: Iterable[Panel], ids: Sequence[str]) -> Panel:
    """One panel from bands of successive clients, in memory."""
    values: Floats | None = None
    at = 0
    for band in bands:
        if values is None:
            values = np.empty((band.length, len(ids)))
        values[:, at : at + len(band.ids)] = band.values
        at += len(band.ids)
    if values is None:
        raise FuelsError("there are no clients")
    return replace(band, values=values, ids=tuple(ids))


def gather_in_file(bands: Iterable[Panel], ids: Sequence[str], folder: Path) -> Panel:
    """`gather` into a temporary file in `folder`: the values are mapped read-only."""
    with open_spool(folder) as spool:
        for band in bands:
            spool.put(band.values.T)
        mapped = np.memmap(spool.stream, np.float64, "r", shape=(len(ids), band.length))
    return replace(band, values=np.asarray(mapped).T, ids=tuple(ids))


def rows_of(values: Floats, rows: slice) -> Floats:
    """A copy of some rows [time, client] of values that may be mapped.

    Mapped values are stored client by client, and reading one also maps its neighbours, so they are
    read and released a few clients at a time.
    """
    copy = np.empty(values[rows].shape)
    for first in range(0, values.shape[1], _CLIENTS_AT_ONCE):
        columns = slice(first, first + _CLIENTS_AT_ONCE)
        copy[:, columns] = values[rows, columns]
        release_memory(values)
    return copy


def release_memory(values: NDArray[Any]) -> None:
    """Release the memory of mapped values, which stay in their file; does nothing for others."""
    base: Any = values
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)
