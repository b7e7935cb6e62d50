"""Readers and writers: every format gives the same panel, whatever the order of rows."""

import gzip
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuels.data.panel import Panel
from fuels.data.readers import read_panel
from fuels.data.table_options import TableOptions
from fuels.data.tables import panel_from_frame
from fuels.data.writers import write_panel

LONG = "client,time,value\nb,2013-11-01 00:00,1\nb,2013-11-01 01:00,\na,2013-11-01 00:00,3\n"


def same(one: Panel, two: Panel) -> bool:
    """Equal in everything but the name and the notes."""
    places = (one.coordinates, two.coordinates)
    return (
        one.ids == two.ids
        and one.start == two.start
        and one.step == two.step
        and one.timezone == two.timezone
        and one.unit == two.unit
        and one.synthetic == two.synthetic
        and np.array_equal(one.values, two.values, equal_nan=True)
        and (places[0] is None) == (places[1] is None)
        and (places[0] is None or np.array_equal(places[0], places[1]))
    )


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_a_long_csv_by_hand(tmp_path):
    panel = read_panel(write(tmp_path / "small.csv", LONG))
    assert panel.ids == ("a", "b")
    assert np.array_equal(panel.values, [[3, 1], [np.nan, np.nan]], equal_nan=True)
    assert panel.start == np.datetime64("2013-11-01T00:00:00") and panel.step_seconds == 3600
    assert panel.timezone is None and panel.name == "small"
    assert panel.notes[0] == "1 value was absent from the file and marked as missing"


def test_a_wide_csv_by_hand(tmp_path):
    text = "time;007;7\n2013/11/01 00:00;1.5;2\n2013/11/01 00:15;NA;4e1\n"
    panel = read_panel(write(tmp_path / "w.csv", text))
    assert panel.ids == ("007", "7") and panel.step_seconds == 900
    assert np.array_equal(panel.values, [[1.5, 2], [np.nan, 40]], equal_nan=True)


def test_names_of_columns_can_be_given_and_usual_ones_are_found(tmp_path):
    forecasters = "unique_id,ds,y\n" + LONG.split("\n", 1)[1]
    odd = "wo,wann,wieviel,noch\n" + LONG.split("\n", 1)[1].replace("\n", ",5\n")
    expected = read_panel(write(tmp_path / "a.csv", LONG))
    assert same(expected, read_panel(write(tmp_path / "b.csv", forecasters)))
    names = {"client": "wo", "time": "wann", "value": "wieviel"}
    assert same(expected, read_panel(write(tmp_path / "c.csv", odd), **names))


def test_ids_keep_their_leading_zeros_and_lose_their_decimals(tmp_path):
    text = LONG.replace("\nb,", "\n007,").replace("\na,", "\n0010,")
    assert read_panel(write(tmp_path / "z.csv", text)).ids == ("007", "0010")
    frame = pl.DataFrame({"id": [4050.0, 4050.0], "ds": ["2013-11-01", "2013-11-02"], "y": [1, 2]})
    assert panel_from_frame(frame).ids == ("4050",)


def test_a_frame_index_saved_to_csv_is_the_time(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0]}, index=pd.date_range("2020-01-01", periods=2, freq="h"))
    frame.to_csv(tmp_path / "i.csv")
    assert read_panel(tmp_path / "i.csv").values.tolist() == [[1.0], [2.0]]


def test_gzip_and_tabs(tmp_path):
    (tmp_path / "z.csv.gz").write_bytes(gzip.compress(LONG.encode()))
    tabs = read_panel(write(tmp_path / "t.tsv", LONG.replace(",", "\t")))
    assert same(tabs, read_panel(tmp_path / "z.csv.gz"))


def test_epoch_times_are_utc(tmp_path):
    text = "id,time,value\n1,1383260400000,5\n1,1383264000000,6\n"
    panel = read_panel(write(tmp_path / "e.csv", text))
    assert panel.timezone == "UTC" and panel.start == np.datetime64("2013-10-31T23:00:00")
    frame = pl.DataFrame({"id": [1, 1], "time": [1383260400, 1383264000], "value": [5.0, 6.0]})
    assert same(panel_from_frame(frame), panel)
    local = panel_from_frame(frame, given=TableOptions(timezone="Europe/Rome"))
    assert local.start == panel.start and local.phases(24).tolist() == [0, 1]


@pytest.mark.parametrize("ticks", [1, 10**3, 10**6, 10**9])
@pytest.mark.parametrize("first", ["2000-01-01", "2013-11-01", "2033-10-16", "2099-12-30"])
def test_epoch_times_in_every_unit_and_decade(ticks, first):
    # 2033-10-16 is about 2013000000 s, where a few seconds in a hundred look like a date.
    start = np.datetime64(first, "s")
    numbers = (start.astype(int) + 3600 * np.arange(24)) * ticks
    panel = panel_from_frame(pl.DataFrame({"time": numbers, "a": np.arange(24.0)}))
    assert panel.start == start and panel.values[:, 0].tolist() == list(range(24))


