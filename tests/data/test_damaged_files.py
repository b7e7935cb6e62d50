"""Files and frames that are damaged or something else: one sentence each, never a traceback."""

import numpy as np
import polars as pl
import pytest

from fuels.data.readers import read_panel
from fuels.data.tables import panel_from_frame
from fuels.errors import FuelsError


def test_missing_files_and_unknown_formats(tmp_path):
    with pytest.raises(FuelsError, match="no such file or folder"):
        read_panel(tmp_path / "nothing.csv")
    (tmp_path / "x.docx").write_bytes(b"PK")
    with pytest.raises(FuelsError, match=r"x.docx: unknown format; known are .csv"):
        read_panel(tmp_path / "x.docx")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("hello\n", encoding="utf-8")
    with pytest.raises(FuelsError, match="has no raw records"):
        read_panel(tmp_path / "folder")


@pytest.mark.parametrize("name", ["x.parquet", "x.npz", "x.h5", "x.csv.gz", "x.xlsx"])
def test_files_with_the_wrong_content(tmp_path, name):
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
        ({"step_minutes": 60.004}, "step_minutes a positive number"),
        ({"step_minutes": [60, 60]}, r"'step_minutes' must be a single value, not int64 of shape"),
        ({"t0": "2013-11-01T00:00:00.0000001"}, "t0 must be an ISO time in whole seconds"),
        ({"synthetic": [True, False]}, r"'synthetic' must be true or false, not bool of shape"),
        ({"synthetic": "no"}, "'synthetic' must be true or false, not <U2"),
        ({"unit": np.array(["MB", "GB"])}, r"'unit' must be text, not <U2 of shape \(2,\)"),
        ({"timezone": "Mars"}, "^n.npz: time zone 'Mars' is not known"),
        ({"values": np.ones((3, 2), bool)}, "values must be numbers .* not bool"),
        ({"values": np.ones(3)}, "must be numbers"),
        ({"values": np.full((3, 2), "x")}, "must be numbers"),
        ({"values": np.ones((3, 3))}, "do not fit"),
        ({"values": np.ones((0, 2))}, "contain no data"),
        ({"ids": np.array(["a", "a"])}, "not unique"),
        ({"values": np.array([[1, 2], [3, np.inf]])}, "client b has an infinite value"),
        ({"values": np.array([[1, 2], [3, {}]], dtype=object)}, "not a readable npz"),
        ({"coordinates": np.ones((3, 2))}, "coordinates"),
        ({"coordinates": np.full((2, 2), "x")}, r"coordinates must be numbers \[client, 2\]"),
        ({"ids": np.array([b"\xff", b"b"])}, "client ids must be text in UTF-8"),
        ({"ids": np.array(["a", " "])}, "row 2 names no client"),
        ({"ids": np.array([1.0, np.nan])}, "row 2 names no client"),
        ({"t0": "9999-12-31T22:00"}, "a time is in the year 9999"),
        ({"t0": "0001-01-01T00:00", "timezone": "Asia/Tokyo"}, "a time is in the year 1:"),
        ({"step_minutes": 1e15}, "a time is in the year"),
        ({"values": np.full((3, 2), 1e31)}, r"client a has the value 1e\+31"),
    ],
)
def test_npz(tmp_path, changes, sentence):
    assert read_panel(npz(tmp_path / "good.npz")).length == 3
    with pytest.raises(FuelsError, match=sentence):
        read_panel(npz(tmp_path / "n.npz", **changes))


def test_npz_steps_in_seconds(tmp_path):
    for seconds in (1, 7, 10, 100):
        for minutes in (seconds / 60, np.float32(seconds / 60)):
            panel = read_panel(npz(tmp_path / "n.npz", step_minutes=minutes))
            assert panel.step_seconds == seconds


def test_an_unknown_zone_in_a_table_names_the_file(tmp_path):
    table = LONG.with_columns(fuels_timezone=pl.lit("Mars"))
    table.write_csv(tmp_path / "z.csv")
    with pytest.raises(FuelsError, match=r"^z\.csv: time zone 'Mars' is not known"):
        read_panel(tmp_path / "z.csv")
    assert read_panel(tmp_path / "z.csv", timezone="Europe/Rome").timezone == "Europe/Rome"


