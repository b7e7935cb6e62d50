"""Bad input ends in one clear sentence that names the place; nothing is overwritten."""

from dataclasses import replace

import numpy as np
import pytest

from fuels.data.panel import Panel
from fuels.data.readers import read_panel
from fuels.data.writers import write_panel
from fuels.errors import FuelsError

HEAD = "client,time,value\n"
GOOD = HEAD + "a,2013-11-01T00:00,1\na,2013-11-01T01:00,2\na,2013-11-01T02:00,3\n"

CSV = {
    "empty": ("", "the file is empty"),
    "blank": ("\n\n", "does not start with column names"),
    "header only": (HEAD, "there are no rows"),
    "no time column": (
        "client,when,value\na,2013-11-01,1\n",
        "no time column among 'client', 'when'",
    ),
    "two time columns": ("client,time,ds,value\n", "'time', 'ds' could each be the time"),
    "which value": ("client,time,u,v\na,2013-11-01,1,2\n", "which of the columns 'u', 'v'"),
    "only times": ("time\n2013-11-01\n", "no value column"),
    "doubled column": ("time,a,a\n2013-11-01,1,2\n", "two columns named 'a'"),
    "duplicate": (
        GOOD + "a,2013-11-01T01:00,9\n",
        "client a has more than one row at 2013-11-01 01:00",
    ),
    "off the grid": (
        GOOD + "a,2013-11-01T02:10,9\n",
        "time 2013-11-01 02:10 of client a does not fall on",
    ),
    "no time": (GOOD + "a,,9\n", "row 4 has no time"),
    "not a time": (GOOD + "a,yesterday,9\n", "row 4 has 'yesterday' as its time"),
    "counter as time": (HEAD + "a,1,2\na,2,3\n", "numbers such as 1 and no times"),
    "day as number": (HEAD + "a,20131101,2\n", "numbers such as 20131101, which look like dates"),
    "hour as number": (HEAD + "a,2013110123,2\na,2013110124,2\n", "2013110123, which look like"),
    "minute as number": (HEAD + "a,201311010000,2\n", "which look like dates"),
    "second as number": (HEAD + "a,20131101000000,2\n", "which look like dates"),
    "epoch in no unit": (HEAD + "a,20139901000000,2\n", "20139901000000 and no times since 2000"),
    "two units": (HEAD + "a,1383260400000,2\na,1383264000,2\n", "1383264000 and no times"),
    "year": (HEAD + "a,0001-01-01T00:00,2\na,0001-01-01T01:00,2\n", "a time is in the year 1"),
    "column without a name": ("time,a,\n2013-11-01,1,5\n2013-11-02,1,6\n", "a column has no name"),
    "too large": (
        GOOD.replace(",2\n", ",-1e31\n"),
        r"client a has the value -1e\+31 at 2013-11-01 01:00",
    ),
    "too many digits": (HEAD + f"a,{'9' * 40},2\n", "and no times"),
    "fraction": (
        GOOD + "a,2013-11-01T03:00:00.5,1\n",
        "the time 2013-11-01T03:00:00.5 has a fraction",
    ),
    "fraction of a microsecond": (
        GOOD + "a,2013-11-01T03:00:00.0000001,1\n",
        "the time 2013-11-01T03:00:00.0000001 has a fraction",
    ),
    "fraction and offset": (
        HEAD + "a,2013-11-01T00:00:00.0000001Z,1\na,2013-11-01T01:00:00Z,1\n",
        "00.0000001Z has a fraction",
    ),
    "some offsets": (GOOD + "a,2013-11-01T03:00+01:00,1\n", "some times have an offset"),
    "one time": (HEAD + "a,2013-11-01,1\nb,2013-11-01,1\n", "the same time, 2013-11-01 00:00"),
    "not a number": (GOOD.replace(",2\n", ",two\n"), "row 2 has 'two' in column 'value'"),
    "infinite": (
        GOOD.replace(",2\n", ",inf\n"),
        "client a has an infinite value at 2013-11-01 01:00",
    ),
    "no client": (GOOD + ",2013-11-01T03:00,1\n", "row 4 names no client"),
    "wrong date": (GOOD + "a,1970-01-01T00:00,1\nb,9999-01-01T00:00,1\n", "is a date wrong"),
    "too many fields": (
        GOOD + "a,2013-11-01T03:00,1,2,3\n",
        "a row has more fields than the line of column names",
    ),
}


@pytest.mark.parametrize("case", CSV)
def test_csv(tmp_path, case):
    text, sentence = CSV[case]
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FuelsError, match=sentence) as error:
        read_panel(path)
    assert "bad.csv" in str(error.value) and "\n" not in str(error.value)