def test_a_client_may_have_the_name_of_a_metadata_field(tmp_path):
    text = "time,unit,timezone,synthetic\n2013-11-01,1,2,3\n2013-11-02,4,5,6\n"
    panel = read_panel(write(tmp_path / "w.csv", text))
    assert panel.ids == ("synthetic", "timezone", "unit")
    assert panel.values.tolist() == [[3, 2, 1], [6, 5, 4]]
    assert panel.unit == "value" and panel.timezone is None and not panel.synthetic


def test_blank_lines_are_skipped(tmp_path):
    spaced = LONG.replace("\n", "\n\n")
    plain = read_panel(write(tmp_path / "a.csv", LONG))
    assert same(read_panel(write(tmp_path / "b.csv", spaced)), plain)
    # Every field of a line stays where it is: a missing value is no blank line.
    wide = "time,a\n2013-11-01,1\n\n2013-11-02,\n2013-11-03,3\n"
    values = read_panel(write(tmp_path / "w.csv", wide)).values[:, 0]
    assert np.array_equal(values, [1, np.nan, 3], equal_nan=True)


def test_offsets_become_utc_with_days_at_the_smallest_offset(tmp_path):
    rows = ["2013-10-27T01:00:00+02:00", "2013-10-27T02:00:00+02:00", "2013-10-27T02:00:00+01:00"]
    text = "client,time,value\n" + "".join(f"a,{t},{i}\n" for i, t in enumerate(rows))
    panel = read_panel(write(tmp_path / "o.csv", text))
    assert panel.timezone == "Etc/GMT-1" and panel.start == np.datetime64("2013-10-26T23:00:00")
    assert panel.values[:, 0].tolist() == [0, 1, 2] and panel.phases(24).tolist() == [0, 1, 2]
    named = read_panel(tmp_path / "o.csv", timezone="Europe/Rome")
    assert named.timezone == "Europe/Rome" and named.start == panel.start
    zulu = text.replace("+02:00", "Z").replace("02:00:00+01:00", "03:00:00Z")
    assert read_panel(write(tmp_path / "z.csv", zulu)).timezone == "UTC"


# -- daylight saving -----------------------------------------------------------------------------


def clock_rows(days, zone, clients=("a", "b")):
    """Rows as an owner in that zone would write them: naive local time, in real order."""
    moments = pd.date_range(days[0], days[1], freq="h", tz=zone)
    naive = [t.strftime("%Y-%m-%dT%H:%M") for t in moments]
    return [(c, t, 100 * k + i) for k, c in enumerate(clients) for i, t in enumerate(naive)]


@pytest.mark.parametrize("days", [("2013-10-26", "2013-10-28"), ("2013-03-30", "2013-04-01")])
def test_a_change_of_the_clock_is_resolved_where_the_zone_is_given(tmp_path, days):
    rows = clock_rows(days, "Europe/Rome")
    text = "client,time,value\n" + "".join(f"{c},{t},{v}\n" for c, t, v in rows)
    panel = read_panel(write(tmp_path / "d.csv", text), timezone="Europe/Rome")
    hours = 48 + (1 if days[0].startswith("2013-10") else -1) + 1
    assert panel.values[:, 0].tolist() == list(range(hours))
    assert panel.values[:, 1].tolist() == list(range(100, 100 + hours))
    if days[0].startswith("2013-10"):
        assert "first occurrence was taken as daylight time" in panel.notes[0]


def test_a_repeated_hour_in_a_wide_table_is_resolved_too(tmp_path):
    rows = clock_rows(("2013-10-26", "2013-10-28"), "Europe/Rome", ("a",))
    text = "time,a\n" + "".join(f"{t},{v}\n" for _, t, v in rows)
    panel = read_panel(write(tmp_path / "d.csv", text), timezone="Europe/Rome")
    assert panel.values[:, 0].tolist() == list(range(50))


def test_a_time_that_occurs_once_in_the_repeated_hour_is_daylight_time(tmp_path):
    times = ["01:00", "02:00", "03:00", "04:00"]
    text = "time,a\n" + "".join(f"2013-10-27T{t},{i}\n" for i, t in enumerate(times))
    panel = read_panel(write(tmp_path / "d.csv", text), timezone="Europe/Rome")
    assert np.array_equal(panel.values[:, 0], [0, 1, np.nan, 2, 3], equal_nan=True)
    once = "1 time occurs only once in the repeated hour of 2013-10-27: taken as daylight time"
    assert panel.notes[0] == once


