"""Bad input ends in one clear sentence that names the place; nothing is overwritten."""

import numpy as np
import polars as pl
import pytest

from fuels.data.panel import Panel
from fuels.data.readers import read_panel
from fuels.data.tables import panel_from_frame
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
    "only times": ("time\n2013-11-01\n", "no column of values"),
    "doubled column": ("time,a,a\n2013-11-01,1,2\n", "two columns named 'a'"),
    "duplicate": (
        GOOD + "a,2013-11-01T01:00,9\n",
        "client a has more than one row at 2013-11-01 01:00",
    ),
    "off the grid": (
        GOOD + "a,2013-11-01T02:10,9\n",
        "time 2013-11-01 02:10 of client a does not lie",
    ),
    "no time": (GOOD + "a,,9\n", "row 4 has no time"),
    "not a time": (GOOD + "a,yesterday,9\n", "row 4 has 'yesterday' as its time"),
    "counter as time": (HEAD + "a,1,2\na,2,3\n", "numbers such as 1 and no times"),
    "date as number": (HEAD + "a,20131101,2\n", "numbers such as 20131101 and no times"),
    "too many digits": (HEAD + f"a,{'9' * 40},2\n", "and no times"),
    "fraction": (
        GOOD + "a,2013-11-01T03:00:00.5,1\n",
        "the time 2013-11-01T03:00:00.5 has a fraction",
    ),
    "some offsets": (GOOD + "a,2013-11-01T03:00+01:00,1\n", "some times have an offset"),
    "one time": (HEAD + "a,2013-11-01,1\nb,2013-11-01,1\n", "the one time 2013-11-01 00:00"),
    "not a number": (GOOD.replace(",2\n", ",two\n"), "row 2 has 'two' in column 'value'"),
    "infinite": (
        GOOD.replace(",2\n", ",inf\n"),
        "client a has an infinite value at 2013-11-01 01:00",
    ),
    "no client": (GOOD + ",2013-11-01T03:00,1\n", "row 4 names no client"),
    "wrong date": (GOOD + "a,1970-01-01T00:00,1\nb,9999-01-01T00:00,1\n", "is a date wrong"),
    "too many fields": (GOOD + "a,2013-11-01T03:00,1,2,3\n", "not readable as CSV"),
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
        ({"resample": "2h"}, "--resample needs --how"),
        ({"how": "sum"}, "give --resample too"),
        ({"resample": "2h", "how": "max"}, "--how 'max' is not known"),
        ({"resample": "1x", "how": "sum"}, "step '1x'"),
        ({"resample": "30min", "how": "sum"}, "no multiple"),
        ({"timezone": "Rome"}, "time zone 'Rome' is not known"),
        ({"timezone": "/etc/passwd"}, "is not known"),
        ({"start": "2014-01-01"}, "nothing from 2014-01-01"),
        ({"missing": "x"}, "--missing 'x' is no number"),
        ({"activity": "net"}, "--activity chooses from raw"),
        ({"coordinates": "nowhere.csv"}, "nowhere.csv: not readable"),
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
    path.write_text(HEAD + "".join(f"a,2013-10-27T{t},1\n" for t in times), encoding="utf-8")
    with pytest.raises(FuelsError, match=r"at 2013-10-27 02:00 .*give --timezone"):
        read_panel(path)
    assert read_panel(path, timezone="Europe/Rome").length == 4


def test_three_rows_in_a_repeated_hour_are_one_too_many(tmp_path):
    path = tmp_path / "s.csv"
    times = ["01:00", "02:00", "02:00", "02:00", "03:00"]
    path.write_text(HEAD + "".join(f"a,2013-10-27T{t},1\n" for t in times), encoding="utf-8")
    with pytest.raises(FuelsError, match="more than one row at 2013-10-27 02:00"):
        read_panel(path, timezone="Europe/Rome")


def test_coordinates_must_name_every_client(tmp_path):
    good, cells = tmp_path / "good.csv", tmp_path / "cells.csv"
    good.write_text(GOOD, encoding="utf-8")
    cells.write_text("cell_id,lng,lat\nb,1,2\n", encoding="utf-8")
    with pytest.raises(FuelsError, match=r"cells.csv: no coordinates for client a"):
        read_panel(good, coordinates=cells)
    cells.write_text("cell_id,x,y\na,1,2\n", encoding="utf-8")
    with pytest.raises(FuelsError, match="need the columns client"):
        read_panel(good, coordinates=cells)


# -- other files ---------------------------------------------------------------------------------