def test_a_wide_table_names_column_and_row(tmp_path):
    path = tmp_path / "w.csv"
    path.write_text("time,a,b\n2013-11-01,1,2\n2013-11-02,3,x\n", encoding="utf-8")
    with pytest.raises(FuelsError, match="row 2 has 'x' in column 'b'"):
        read_panel(path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"time": "when"}, "no column 'when'"),
        ({"ids": ["zz"]}, "no client zz"),
        ({"resample": "2h"}, "resample needs how as well: how='sum'"),
        ({"how": "sum"}, "how needs resample as well, such as resample='1h'"),
        ({"resample": "2h", "how": "max"}, "^how 'max' is not known"),
        ({"resample": "1x", "how": "sum"}, "step '1x'"),
        ({"resample": "30min", "how": "sum"}, "not a multiple"),
        ({"timezone": "Rome"}, "^timezone: time zone 'Rome' is not known"),
        ({"timezone": "/etc/passwd"}, "is not known"),
        ({"start": "2014-01-01"}, "no data from 2014-01-01"),
        ({"missing": "x"}, "^missing 'x' is not a number"),
        ({"activity": "net"}, "good.csv: activity is for raw"),
        ({"coordinates": "nowhere.csv"}, "nowhere.csv: not readable"),
        ({"coordinates": "."}, "is a folder, but coordinates needs a CSV file"),
    ],
)
def test_options(tmp_path, options, sentence):
    path = tmp_path / "good.csv"
    path.write_text(GOOD, encoding="utf-8")
    assert read_panel(path).values[:, 0].tolist() == [1, 2, 3]
    with pytest.raises(FuelsError, match=sentence):
        read_panel(path, **options)


