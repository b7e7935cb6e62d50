"""The cache of machine code on disk. A full, damaged or read-only disk never stops a run.

Numba chooses the folder: NUMBA_CACHE_DIR, else __pycache__ next to the source, else one in the
user's home. Files that cannot be read are compiled again and replaced. If nothing can be written,
every process compiles in memory. Each case is logged once in a process.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuels.kernels.numba_internals import (
    DiskCache,
    compile_only,
    compile_types,
    llvm_version,
    make_dispatcher,
    set_cache,
)

# Files that are compiled into the functions of other files, or decide how these are compiled.
SHARED = (
    "jit.py", "matmul.py", "numba_internals.py", "registers.py", "simd.py", "simd_f64.py",
    "stages.py", "tracking.py", "tracking_simd.py",
)  # fmt: skip

_log = logging.getLogger(__name__)
_logged: set[str] = set()
_writable = True
_ahead: list[tuple[Any, str]] = []


def jit(function: Callable[..., Any], signature: Any, ahead: str, options: dict[str, Any]) -> Any:
    """Compile a function: now if it has a signature, otherwise at the first call."""
    made = make_dispatcher(function, options)
    try:
        set_cache(made, CodeCache(function, _shared_digest()))
    except (RuntimeError, OSError) as problem:
        _log_unwritable(problem)
    if signature is not None:
        compile_only(made, signature)
    elif ahead:
        _ahead.append((made, ahead))
    return made


def compile_ahead() -> None:
    """Compile the functions that would wait for their first call, for the types of that call."""
    for made, types in _ahead:
        compile_types(made, types)


@functools.cache
def _shared_digest() -> str:
    """A digest of the shared files.

    Numba compares a function's own file only: code of another file that was compiled into it
    would survive an upgrade.
    """
    digest = hashlib.blake2b(llvm_version().encode(), digest_size=16)
    for name in SHARED:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()


class CodeCache(DiskCache):
    """The machine code of one function on disk."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            found = super().load_overload(sig, target_context)
        except Exception as problem:  # damaged bytes can make unpickling raise anything
            _log_once(
                "compiled kernels in %s cannot be read (%s); compiling them again",
                self.cache_path,
                problem,
            )
            self._remove_index()
            return None
        if found is None and _writable:
            _log_once("compiling kernels; this takes about half a minute, once on this machine")
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        if not _writable:
            return
        try:
            super().save_overload(sig, data)
        except OSError as problem:
            _log_unwritable(problem)
            self._remove_index()  # it may name code that could not be written

    def _remove_index(self) -> None:
        """Without the index Numba writes the machine code again; removing needs no disk space."""
        try:
            self.index.unlink(missing_ok=True)
        except OSError as problem:
            _log_unwritable(problem)


def _log_unwritable(problem: Exception) -> None:
    """Stop writing: the next file would fail too."""
    global _writable
    _writable = False
    _log_once(
        "compiled kernels cannot be stored (%s), so every run spends about half a minute compiling"
        " them: set NUMBA_CACHE_DIR to a writable folder",
        problem,
    )


def _log_once(text: str, *values: object) -> None:
    if text not in _logged:
        _logged.add(text)
        _log.warning(text, *values)