def test_half_hours_in_chronological_order_are_resolved(tmp_path):
    times = ["01:30", "02:00", "02:30", "02:00", "02:30", "03:00"]
    rows = [f"{c},2013-10-27T{t},{i}" for i, t in enumerate(times) for c in "ab"]
    text = "client,time,value\n" + "\n".join(rows)
    panel = read_panel(write(tmp_path / "d.csv", text), timezone="Europe/Rome")
    assert panel.values[:, 0].tolist() == panel.values[:, 1].tolist() == list(range(6))


def test_a_skipped_hour_without_a_zone_is_a_missing_value(tmp_path):
    rows = clock_rows(("2013-03-30", "2013-04-01"), "Europe/Rome", ("a",))
    text = "time,a\n" + "".join(f"{t},{v}\n" for _, t, v in rows)
    panel = read_panel(write(tmp_path / "d.csv", text))
    assert np.flatnonzero(np.isnan(panel.values[:, 0])).tolist() == [26]
    assert "absent" in panel.notes[0]
    assert "2013-03-31 02:00: if the clocks went forward then, give timezone" in panel.notes[1]


# -- arrays --------------------------------------------------------------------------------------


def test_npz_by_hand(tmp_path):
    np.savez(
        tmp_path / "n.npz",
        values=np.array([[1, 2], [3, 4]], np.float32),
        cell_id=np.array([20, 3]),
        t0="2013-11-01T00:00",
        step_minutes=60,
    )
    panel = read_panel(tmp_path / "n.npz")
    assert panel.ids == ("3", "20") and panel.values.tolist() == [[2, 1], [4, 3]]
    assert panel.values.dtype == np.float64
    local = read_panel(tmp_path / "n.npz", timezone="Europe/Rome")
    assert local.start == np.datetime64("2013-10-31T23:00:00")


def metr_la(path, stamps, zone=None):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        group = file.create_group("df")
        items = np.array([b"773869", b"767541"])
        group["axis0"], group["block0_items"] = items, items
        group["axis1"] = np.array(stamps, "datetime64[ns]").astype(np.int64)
        if zone:
            group["axis1"].attrs["tz"] = zone
        group["block0_values"] = np.array([[60.0, 0.0], [61.0, 50.0]])[: len(stamps)]
    return path


def test_the_layout_of_metr_la_and_its_zeros(tmp_path):
    path = metr_la(tmp_path / "metr-la.h5", ["2012-03-01T00:00", "2012-03-01T00:05"])
    panel = read_panel(path)
    assert panel.ids == ("767541", "773869") and panel.step_seconds == 300
    assert np.array_equal(panel.values, [[np.nan, 60], [50, 61]], equal_nan=True)
    assert panel.notes == ("1 values equal to 0 were marked as missing",)
    assert read_panel(path, missing="none").values[0, 0] == 0


def test_hdf5_with_a_zone_is_utc(tmp_path):
    stamps = ["2012-03-01T08:00", "2012-03-01T08:05"]
    panel = read_panel(metr_la(tmp_path / "tz.h5", stamps, b"America/Los_Angeles"))
    assert panel.timezone == "America/Los_Angeles" and panel.phases(288)[0] == 0


# -- frames --------------------------------------------------------------------------------------


def test_pandas_and_polars_frames_give_the_same_panel():
    columns = {
        "unique_id": ["b", "b", "a"],
        "ds": pd.to_datetime(["2020-01-01 00:00", "2020-01-01 01:00", "2020-01-01 00:00"]),
        "y": [1.0, None, 3.0],
    }
    pandas = pd.DataFrame(columns)
    polars = pl.DataFrame({**columns, "ds": list(columns["ds"].to_pydatetime())})
    assert same(panel_from_frame(pandas), panel_from_frame(polars))
    assert same(panel_from_frame(polars.lazy()), panel_from_frame(polars))
    shuffled = pandas.sample(frac=1.0, random_state=1)
    assert same(panel_from_frame(shuffled), panel_from_frame(polars))


def test_a_pandas_frame_with_a_zone():
    times = pd.date_range("2020-07-01", periods=2, freq="h", tz="Europe/Rome")
    panel = panel_from_frame(pd.DataFrame({"id": ["a", "a"], "ds": times, "y": [1, 2]}))
    assert panel.timezone == "Europe/Rome" and panel.start == np.datetime64("2020-06-30T22:00:00")