def test_a_time_that_does_not_exist_in_the_zone(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text(HEAD + "a,2013-03-31T02:30,1\na,2013-03-31T03:30,2\n", encoding="utf-8")
    with pytest.raises(FuelsError, match="row 1 has the time 2013-03-31 02:30:00, which does not"):
        read_panel(path, timezone="Europe/Rome")


def test_a_repeated_hour_without_a_zone_suggests_one(tmp_path):
    path = tmp_path / "s.csv"
    times = ["01:00", "02:00", "02:00", "03:00"]
    rows = "".join(f"a,2013-10-27T{t},{i}\n" for i, t in enumerate(times))
    path.write_text(HEAD + rows, encoding="utf-8")
    with pytest.raises(
        FuelsError, match=r"at 2013-10-27 02:00, with the values 1 and 2 .*timezone"
    ):
        read_panel(path)
    assert read_panel(path, timezone="Europe/Rome").length == 4


def test_three_rows_in_a_repeated_hour_are_duplicates(tmp_path):
    path = tmp_path / "s.csv"
    times = ["01:00", "02:00", "02:00", "02:00", "03:00"]
    rows = "".join(f"a,2013-10-27T{t},{i}\n" for i, t in enumerate(times))
    path.write_text(HEAD + rows, encoding="utf-8")
    with pytest.raises(FuelsError, match="more than one row at 2013-10-27 02:00"):
        read_panel(path, timezone="Europe/Rome")


@pytest.mark.parametrize(
    ("layout", "of"),
    [("client,time,value\na,{},1\n", "row 2 of client a is"), ("time,a\n{},1\n", "row 2 is")],
)
def test_a_repeated_hour_needs_rows_in_chronological_order(tmp_path, layout, of):
    path = tmp_path / "s.csv"
    head, row = layout.split("\n")[:2]
    times = [f"2013-10-27T{t}" for t in ("03:00", "02:00", "02:00", "01:00")]
    path.write_text("\n".join([head, *map(row.format, times)]), encoding="utf-8")
    with pytest.raises(FuelsError, match=f"{of} not in chronological order, so the hour"):
        read_panel(path, timezone="Europe/Rome")
    # Half hours sorted by the clock have lost the order that would tell them apart.
    times = [f"2013-10-27T{t}" for t in ("02:00", "02:00", "02:30", "02:30")]
    path.write_text("\n".join([head, *map(row.format, times)]), encoding="utf-8")
    with pytest.raises(FuelsError, match="repeats on 2013-10-27 is ambiguous"):
        read_panel(path, timezone="Europe/Rome")


def test_local_days_are_not_regular_in_a_zone(tmp_path):
    path = tmp_path / "d.csv"
    rows = "".join(f"a,2013-10-{day},{day}\n" for day in range(22, 30))
    path.write_text(HEAD + rows, encoding="utf-8")
    assert read_panel(path).length == 8
    with pytest.raises(FuelsError, match=r"regular step of 1d: .* omit timezone"):
        read_panel(path, timezone="Europe/Rome")


def test_a_large_number_may_mark_a_missing_value(tmp_path):
    path = tmp_path / "fill.csv"
    path.write_text(GOOD.replace(",2\n", ",9.96921e36\n"), encoding="utf-8")
    values = read_panel(path, missing="9.96921e36").values[:, 0]
    assert np.array_equal(values, [1, np.nan, 3], equal_nan=True)
    with pytest.raises(FuelsError, match=r"fill.csv: client a .* \(missing gives"):
        read_panel(path)


def test_coordinates_must_name_every_client(tmp_path):
    good, cells = tmp_path / "good.csv", tmp_path / "cells.csv"
    good.write_text(GOOD, encoding="utf-8")
    cells.write_text("cell_id,lng,lat\nb,1,2\n", encoding="utf-8")
    with pytest.raises(FuelsError, match=r"cells.csv: no coordinates for client a"):
        read_panel(good, coordinates=cells)
    cells.write_text("cell_id,x,y\na,1,2\n", encoding="utf-8")
    with pytest.raises(FuelsError, match="need the columns client"):
        read_panel(good, coordinates=cells)


@pytest.mark.parametrize(
    ("lng", "lat", "message"),
    [
        ("9.2", "north", "client b has the latitude 'north', which is not a number of degrees"),
        ("inf", "45.1", "client b has the longitude 'inf'"),
        ("9.2", "-95.5", "client b has the latitude '-95.5', .* between -90 and 90"),
        ("514800.5", "45.1", "client b has the longitude '514800.5', .* between -180 and 360"),
    ],
)
def test_coordinates_out_of_range_are_rejected(tmp_path, lng, lat, message):
    rows = [("a", "9.1", "45.0"), ("b", lng, lat)]
    table, cells = tmp_path / "table.csv", tmp_path / "cells.csv"
    times = ("2020-01-01", "2020-01-02")
    long = "".join(f"{c},{t},1,{x},{y}\n" for c, x, y in rows for t in times)
    table.write_text(f"client,time,value,lng,lat\n{long}", encoding="utf-8")
    with pytest.raises(FuelsError, match=f"^table.csv: {message}"):
        read_panel(table)
    cells.write_text("".join(["cell,lon,lat\n", *(f"{c},{x},{y}\n" for c, x, y in rows)]))
    table.write_text("time,a,b\n2020-01-01,1,1\n2020-01-02,1,2\n", encoding="utf-8")
    with pytest.raises(FuelsError, match=f"^cells.csv: {message}"):
        read_panel(table, coordinates=cells)


def test_coordinates_in_arrays_and_metadata_are_checked(tmp_path):
    places = np.array([[9.1, 45.0], [9.2, 245.0]])
    panel = replace(small("a", "b"), coordinates=places)
    for name in ("p.npz", "p.parquet"):
        write_panel(panel, tmp_path / name)
        with pytest.raises(FuelsError, match=f"^{name}: client b has the latitude '245'"):
            read_panel(tmp_path / name)
    write_panel(replace(panel, coordinates=np.array([[9, 45], [9, np.nan]])), tmp_path / "q.npz")
    assert read_panel(tmp_path / "q.npz").coordinates is None


def test_one_missing_coordinate_drops_all_coordinates(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "client,time,value,lng,lat\na,2020-01-01,1,9,45\nb,2020-01-01,1,NA,45\n"
        "a,2020-01-02,1,9,45\nb,2020-01-02,1,,45\n",
        encoding="utf-8",
    )
    assert read_panel(path).coordinates is None


# -- writing -------------------------------------------------------------------------------------


def small(*ids: str) -> Panel:
    return Panel(
        np.ones((2, len(ids))), ids, np.datetime64("2020-01-01", "s"), np.timedelta64(60, "s")
    )


def test_an_existing_file_is_replaced_only_with_overwrite(tmp_path):
    target = tmp_path / "p.csv"
    target.write_text("precious", encoding="utf-8")
    with pytest.raises(FuelsError, match="--overwrite"):
        write_panel(small("a"), target)
    assert target.read_text(encoding="utf-8") == "precious"
    write_panel(small("a"), target, overwrite=True)
    assert read_panel(target).ids == ("a",)
    assert [p.name for p in tmp_path.iterdir()] == ["p.csv"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("p.xlsx", "can write"), ("no/p.csv", "does not exist"), ("d.csv", "is a folder")],
)
def test_targets_that_cannot_be_written(tmp_path, name, sentence):
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(FuelsError, match=sentence):
        write_panel(small("a"), tmp_path / name, overwrite=True)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_a_failed_write_keeps_the_old_file_and_leaves_no_partial_file(
    tmp_path, monkeypatch, suffix
):
    target = tmp_path / f"p{suffix}"
    write_panel(small("old"), target)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fuels.data.writers._batches", full)
    monkeypatch.setattr("fuels.data.writers.npz_arrays", full)
    with pytest.raises(FuelsError, match=r"cannot be written .*No space left on device"):
        write_panel(small("new"), target, overwrite=True)
    assert read_panel(target).ids == ("old",)
    assert [p.name for p in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize("ids", [("id", "b"), ("date", "b"), ("fuels_unit", "b"), ("time", "b")])
def test_a_wide_table_that_cannot_be_read_back_is_rejected(tmp_path, ids):
    with pytest.raises(FuelsError, match="--layout long"):
        write_panel(small(*ids), tmp_path / "p.csv", layout="wide")
    write_panel(small(*ids), tmp_path / "p.csv", layout="long")
    assert read_panel(tmp_path / "p.csv").ids == tuple(sorted(ids))