def test_damaged_hdf5(tmp_path):
    """Wherever its bytes are damaged, the file is read or refused in words."""
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        for name in ("axis0", "block0_items"):
            file[f"df/{name}"] = np.array([b"1", b"2"])
        file["df/axis1"] = 10**18 + np.arange(3) * 300 * 10**9
        file["df/block0_values"] = np.ones((3, 2))
    good = path.read_bytes()
    assert read_panel(path).length == 3
    refused = set()
    for at in range(0, len(good), 40):
        path.write_bytes(good[:at] + bytes(255 - b for b in good[at : at + 8]) + good[at + 8 :])
        try:
            read_panel(path)
        except FuelsError as error:
            refused.add(str(error))
    assert any("Link iteration failed" in each for each in refused), refused


def test_hdf5_of_another_layout(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["values"] = np.ones((2, 2))
    with pytest.raises(FuelsError, match="no frames in METR-LA's layout"):
        read_panel(tmp_path / "x.h5")


@pytest.mark.parametrize("part", ["axis1", "block0_items", "block0_values"])
def test_hdf5_with_a_group_or_a_scalar_for_an_array(tmp_path, part):
    h5py = pytest.importorskip("h5py")
    names = np.array([b"1", b"2"])
    stamps = 10**18 + np.arange(2) * 300 * 10**9
    arrays = {
        "axis0": names,
        "axis1": stamps,
        "block0_items": names,
        "block0_values": np.ones((2, 2)),
    }
    path = tmp_path / "x.h5"
    for number, broken in enumerate(("good", "group", "scalar")):
        with h5py.File(path, "w") as file:
            group = file.create_group("df")
            for name, array in arrays.items():
                if name != part or broken == "good":
                    group[name] = array
                elif broken == "group":
                    group.create_group(name)
                else:
                    group[name] = array.ravel()[0]
        if number == 0:
            assert read_panel(path).ids == ("1", "2")
        else:
            with pytest.raises(FuelsError, match=r"x.h5: (no frames|axis1|values must)"):
                read_panel(path)


LONG = pl.DataFrame({"client": ["a", "a"], "time": ["2020-01-01", "2020-01-02"], "value": [1, 2]})


@pytest.mark.parametrize(
    "said",
    [
        "not json",
        "[1]",
        '{"unit": 3}',
        '{"synthetic": "no"}',
        '{"coordinates": 7}',
        '{"coordinates": {"a": [1]}}',
        '{"coordinates": {"a": ["x", 1]}}',
    ],
)
def test_parquet_metadata_that_fuels_did_not_write(tmp_path, said):
    LONG.write_parquet(tmp_path / "p.parquet", metadata={"fuels": said})
    with pytest.raises(FuelsError, match=r"p.parquet: the metadata 'fuels' of the file was not"):
        read_panel(tmp_path / "p.parquet")


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        (["a", ""], "row 2 names no client"),
        ([1.5, float("nan")], "row 2 names no client"),
        ([b"\xff", b"a"], "holds Binary values, not client ids"),
        ([[1], [2]], "not client ids"),
        ([{"a": 1}, {"a": 2}], "holds Struct.* values, not client ids"),
    ],
)
def test_parquet_ids(tmp_path, ids, sentence):
    LONG.with_columns(client=pl.Series(ids)).write_parquet(tmp_path / "p.parquet")
    with pytest.raises(FuelsError, match=sentence):
        read_panel(tmp_path / "p.parquet")


def test_hdf5_without_h5py_says_what_to_install(tmp_path, monkeypatch):
    import sys

    (tmp_path / "x.h5").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(FuelsError, match=r"fuels-forecast\[hdf5\]"):
        read_panel(tmp_path / "x.h5")


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        ([1, 2], "a pandas or polars frame is needed, not list"),
        (pl.DataFrame({"a": [1]}), "unique_id, ds and y are needed"),
        (pl.DataFrame({"time": [1.5], "a": [1]}), "holds Float64 values, not times"),
        (pl.DataFrame({"time": ["2020-01-01"], "a": [True]}), "holds Boolean values"),
        (pl.DataFrame({"time": ["2020-01-01", "2020-01-02"], "a": [1.0, 1e31]}), "the value 1e"),
        (pl.DataFrame({"time": [2**64 - 1], "a": [1]}), "18446744073709551615 and no times"),
        (
            pl.DataFrame({"time": pl.Series([1, 10**9], dtype=pl.Datetime("ns")), "a": [1, 2]}),
            "00:00.000000001 has a fraction",
        ),
    ],
)
def test_frames(frame, sentence):
    with pytest.raises(FuelsError, match=sentence):
        panel_from_frame(frame)
