"""Files as people have them, each with the same known content: read correctly, or refused.

READ lists ways of writing the same panel, with the options that they need. REFUSED lists what needs
an option, because it can be read in two ways or is damaged, and what the message must say.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fuels.data.panel import Panel
from fuels.data.readers import read_panel
from fuels.errors import FuelsError
from helpers.untidy_files import (
    CLIENTS,
    HOURS,
    START,
    VALUES,
    Case,
    Options,
    american,
    by_hour,
    compact,
    daily,
    events,
    german,
    grouped,
    halves,
    in_folder,
    long,
    off,
    plain,
    span,
    span_of_dates,
    spread,
    text,
    to_24,
    wide,
    with_rows,
    workbook,
    zipped,
)

CODED = long(number=lambda value: plain(value, "9999"))
READ: dict[str, Case] = {
    "long": text(long()),
    "wide": text(wide()),
    "one series": text("\n".join(row.rpartition(",")[0] for row in wide().splitlines())),
    # numbers
    "decimal comma": text(long("client;time;value", number=german)),
    "decimal comma, quoted": text(long(number=german)),
    "decimal comma, wide": text(wide(mark=";", number=german)),
    "1.234,50": text(long("client;time;value", number=lambda v: grouped(v, ",", "."))),
    "1,234.50": text(long(number=lambda v: grouped(v, ".", ","))),
    "1 234,50": text(long("client;time;value", number=lambda v: grouped(v, ",", "\u202f"))),
    "1'234.50": text(long("client;time;value", number=lambda v: grouped(v, ".", "'"))),
    "decimal comma, given": text(long("client;time;value", number=german), decimal="comma"),
    "words for missing": text(long(number=lambda v: plain(v, "n/a"))),
    "spreadsheet errors": text(long(number=lambda v: plain(v, "#N/A"))),
    "spreadsheet errors in German": text(long(number=lambda v: plain(v, "#NV"))),
    "codes for missing": text(CODED, missing="-999,9999"),
    "a minus sign": text(long(number=lambda v: plain(v).replace("-", "−"))),
    # times
    "31.12.2024": text(long(form="%d.%m.%Y %H:%M")),
    "31.12.24": text(long(form="%d.%m.%y %H:%M")),
    "31/12/2024": text(long(form="%d/%m/%Y %H:%M")),
    "12/31/2024 PM": text(long(form=american)),
    "12/31/2024, given": text(long(form=american), time_format="%m/%d/%Y %I:%M %p"),
    "31 Dec 2024": text(long(form="%d %b %Y %H:%M:%S")),
    "Dec 31, 2024": text(long("client;time;value", form="%B %d, %Y %I:%M %p")),
    "2024.12.31": text(long(form="%Y.%m.%d %H:%M")),
    "20241231T2300": text(long(form="%Y%m%dT%H%M")),
    "20241231T230000": text(long(form="%Y%m%dT%H%M%S")),
    "spans": text(long("client;time;value", form=span)),
    "spans with two dates": text(long("client;time;value", form=span_of_dates)),
    "24:00": text(long(form=to_24)),
    "no minutes": text(long(form=compact), time_format="%Y%m%d%H"),
    "fractions of zero": text(long(form="%Y-%m-%dT%H:%M:%S.000")),
    "date and hour": text(long("Client;Date;Hour;Value", form=by_hour)),
    "date and time": text(long("client,date,time,value", form=spread)),
    "date and time, named": text(
        long("client,day of it,clock,value", form=spread), time="Day of it,clock"
    ),
    "a few seconds off": text(long(form=off(20)), round_times="1min"),
    "a few seconds off, resampled": text(halves(), resample="1h", how="mean"),
    "events": text(events(), resample="1h", how="mean"),
    # columns
    "spaces and capitals": text(long(" Client ID ;Time Stamp; VALUE (kWh)")),
    "German names": text(long("Sensor;Zeitstempel;Wert", number=german)),
    "unused columns": text(long("client,time,reading,unit,quality", more=",kWh,ok")),
    "named columns": text(
        long("Meter No,Read At,Amount"), client="meter no", time="read at", value="amount"
    ),
    "empty columns at the end": text(long("client;time;value;;", more=";;")),
    # files
    "UTF-8 with a mark": text(long(), "utf-8-sig"),
    "UTF-16": text(long("client\ttime\tvalue"), "utf-16", "f.txt"),
    "UTF-16 without a mark": text(long(), "utf-16-be"),
    "UTF-16, zipped": zipped,
    "a sep= line": text("sep=;\n" + long("client;time;value", number=german)),
    "a sep= line in UTF-16": text("sep=\t\n" + long("client\ttime\tvalue"), "utf-16"),
    "bars": text(long("client|time|value")),
    "line ends of Windows": text(long(end="\r\n\r\n")),
    "Excel": workbook(("Client ID", "Time", "Value"), lambda t, c, v: [c, t, v]),
    "Excel, date and time": workbook(
        ("Client", "Datum", "Uhrzeit", "Wert"),
        lambda t, c, v: [c, t.replace(hour=0), t.time(), v],
    ),
    "Excel, text": workbook(
        ("Client", "Zeit", "Wert"),
        lambda t, c, v: [c, t.strftime("%d.%m.%Y %H:%M"), german(v) or "n/a"],
    ),
    "several files": in_folder(lambda _, files: files),
    "several files in a text": in_folder(lambda _, files: ",".join(map(str, files))),
    "a pattern": in_folder(lambda folder, _: str(folder / "2024-*.csv")),
    "a folder": in_folder(lambda folder, _: folder),
    # rows
    "identical rows": with_rows("north,2024-02-11 00:00,1000.5", "south,2024-02-11 00:00,0"),
    "revised rows": text(
        long().replace("north,2024-02-11 01:00,1040.5", "north,2024-02-11 01:00,7")
        + "north,2024-02-11 01:00,1040.5\n",
        duplicates="last",
    ),
    "parts to add": with_rows("north,2024-02-11 01:00,0", duplicates="sum"),
}  # fmt: skip


def _with_row(place: int, row: str) -> str:
    lines = long("client;time;value").splitlines()
    return "\n".join([*lines[:place], row, *lines[place:]])


AMBIGUOUS = [START.replace(day=1) + timedelta(hours=i) for i in range(HOURS)]
REFUSED: dict[str, tuple[Case, str]] = {
    "day or month": (
        text(long(form="%d/%m/%Y %H:%M", times=AMBIGUOUS)),
        r"could have the day or the month first: .*time_format='%d/%m/%Y %H:%M' or"
        r" time_format='%m/%d/%Y %H:%M'",
    ),
    "day or year": (
        text(long(form="%d-%m-%y")),
        "could have the day or the year first: say which with time_format='%d-%m-%y'",
    ),
    "thousand or decimal": (
        text("client;time;value\na;2024-02-11;1,234\na;2024-02-12;2,345\n"),
        r"'1,234' in column 'value' could be 1234 or 1.234: .*thousands='comma' or decimal='comma'",
    ),
    "thousand or decimal point": (
        text("client;time;value\na;2024-02-11;1.234\na;2024-02-12;987\n"),
        r"'1.234' in column 'value' could be 1.234 or 1234: .*decimal='point' or thousands='point'",
    ),
    "rows that differ": (
        with_rows("north,2024-02-11 01:00,9"),
        r"client north has more than one row at 2024-02-11 01:00, with the values 1040.5 and 9"
        r".* duplicates='first', last, sum or mean",
    ),
    "which value": (
        text(long("client,time,load,count", more=",5")),
        "which of the columns 'load', 'count' holds the values.* value='NAME'",
    ),
    "a long table without a client": (
        text(long("wer,wann,wert"), time="wann"),
        r"column 'wer' holds text such as 'north': if it names the clients, give client='wer'",
    ),
    "a long table of numbered clients": (
        text(long("nr,wann,wert").replace("north", "1").replace("south", "2"), time="wann"),
        r"more than one row at 2024-02-11 00:00.*if a column names the client, give client='NAME'",
    ),
    "no usual name for times": (
        text(long("client,wann,value")),
        "no time column among 'client', 'wann', 'value': name it with time='wann'",
    ),
    "dates that could be seconds": (
        text(long(form=compact)),
        "numbers such as 2024021100, which look like dates: .* time_format='%Y%m%d%H'",
    ),
    "a few seconds off": (
        text(long(form=off(20))),
        r"does not fall on the regular step of 1h: .*round_times='1h'",
    ),
    "a fraction": (
        text(long(form="%Y-%m-%d %H:%M:%S.250")),
        r"has a fraction; .* round_times='1s'",
    ),
    "a row of units": (
        text(_with_row(1, "-;-;kWh")),
        "row 1 has '-' as its time: delete rows .* units",
    ),
    "a row of totals": (text(_with_row(145, "Total;;99")), "row 145 has no time .* totals"),
    "a second header": (text(_with_row(9, "client;time;value")), "row 9 .* a second header"),
    "lines above the header": (
        text("Report;of 2024\n" + long("client;time;value")),
        "more fields than .* 'Report', 'of 2024': delete lines above the column names",
    ),
    "a comment above the header": (
        text("# by X\n" + long()),
        "delete lines above the column names",
    ),
    "another encoding": (text(long("cliént,time,value"), "latin-1"), "save it in UTF-8"),
    "a wrong format": (
        text(long(form="%d.%m.%Y %H:%M"), time_format="%Y-%m-%d"),
        "row 1 has '11.02.2024 00:00' as its time, which is not written as time_format='%Y-%m-%d'",
    ),
}  # fmt: skip


def check(panel: Panel, case: str) -> None:
    expected, ids = VALUES, CLIENTS
    if case == "one series":
        expected, ids = VALUES[:, :1], CLIENTS[:1]
    assert panel.ids == ids and panel.step_seconds == 3600 and panel.timezone is None
    assert panel.start == np.datetime64(START, "s")
    assert np.allclose(panel.values, expected, rtol=0, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("case", READ)
def test_a_file_is_read(case: str, tmp_path: Path) -> None:
    source, options = READ[case](tmp_path)
    check(read_panel(source, **options), case)


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_can_be_read_in_two_ways_is_refused(case: str, tmp_path: Path) -> None:
    make, sentence = REFUSED[case]
    source, options = make(tmp_path)
    with pytest.raises(FuelsError, match=sentence) as error:
        read_panel(source, **options)
    assert "\n" not in str(error.value) and "--" not in str(error.value)


def test_there_are_many_cases() -> None:
    assert len(READ) >= 36 and len(READ) + len(REFUSED) >= 40


# -- what the notes say ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "note"),
    [
        ("unused columns", "columns not used: 'unit', 'quality'"),
        ("31/12/2024", "dates were read with the day first, as '13/02/2024 00:00' shows"),
        ("12/31/2024 PM", "dates were read with the month first, as '02/13/2024 12:00 AM' shows"),
        (
            "1.234,50",
            "numbers were read with a comma before decimals and a point between thousands",
        ),
        ("spans", "times are spans such as '11.02.2024 00:00-01:00': the start of each was used"),
        ("date and hour", "times are in the columns 'Date' and 'Hour'"),
        ("identical rows", "2 duplicate rows (same client, time and value) were dropped"),
        ("revised rows", "1 duplicate row (same client and time): the last row was used"),
        ("a few seconds off", "times were rounded to 1min, by at most 20 s"),
        ("events", "rows at irregular times: resampled to 1h by mean"),
        ("Excel", "f.xlsx: only the sheet 'Data' was read, not 'About'"),
        ("a folder", "3 files were read as one table"),
        ("codes for missing", "1 values equal to -999 or 9999 were marked as missing"),
    ],
)
def test_notes_say_what_was_done(case: str, note: str, tmp_path: Path) -> None:
    source, options = READ[case](tmp_path)
    notes = read_panel(source, **options).notes
    assert any(note in each for each in notes), notes


def test_times_in_utc_and_with_offsets(tmp_path: Path) -> None:
    named, _ = text(long("client,Timestamp (UTC),value"))(tmp_path)
    assert read_panel(named).timezone == "UTC"
    offset, _ = text(long(form="%Y-%m-%d %H:%M+08:00"))(tmp_path)
    panel = read_panel(offset)
    assert panel.timezone == "Etc/GMT-8" and panel.start == np.datetime64("2024-02-10T16:00:00")
    local, _ = text(long())(tmp_path)
    assert read_panel(local, timezone="UTC+8").start == panel.start


def test_hours_from_1_to_24(tmp_path: Path) -> None:
    rows = [f"{d}.02.2024;{h};{24 * (d - 11) + h}" for d in (11, 12) for h in range(1, 25)]
    (tmp_path / "f.csv").write_text("\n".join(["Datum;Stunde;kWh", *rows]), encoding="utf-8")
    panel = read_panel(tmp_path / "f.csv")
    assert panel.start == np.datetime64("2024-02-11T01:00:00")
    assert panel.values[:, 0].tolist() == list(range(1, 49))


def test_rows_of_several_files_are_named_by_their_file(tmp_path: Path) -> None:
    files = daily(tmp_path)
    files[1].write_text(files[1].read_text().replace("south,12/02/2024 00:00,-6", "south,,1", 1))
    with pytest.raises(FuelsError, match=r"^2024-02-12.csv: row 2 has no time"):
        read_panel(tmp_path)
    (tmp_path / "x.parquet").write_bytes(b"")
    with pytest.raises(FuelsError, match=r"files of several kinds .*: name those to read"):
        read_panel(tmp_path)
    files[1].write_text("time,a\n2024-02-12,1\n2024-02-13,1\n")
    with pytest.raises(FuelsError, match=r"2024-02-12.csv: its columns .* differ from those of"):
        read_panel(files)


def test_incomplete_steps_of_irregular_rows_are_dropped(tmp_path: Path) -> None:
    times = [START + timedelta(minutes=50, seconds=m * m + 31 * m) for m in range(100)]
    rows = [f"{time},1" for time in times]
    (tmp_path / "f.csv").write_text("\n".join(["time,a", *rows]), encoding="utf-8")
    panel = read_panel(tmp_path / "f.csv", resample="1h", how="sum")
    inside = [sum(time.hour == hour for time in times) for hour in (1, 2, 3)]
    assert panel.start == np.datetime64("2024-02-11T01:00:00")
    assert panel.values[:, 0].tolist() == inside


def test_codes_are_marked_before_rows_are_combined(tmp_path: Path) -> None:
    lines = "a,2024-02-11,5\na,2024-02-11,-1\na,2024-02-12,1\na,2024-02-12,3\n"
    (tmp_path / "f.csv").write_text(f"client,time,value\n{lines}", encoding="utf-8")
    panel = read_panel(tmp_path / "f.csv", missing=-1, duplicates="mean")
    assert panel.values[:, 0].tolist() == [5, 2]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"decimal": "x"}, "^decimal 'x' is not known: choose '.', ',', point, comma"),
        ({"thousands": "-"}, "^thousands '-' is not known"),
        ({"duplicates": "all"}, "^duplicates 'all' is not known: choose error, same, first"),
        ({"decimal": ",", "thousands": "comma"}, "cannot be the same mark"),
        ({"round_times": "x"}, "step 'x' is not understood"),
        ({"time_format": "%Q"}, "time_format"),
    ],
)
def test_wrong_options(options: Options, sentence: str, tmp_path: Path) -> None:
    source, _ = text(long())(tmp_path)
    with pytest.raises(FuelsError, match=sentence):
        read_panel(source, **options)


def test_frames_take_the_same_options() -> None:
    from fuels.config import Data
    from fuels.data.loading import frame_panel

    rows = long(form="%d.%m.%Y %H:%M", number=german, header="wo;wann;wert").splitlines()
    names, *lines = (row.split(";") for row in rows)
    frame = pl.DataFrame(lines, schema=names, orient="row")
    data = Data(client_column="wo", time_column="wann", duplicates="error")
    check(frame_panel(frame, data), "frame")
    with pytest.raises(FuelsError, match="more than one row at 2024-02-11 00:00"):
        frame_panel(pl.concat([frame, frame]), data)