def test_files_that_are_not_there_or_not_known(tmp_path):
    with pytest.raises(FuelsError, match="no such file or folder"):
        read_panel(tmp_path / "nothing.csv")
    (tmp_path / "x.xlsx").write_bytes(b"PK")
    with pytest.raises(FuelsError, match=r"x.xlsx: unknown format; known are .csv"):
        read_panel(tmp_path / "x.xlsx")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("hello\n", encoding="utf-8")
    with pytest.raises(FuelsError, match="no files of raw records"):
        read_panel(tmp_path / "folder")


@pytest.mark.parametrize("name", ["x.parquet", "x.npz", "x.h5", "x.csv.gz"])
def test_files_that_are_something_else(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x00\x01 this is no such file \xff" * 20)
    with pytest.raises(FuelsError, match=f"{name}: not"):
        read_panel(tmp_path / name)


def npz(path, **changes):
    arrays = {
        "values": np.ones((3, 2)),
        "ids": np.array(["a", "b"]),
        "t0": "2013-11-01T00:00",
        "step_minutes": 60,
    }
    arrays.update(changes)
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    return path


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"values": None}, "no array 'values'"),
        ({"t0": None}, "no array 't0'"),
        ({"ids": None}, "no array of client ids"),
        ({"t0": "noon"}, "t0 must be an ISO time"),
        ({"step_minutes": "x"}, "step_minutes a positive number"),
        ({"step_minutes": 0}, "step_minutes a positive number"),
        ({"step_minutes": np.nan}, "step_minutes a positive number"),
        ({"values": np.ones(3)}, "must be numbers"),
        ({"values": np.full((3, 2), "x")}, "must be numbers"),
        ({"values": np.ones((3, 3))}, "do not fit"),
        ({"values": np.ones((0, 2))}, "hold no data"),
        ({"ids": np.array(["a", "a"])}, "not unique"),
        ({"values": np.array([[1, 2], [3, np.inf]])}, "client b has an infinite value"),
        ({"values": np.array([[1, 2], [3, {}]], dtype=object)}, "not a readable npz"),
        ({"coordinates": np.ones((3, 2))}, "coordinates"),
    ],
)
def test_npz(tmp_path, changes, sentence):
    assert read_panel(npz(tmp_path / "good.npz")).length == 3
    with pytest.raises(FuelsError, match=sentence):
        read_panel(npz(tmp_path / "n.npz", **changes))


def test_hdf5_of_another_layout(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["values"] = np.ones((2, 2))
    with pytest.raises(FuelsError, match="no frames in METR-LA's layout"):
        read_panel(tmp_path / "x.h5")


def test_hdf5_without_h5py_says_what_to_install(tmp_path, monkeypatch):
    import sys

    (tmp_path / "x.h5").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(FuelsError, match=r"fuels\[hdf5\]"):
        read_panel(tmp_path / "x.h5")


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        ([1, 2], "a pandas or polars frame is needed, not list"),
        (pl.DataFrame({"a": [1]}), "no time column"),
        (pl.DataFrame({"time": [1.5], "a": [1]}), "holds no times but Float64"),
        (pl.DataFrame({"time": ["2020-01-01"], "a": [True]}), "holds Boolean values"),
    ],
)
def test_frames(frame, sentence):
    with pytest.raises(FuelsError, match=sentence):
        panel_from_frame(frame)


# -- writing -------------------------------------------------------------------------------------


def small(*ids: str) -> Panel:
    return Panel(
        np.ones((2, len(ids))), ids, np.datetime64("2020-01-01", "s"), np.timedelta64(60, "s")
    )


def test_an_existing_file_is_kept_unless_told_otherwise(tmp_path):
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
    [("p.xlsx", "can write"), ("no/p.csv", "there is no folder"), ("d.csv", "is a folder")],
)
def test_targets_that_cannot_be_written(tmp_path, name, sentence):
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(FuelsError, match=sentence):
        write_panel(small("a"), tmp_path / name, overwrite=True)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path, monkeypatch, suffix):
    target = tmp_path / f"p{suffix}"
    write_panel(small("old"), target)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fuels.data.writers._batches", full)
    monkeypatch.setattr("fuels.data.writers.npz_arrays", full)
    with pytest.raises(FuelsError, match=r"could not be written .*No space left on device"):
        write_panel(small("new"), target, overwrite=True)
    assert read_panel(target).ids == ("old",)
    assert [p.name for p in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize("ids", [("id", "b"), ("date", "b"), ("unit", "b"), ("time", "b")])
def test_a_wide_table_that_would_not_read_back_is_refused(tmp_path, ids):
    with pytest.raises(FuelsError, match="--layout long"):
        write_panel(small(*ids), tmp_path / "p.csv", layout="wide")
    write_panel(small(*ids), tmp_path / "p.csv", layout="long")
    assert read_panel(tmp_path / "p.csv").ids == tuple(sorted(ids))
