"""CSV files in their many forms: encodings, separators, a `sep=` line, and what their header is.

Separators are comma, semicolon, tab or bar; text is UTF-8 or UTF-16, with or without a byte order
mark; files may be gzipped. What is not UTF-8 is converted in memory.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fuels.data.files import first_line
from fuels.data.header import Header, header_names, listed, refuse_doubled
from fuels.data.table_options import TableOptions
from fuels.errors import FuelsError

SEPARATORS = ",;\t|"
_SNIFFED = 1 << 16  # bytes that decide on the encoding
_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


@dataclass(frozen=True)
class TextFile:
    """A CSV file and how it is written."""

    path: Path
    names: tuple[str, ...]
    separator: str
    skipped: int  # lines above the header
    content: bytes | None  # as UTF-8, if the file is not

    def read(
        self, columns: Sequence[str], numeric: Sequence[str] = (), rows: int | None = None
    ) -> pl.DataFrame:
        """Some columns of the file: numbers where asked for, text elsewhere ("007" stays)."""
        schema: dict[str, Any] = {n: pl.Float64 if n in numeric else pl.String for n in self.names}
        chosen = [i for i, name in enumerate(self.names) if name in set(columns)]
        table = pl.read_csv(
            self.path if self.content is None else io.BytesIO(self.content),
            schema=schema,
            columns=chosen,
            separator=self.separator,
            has_header=False,  # its names were read already
            skip_lines=self.skipped + 1,
            n_rows=rows,
            missing_columns="insert",  # a line may be short
            glob=False,
        )
        return table.filter(~pl.all_horizontal(pl.all().is_null()))  # blank lines


def open_text(path: Path, given: TableOptions) -> TextFile:
    """Find out how a CSV file is written, and its column names."""
    start, content = _start(path)
    lines = io.StringIO(start, newline=None)
    first = lines.readline().rstrip("\n")
    skipped, separator = 0, ""
    if first.lower().startswith("sep=") and len(first) <= 5:  # as Excel writes it
        separator, skipped = first[4:], 1
        separator = separator or "\t"
        first = lines.readline().rstrip("\n")
    if not first.strip():
        raise FuelsError(f"{path.name}: the file is empty or does not start with column names")
    separator = separator or max(SEPARATORS, key=first.count)
    names = header_names(next(csv.reader([first], delimiter=separator)))
    if len(names) == 1 and not names[0].isidentifier():  # an unknown separator
        raise FuelsError(
            f"{path.name}: the first line, '{names[0]}', has only one column: separate columns by"
            " comma, semicolon or tab, and delete lines above the column names"
        )
    Header(names, path.name, given).check()
    refuse_doubled(names, path.name)
    return TextFile(path, tuple(names), separator, skipped, content)


def _start(path: Path) -> tuple[str, bytes | None]:
    """The first lines, and the whole file as UTF-8 if it is in another encoding."""
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opener(path, "rb") as file:
            start = file.read(_SNIFFED)
            encoding = _encoding(start)
            if encoding is None:
                ends = max(start.rfind(b"\n"), start.rfind(b"\r")) + 1
                start = start[: ends or len(start)]
                return start.decode("utf-8-sig"), None
            text = (start + file.read()).decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise not_utf8(path) from None
    except (gzip.BadGzipFile, EOFError) as error:
        raise FuelsError(f"{path.name}: not readable as gzip ({error})") from None
    return text[:_SNIFFED], text.encode()


def _encoding(start: bytes) -> str | None:
    """The encoding, by the byte order mark or by the zero bytes of UTF-16; None: UTF-8."""
    for mark, name in _MARKS.items():
        if start.startswith(mark):
            return name
    zeros = start[0:200:2].count(0), start[1:200:2].count(0)
    half = len(start[:200]) // 2
    if half > 1 and max(zeros) > half // 2 and min(zeros) == 0:
        return "utf-16-be" if zeros[0] else "utf-16-le"
    return None


def not_utf8(path: Path) -> FuelsError:
    return FuelsError(f"{path.name}: not readable as text: save it in UTF-8")


def csv_error(file: TextFile, error: Exception) -> FuelsError:
    """A parser's error in words."""
    name = file.path.name
    if "utf-8" in str(error):
        return not_utf8(file.path)
    if "more fields" in str(error) or "n_extra" in str(error):
        comma = (
            "if decimals are written with a comma, separate columns by semicolons, or write"
            " decimals with a point; "
        )
        return FuelsError(
            f"{name}: a row has more fields than the line of column names, {listed(file.names)}:"
            f" {comma if file.separator == ',' else ''}delete lines above the column names"
        )
    return FuelsError(f"{name}: not readable as CSV ({first_line(error)})")
