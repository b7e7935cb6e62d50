"""Which files a data source names: a file, several, a pattern such as daily/*.csv, or a folder."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fuels.errors import FuelsError

Source = str | Path | Sequence[str | Path]

TEXT = (".csv", ".tsv", ".txt")
PARQUET = (".parquet", ".pq")
EXCEL = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods")
_IN_FOLDERS = (".csv", ".tsv", *PARQUET, *EXCEL)
_SHOWN = 3


def suffix_of(file: Path) -> str:
    """The ending that says what a file is: .csv of a.csv.gz."""
    return Path(file.name.lower().removesuffix(".gz")).suffix


def parts_of(source: Source) -> list[str]:
    """The paths and patterns in a source; commas separate several."""
    if isinstance(source, Path):
        return [str(source)]
    if not isinstance(source, str):
        parts = [str(each) for each in source]
        return parts if len(parts) > 1 else parts_of(parts[0])
    if Path(source).exists() or "," not in source:
        return [source]
    return [part.strip() for part in source.split(",") if part.strip()]


def find_files(source: Source) -> list[Path]:
    """The files and folders that a source names, with patterns resolved."""
    found: list[Path] = []
    for part in parts_of(source):
        if Path(part).exists():
            found.append(Path(part))
        elif is_pattern(part):
            matches = sorted(glob.glob(part, recursive=True))  # noqa: PTH207 - in any folder
            if not matches:
                raise FuelsError(f"{part}: no file matches")
            found += [Path(match) for match in matches]
        else:
            raise FuelsError(f"{part}: no such file or folder")
    return list(dict.fromkeys(found))


def is_pattern(text: str) -> bool:
    return any(mark in text for mark in "*?[")


def tables_in(folder: Path) -> list[Path]:
    """The tables of a folder, sorted by name; all must have the same ending."""
    files = sorted(
        file
        for file in folder.iterdir()
        if file.is_file() and not file.name.startswith(".") and suffix_of(file) in _IN_FOLDERS
    )
    endings = sorted({suffix_of(file) for file in files})
    if not files:
        raise FuelsError(
            f"{folder.name}: the folder has no raw records of Telecom Italia, and no tables"
            f" ({', '.join(_IN_FOLDERS)})"
        )
    if len(endings) > 1:
        raise FuelsError(
            f"{folder.name}: the folder has files of several kinds ({', '.join(endings)}): name"
            f" those to read, such as '{folder.name}/*{endings[0]}'"
        )
    return files


def table_files(found: Sequence[Path]) -> list[Path]:
    """The files, and those in folders."""
    return [part for f in found for part in (tables_in(f) if f.is_dir() else [f])]


def source_title(source: Source) -> str:
    """A short name for a source: the file's, the folder's, or that of the folder of a pattern."""
    parts = parts_of(source)
    first = Path(parts[0])
    if is_pattern(parts[0]) and not first.exists():
        folders = [part for part in first.absolute().parts[1:-1] if not is_pattern(part)]
        title = folders[-1] if folders else "files"
    else:
        title = first.name if first.is_dir() else Path(first.name.removesuffix(".gz")).stem
    return title if len(parts) == 1 else f"{title}-and-{len(parts) - 1}-more"


def located(source: str) -> str:
    """The source with whole paths, so that it can be used from any folder."""
    return ",".join(str(Path(part).resolve()) for part in parts_of(source))


@dataclass(frozen=True)
class Place:
    """Where the rows of a table come from, for messages: a file, or several one after another."""

    name: str
    files: tuple[tuple[str, int], ...] = ()  # names and numbers of rows

    def row(self, index: int) -> str:
        """The place of a row, counted from 1 in its own file."""
        for file, rows in self.files:
            if index < rows:
                return f"{file}: row {index + 1}"
            index -= rows
        return f"{self.name}: row {index + 1}"

    def __str__(self) -> str:
        return self.name


def place_of(names: Sequence[str], rows: Sequence[int]) -> Place:
    if len(names) == 1:
        return Place(names[0])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return Place(", ".join(names[:_SHOWN]) + more, tuple(zip(names, rows, strict=True)))
