"""Machine code kept on disk; a disk that is full, damaged or closed to us never stops a run.

Numba looks for a folder by itself: NUMBA_CACHE_DIR, else __pycache__ beside the source, else one in
the user's home. What cannot be read there is compiled again and replaced; what cannot be written is
compiled in memory, by every process anew. Each is noted once in a process.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numba.core.config
import numba.core.sigutils
from numba import njit
from numba.core.caching import FunctionCache

config: Any = numba.core.config  # Numba's own annotations cover it in part
sigutils: Any = numba.core.sigutils

# Files that decide how the functions of other files are compiled, or are compiled into them.
SHARED = ("jit.py", "simd_f64.py", "simd.py", "stage_tables.py", "matmul.py")

_log = logging.getLogger(__name__)
_told: set[str] = set()
_writable = True
_ahead: list[tuple[Any, str]] = []


def jit(function: Callable[..., Any], signature: Any, ahead: str, options: dict[str, Any]) -> Any:
    """The function compiled: for its signature now, without one when its types are known."""
    made: Any = njit(**options)(function)
    try:
        # What Numba's cache=True does, with another class.
        made._cache = KeptCode(function)
    except (RuntimeError, OSError) as problem:
        _note_closed(problem)
    if signature is not None:
        made.compile(signature)
        made.disable_compile()
    elif ahead:
        _ahead.append((made, ahead))
    return made


def compile_ahead() -> None:
    """Compile what waits for its first call for the types of that call."""
    for made, types in _ahead:
        made.compile(
            sigutils.normalize_signature(types)[0]
        )  # as a call has them, and the disk's index


@functools.cache
def _building_blocks() -> str:
    """A digest of what kernels are built from, besides their own file."""
    found = hashlib.blake2b(version("llvmlite").encode(), digest_size=16)
    for name in SHARED:
        found.update((Path(__file__).parent / name).read_bytes())
    return found.hexdigest()


class KeptCode(FunctionCache):
    """The compiled versions of one function on disk."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        # Numba looks at the function's own file alone: code of another file that is compiled into
        # it would stay what it was before an upgrade.
        self._cache_file._source_stamp = (self._cache_file._source_stamp, _building_blocks())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            found = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception as problem:  # damaged bytes can make unpickling raise anything
            _note(
                "compiled kernels in %s cannot be read (%s) and are compiled again",
                self.cache_path,
                problem,
            )
            self._forget()
            return None
        if found is None and _writable:
            _note("compiling kernels, once on this machine: about half a minute")
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        if not _writable:
            return
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except OSError as problem:
            _note_closed(problem)
            self._forget()  # it may name code that could not be written

    def _forget(self) -> None:
        """Remove the index, which needs no room; data files are written anew."""
        try:
            Path(self._cache_file._index_path).unlink(missing_ok=True)
        except OSError as problem:
            _note_closed(problem)


def _note_closed(problem: Exception) -> None:
    """From now on nothing is written: the next file would fare no better."""
    global _writable
    _writable = False
    _note(
        "compiled kernels cannot be kept (%s), so every run compiles them, about half a minute:"
        " NUMBA_CACHE_DIR names a folder to keep them in",
        problem,
    )


def _note(text: str, *values: object) -> None:
    if text not in _told:
        _told.add(text)
        _log.warning(text, *values)