def test_pandas_is_not_imported_for_others(tmp_path):
    import subprocess

    path = write(tmp_path / "small.csv", LONG)
    code = (
        "import sys; from fuels.data.readers import read_panel;"
        f" read_panel({str(path)!r}); sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- the wanted form -----------------------------------------------------------------------------


def test_clients_span_step_and_coordinates(tmp_path):
    hours = [f"2013-11-0{d}T{h:02d}:00" for d in (1, 2, 3) for h in range(24)]
    rows = "".join(f"{t},{i},{-i},{2 * i}\n" for i, t in enumerate(hours))
    path = write(tmp_path / "x.csv", "time,3,20,100\n" + rows)
    cells = write(tmp_path / "cells.csv", "cell_id,lng,lat\n20,9.2,45.2\n3,9.1,45.1\n7,1,1\n")
    panel = read_panel(
        path,
        ids=["20", "3"],
        start="2013-11-02",
        end="2013-11-02",
        resample="12h",
        how="mean",
        coordinates=cells,
    )
    assert panel.ids == ("3", "20")
    assert panel.values.tolist() == [[29.5, -29.5], [41.5, -41.5]]
    assert panel.coordinates is not None
    assert panel.coordinates.tolist() == [[9.1, 45.1], [9.2, 45.2]]


# -- properties ----------------------------------------------------------------------------------

IDS = st.lists(
    st.one_of(
        st.text("abcxyz0123456789-_", min_size=1, max_size=6),
        st.sampled_from(["unit", "timezone", "synthetic", "lat"]),
    ),
    min_size=1,
    max_size=4,
    unique=True,
)
ZONES = [None, "UTC", "Europe/Rome", "Asia/Kolkata", "America/Los_Angeles", "Etc/GMT-1"]


@st.composite
def panels(draw) -> Panel:
    ids = draw(IDS)
    length = draw(st.integers(2, 30))
    numbers = st.one_of(st.floats(-1e30, 1e30), st.just(float("nan")))
    flat = draw(st.lists(numbers, min_size=length * len(ids), max_size=length * len(ids)))
    step = draw(st.sampled_from([1, 60, 300, 3600, 86400]))
    # Starts around both changes of the clock of 2013 in Rome and Los Angeles, and any other time.
    start = draw(st.sampled_from([1364684400, 1382835600, 1362888000, 1383447600, 1577836800]))
    return Panel(
        values=np.array(flat).reshape(length, len(ids)),
        ids=tuple(ids),
        start=np.datetime64(start + draw(st.integers(0, 86399)), "s"),
        step=np.timedelta64(step, "s"),
        timezone=draw(st.sampled_from(ZONES)),
        coordinates=np.array([[i, -i] for i in range(len(ids))]) * 0.5
        if draw(st.booleans())
        else None,
        unit=draw(st.sampled_from(["value", "mph"])),
        synthetic=draw(st.booleans()),
    )


@pytest.mark.parametrize(
    ("suffix", "layout"),
    [(".parquet", "long"), (".parquet", "wide"), (".csv", "long"), (".npz", "long")],
)
@given(panel=panels())
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_written_panel_is_read_back(tmp_path, suffix, layout, panel):
    path = tmp_path / f"p{suffix}"
    write_panel(panel, path, layout=layout, overwrite=True)
    assert same(read_panel(path), panel.sorted())


@given(panel=panels())
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_wide_csv_is_read_back_without_coordinates(tmp_path, panel):
    from dataclasses import replace

    path = tmp_path / "p.csv"
    notes = write_panel(panel, path, layout="wide", overwrite=True)
    assert len(notes) == (panel.coordinates is not None)
    assert same(read_panel(path), replace(panel, coordinates=None).sorted())


@given(panel=panels(), data=st.data())
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_order_of_rows_and_clients_does_not_matter(tmp_path, panel, data):
    write_panel(panel, tmp_path / "p.parquet", overwrite=True)
    table = pl.read_parquet(tmp_path / "p.parquet")
    order = data.draw(st.permutations(range(table.height)))
    shuffled = panel_from_frame(table[list(order)])
    assert same(shuffled, panel_from_frame(table))


def test_values_marked_as_missing_are_counted_after_the_cut(tmp_path):
    hours = "".join(
        f"2024-01-0{day}T{hour:02}:00,{hour % 12}\n" for day in (1, 2, 3) for hour in range(24)
    )
    (tmp_path / "p.csv").write_text("time,a\n" + hours)
    whole = read_panel(tmp_path / "p.csv", missing="0")
    assert whole.notes == ("6 values equal to 0 were marked as missing",)
    part = read_panel(tmp_path / "p.csv", missing="0", start="2024-01-02", end="2024-01-02T12:00")
    assert part.notes == ("1 values equal to 0 were marked as missing",)
    assert np.isnan(part.values).sum() == 1


def test_a_given_unit_replaces_that_of_the_file(tmp_path):
    path = write(tmp_path / "a.csv", LONG)
    assert read_panel(path).unit == "value"
    assert read_panel(path, unit="kWh").unit == "kWh"
    copy = tmp_path / "copy.csv"
    write_panel(read_panel(path, unit="kWh"), copy)
    assert read_panel(copy).unit == "kWh"
    assert read_panel(copy, unit="MWh").unit == "MWh"
