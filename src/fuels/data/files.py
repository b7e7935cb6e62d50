"""Files that are written as a whole or not at all, and sentences about what the system refuses."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fuels.errors import FuelsError


@contextmanager
def os_errors(place: object, problem: str) -> Iterator[None]:
    """Turn an operating-system error into a sentence: "place: problem (reason)"."""
    try:
        yield
    except OSError as error:
        raise FuelsError(f"{place}: {problem} ({error.strerror or error})") from None


@contextmanager
def table_errors(place: object, problem: str) -> Iterator[None]:
    """The same for errors of reading and joining tables, with the first line of what they say."""
    import polars as pl  # not for those who only read a config file: it takes 20 MB

    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        raise FuelsError(f"{place}: {problem} ({first_line(error)})") from None


def first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def make_folder(path: Path) -> None:
    """Create a folder where there is none."""
    with os_errors(path, "cannot be created"):
        path.mkdir(parents=True, exist_ok=True)


def write_text(path: Path, text: str) -> Path:
    """Write a text file as a whole, in a folder that is created if there is none."""
    make_folder(path.parent)
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def need_writable(*folders: Path | None) -> None:
    """Refuse folders that cannot be written to before hours are spent on their content."""
    for folder in folders:
        if folder is not None:
            write_text(folder / ".fuels-can-write", "").unlink()


def check_target(file: Path, formats: Sequence[str], overwrite: bool) -> None:
    """Refuse, before any work is done, a file that cannot or should not be written."""
    if file.suffix not in formats:
        raise FuelsError(f"{file}: can write {', '.join(formats)} files only")
    if not file.parent.is_dir():
        raise FuelsError(f"{file}: the folder {file.parent} does not exist")
    if file.is_dir():
        raise FuelsError(f"{file} is a folder")
    if not os.access(file.parent, os.W_OK):
        raise FuelsError(f"{file}: the folder {file.parent} is not writable")
    if file.exists() and not overwrite:
        raise FuelsError(f"{file} already exists; choose another name or give --overwrite")


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary path that replaces `path` if the block ends without an error."""
    import polars as pl  # not for those who only read a config file: it takes 20 MB

    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with os_errors(path, "cannot be written"):
            yield temporary
            temporary.replace(path)
    except pl.exceptions.PolarsError as error:
        raise FuelsError(f"{path}: cannot be written ({first_line(error)})") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
