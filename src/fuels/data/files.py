"""Files that are written as a whole or not at all, and sentences about what the system refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import polars as pl

from fuels.errors import FuelsError


@contextmanager
def os_errors(place: object, problem: str) -> Iterator[None]:
    """Turn an operating-system error into a sentence: "place: problem (reason)"."""
    try:
        yield
    except OSError as error:
        raise FuelsError(f"{place}: {problem} ({error.strerror or error})") from None


def make_folder(path: Path) -> None:
    """Create a folder where there is none."""
    with os_errors(path, "cannot be created"):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary path that replaces `path` if the block ends without an error."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with os_errors(path, "cannot be written"):
            yield temporary
            temporary.replace(path)
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise FuelsError(f"{path}: cannot be written ({reason})") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
