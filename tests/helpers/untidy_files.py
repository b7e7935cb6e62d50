"""One panel of known content, written in the many ways in which people write tables."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

START, HOURS = datetime(2024, 2, 11), 72  # 11 to 13 February: the 13th is no month
TIMES = [START + timedelta(hours=i) for i in range(HOURS)]
CLIENTS = ("north", "south")
VALUES = np.array([[1000.5 + 40 * i, -0.25 * i] for i in range(HOURS)])
VALUES[5, 0] = np.nan
Options = dict[str, Any]
Case = Callable[[Path], tuple[Any, Options]]


def plain(value: float, missing: str = "") -> str:
    return missing if np.isnan(value) else f"{value:g}" if value == int(value) else f"{value}"


def german(value: float) -> str:
    return plain(value).replace(".", ",")


def grouped(value: float, point: str, mark: str) -> str:
    return "" if np.isnan(value) else f"{value:,.2f}".translate({44: mark, 46: point})


def long(
    header: str = "client,time,value",
    form: str | Callable[[datetime], str] = "%Y-%m-%d %H:%M",
    number: Callable[[float], str] = plain,
    times: Sequence[datetime] = TIMES,
    end: str = "\n",
    more: str = "",
) -> str:
    """A long table; its separator is that of the header."""
    mark = next(m for m in ";\t|," if m in header)
    write = form if callable(form) else lambda time: time.strftime(form)
    rows = [
        f"{client}{mark}{write(time)}{mark}{_quoted(number(value), mark)}{more}"
        for time, row in zip(times, VALUES, strict=False)
        for client, value in zip(CLIENTS, row, strict=True)
    ]
    return end.join([header, *rows, ""])


def wide(
    form: str = "%Y-%m-%d %H:%M", mark: str = ",", number: Callable[[float], str] = plain
) -> str:
    rows = [
        mark.join([time.strftime(form), *map(number, row)])
        for time, row in zip(TIMES, VALUES, strict=True)
    ]
    return "\n".join([mark.join(["time", *CLIENTS]), *rows, ""])


def _quoted(text: str, mark: str) -> str:
    return f'"{text}"' if mark in text else text


def text(content: str, encoding: str = "utf-8", name: str = "f.csv", **options: Any) -> Case:
    def case(folder: Path) -> tuple[Any, Options]:
        (folder / name).write_bytes(content.encode(encoding))
        return folder / name, options

    return case


def daily(folder: Path, form: str = "%d/%m/%Y %H:%M") -> list[Path]:
    """A file for each day; the days of two of them could be months."""
    files = []
    header, *rows = long(form=form).splitlines()
    for day in range(3):
        file = folder / f"2024-02-{11 + day}.csv"
        file.write_text("\n".join([header, *rows[48 * day : 48 * day + 48]]), encoding="utf-8")
        files.append(file)
    return files


def in_folder(choose: Callable[[Path, list[Path]], Any], **options: Any) -> Case:
    def case(folder: Path) -> tuple[Any, Options]:
        return choose(folder, daily(folder)), options

    return case


def zipped(folder: Path) -> tuple[Any, Options]:
    (folder / "f.csv.gz").write_bytes(gzip.compress(long().encode("utf-16")))
    return folder / "f.csv.gz", {}


def workbook(columns: Sequence[str], row: Callable[[datetime, str, float], list[Any]]) -> Case:
    """A long table in a workbook, below an empty row, with a second sheet."""

    def case(folder: Path) -> tuple[Any, Options]:
        xlsxwriter = pytest.importorskip("xlsxwriter")
        pytest.importorskip("fastexcel")
        with xlsxwriter.Workbook(folder / "f.xlsx") as book:
            sheet = book.add_worksheet("Data")
            forms = {
                kind: book.add_format({"num_format": form})
                for kind, form in (("datetime", "dd.mm.yyyy hh:mm"), ("time", "hh:mm"))
            }
            sheet.write_row(1, 0, columns)
            cells = [
                row(time, client, value)
                for time, values in zip(TIMES, VALUES, strict=True)
                for client, value in zip(CLIENTS, values, strict=True)
            ]
            for i, line in enumerate(cells, 2):
                for j, cell in enumerate(line):
                    if form := forms.get(type(cell).__name__):
                        sheet.write_datetime(i, j, cell, form)
                    elif not (isinstance(cell, float) and np.isnan(cell)):
                        sheet.write(i, j, cell)
            book.add_worksheet("About").write_column(0, 0, ["made by", "someone"])
        return folder / "f.xlsx", {}

    return case


def with_rows(*rows: str, **options: Any) -> Case:
    return text(long() + "".join(f"{row}\n" for row in rows), **options)


def off(seconds: int) -> Callable[[datetime], str]:
    """Times that are a few seconds off, differently for each hour."""
    return lambda time: str(time + timedelta(seconds=(time.hour * 7) % (2 * seconds + 1) - seconds))


def halves() -> str:
    """Two readings an hour, a few seconds off, whose mean is the hour's value."""
    lines = ["client,time,value"]
    for time, row in zip(TIMES, VALUES, strict=True):
        for client, value in zip(CLIENTS, row, strict=True):
            for minute, change in ((0, 1), (30, -1)):
                when = time + timedelta(minutes=minute, seconds=time.hour % 4 - 2)
                lines.append(f"{client},{when},{plain(value + change)}")
    return "\n".join(lines)


def events() -> str:
    """Three readings an hour at no regular times, whose mean is the hour's value."""
    random, lines = np.random.default_rng(0), ["client,time,value"]
    for time, row in zip(TIMES, VALUES, strict=True):
        for client, value in zip(CLIENTS, row, strict=True):
            for change in (3, -1, -2):
                seconds = int(random.integers(0, 3600))
                lines.append(
                    f"{client},{time + timedelta(seconds=seconds)},{plain(value + change)}"
                )
    return "\n".join(dict.fromkeys(lines))


def compact(time: datetime) -> str:
    return time.strftime("%Y%m%d%H")


def to_24(time: datetime) -> str:
    """Midnight as the end of the day before."""
    if time.hour:
        return time.strftime("%d.%m.%Y %H:%M")
    return (time - timedelta(days=1)).strftime("%d.%m.%Y 24:00")


def by_hour(time: datetime) -> str:
    return f"{time:%d.%m.%Y};{time.hour}"


def span(time: datetime) -> str:
    return f"{time:%d.%m.%Y %H:%M}-{time + timedelta(hours=1):%H:%M}"


def span_of_dates(time: datetime) -> str:
    return f"{time:%d.%m.%Y %H:%M} - {time + timedelta(hours=1):%d.%m.%Y %H:%M}"


def spread(time: datetime) -> str:
    return f"{time:%Y-%m-%d},{time:%H:%M}"


def american(time: datetime) -> str:
    return time.strftime("%m/%d/%Y %I:%M %p")
