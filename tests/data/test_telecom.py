"""Raw Telecom Italia records: sums, bins, several files, damaged lines."""

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuels.data import telecom_file
from fuels.data.readers import PanelOptions, read_activities, read_panel
from fuels.data.telecom import is_telecom
from fuels.data.telecom_file import ACTIVITIES
from fuels.errors import FuelsError

MIDNIGHT = 1383260400000  # 1 November 2013 00:00 in Rome
MINUTES = 60_000
FILE = "sms-call-internet-mi-2013-11-01.txt"


def line(cell, minute, country=39, *fields):
    texts = ["" if f is None else str(f) for f in (*fields, *[None] * (5 - len(fields)))]
    return "\t".join([str(cell), str(MIDNIGHT + minute * MINUTES), str(country), *texts])


def read_telecom(path, activity="net", step="1h", **options):
    return read_panel(path, activity=activity, resample=step, **options)


def write(path, lines, end="\n"):
    path.write_bytes(("\n".join(lines) + end).encode())
    return path


def two_hours(tmp_path, **options):
    lines = [
        line(7, 0, 39, 1, 2, 4, 8, 16),
        line(7, 0, 33, 0.5),
        line(7, 50, 39, None, None, None, 0.25, "1.5e1"),
        line(7, 110, 39, None, None, None, None, "3E-1"),
        line(5, 60, 0, 1),
    ]
    return write(tmp_path / FILE, lines, **options)


def test_sums_by_hand(tmp_path):
    path = two_hours(tmp_path)
    expected = {"sms": [[0, 3.5], [1, 0]], "call": [[0, 12.25], [0, 0]], "net": [[0, 31], [0, 0.3]]}
    panels = dict(read_activities(path, tuple(ACTIVITIES), PanelOptions()))
    assert list(panels) == ["sms", "call", "net"]
    for activity, values in expected.items():
        panel = panels[activity]
        assert panel.values.tolist() == values
        assert panel.ids == ("5", "7") and panel.timezone == "Europe/Rome"
        assert panel.start == np.datetime64("2013-10-31T23:00:00") and panel.step_seconds == 3600
        assert read_telecom(path, activity).values.tolist() == values
    assert "counts as 0" in panels["net"].notes[1]


@pytest.mark.parametrize("in_memory", [0, 10 << 20, 1 << 30])
def test_a_file_of_many_days_is_summed_in_memory_and_on_disk(tmp_path, monkeypatch, in_memory):
    monkeypatch.setattr(telecom_file, "_IN_MEMORY", in_memory)
    monkeypatch.setattr(telecom_file, "_PIECE", 300)
    rng = np.random.default_rng(3)
    cells = rng.choice([3, 9, 20_000], 200)  # the last one makes all blocks wider on the way
    days = rng.choice([0, 1, 2, 4, 5], 200)  # the fourth day is silent
    hours, values = rng.integers(0, 24, 200), rng.integers(1, 9, 200)
    expected = np.zeros((6 * 24, 3))
    np.add.at(expected, (24 * days + hours, np.searchsorted([3, 9, 20_000], cells)), values)
    records = [
        line(cell, 60 * (24 * day + hour), 39, *[None] * 4, value)
        for cell, day, hour, value in zip(cells, days, hours, values, strict=True)
    ]
    ends = [line(3, 0), line(3, 60 * 24 * 6 - 10)]
    panel = read_telecom(write(tmp_path / FILE, records + ends))
    assert panel.ids == ("3", "9", "20000")
    assert np.array_equal(panel.values, expected)


@pytest.mark.parametrize("end", ["\n", "", "\r\n", "\n\n"])
def test_ends_of_files_and_lines(tmp_path, end):
    assert read_telecom(two_hours(tmp_path, end=end)).values.tolist() == [[0, 31], [0, 0.3]]


@pytest.mark.parametrize("piece", [128, 200, 4096])
def test_pieces_may_end_anywhere(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(telecom_file, "_PIECE", piece)
    assert read_telecom(two_hours(tmp_path)).values.tolist() == [[0, 31], [0, 0.3]]


def test_other_steps(tmp_path):
    path = two_hours(tmp_path)
    fine = read_panel(path, resample="10min")
    assert fine.length == 12 and fine.values[:, 1].tolist()[::5] == [16, 15, 0]
    assert read_panel(path, resample="2h", how="sum").values.tolist() == [[0, 31.3]]
    mean = read_panel(path, resample="1h", how="mean").values
    assert mean == pytest.approx(np.array([[0, 31 / 6], [0, 0.05]]))


def test_a_day_is_the_day_in_rome(tmp_path):
    lines = [line(1, minute, 39, 1) for minute in range(0, 2 * 1440, 10)]
    days = read_telecom(write(tmp_path / FILE, lines), "sms", "1d")
    assert days.values.tolist() == [[144], [144]]
    assert days.start == np.datetime64("2013-10-31T23:00:00")


def test_incomplete_steps_at_the_ends_are_left_out(tmp_path):
    lines = [line(1, minute, 39, 1) for minute in range(30, 200, 10)]
    panel = read_telecom(write(tmp_path / FILE, lines), "sms")
    assert panel.values.tolist() == [[6], [6]] and "incomplete" in panel.notes[-1]
    with pytest.raises(FuelsError, match="do not cover one complete step of 1d"):
        read_telecom(tmp_path / FILE, "sms", "1d")


def day_file(tmp_path, day, cells, city="mi"):
    lines = [
        line(cell, 1440 * day + minute, 39, cell) for cell in cells for minute in range(0, 1440, 10)
    ]
    return write(tmp_path / f"sms-call-internet-{city}-2013-11-{day + 1:02d}.txt", lines)


def test_a_folder_joins_days_and_a_cell_without_records_is_missing(tmp_path):
    day_file(tmp_path, 0, [1, 2])
    day_file(tmp_path, 2, [2, 20000])  # no second day, and an id beyond the first capacity
    (tmp_path / "readme.txt").write_text("not a record\n", encoding="utf-8")
    seen = []
    panel = read_telecom(tmp_path, "sms", progress=seen.append)
    assert panel.ids == ("1", "2", "20000") and panel.length == 72
    assert (panel.values[:24, :2] == [6, 12]).all() and np.isnan(panel.values[:24, 2]).all()
    assert np.isnan(panel.values[24:48]).all()
    assert (panel.values[48:, 1:] == [12, 120000]).all() and np.isnan(panel.values[48:, 0]).all()
    assert sum(seen) == sum(f.stat().st_size for f in tmp_path.glob("sms-*"))


def test_files_of_the_same_day_with_different_cells_join(tmp_path):
    day_file(tmp_path, 0, [1]).rename(tmp_path / "sms-call-internet-mi-a.txt")
    day_file(tmp_path, 0, [2]).rename(tmp_path / "sms-call-internet-mi-b.txt")
    panel = read_telecom(tmp_path, "sms")
    assert (panel.values == [6, 12]).all() and panel.length == 24


def test_copies_and_two_cities_are_rejected(tmp_path):
    first = day_file(tmp_path, 0, [1, 2])
    copy = tmp_path / "sms-call-internet-mi-copy.txt"
    copy.write_bytes(first.read_bytes())
    with pytest.raises(
        FuelsError, match=r"copy.txt: cell 1 at 2013-11-01 00:00 is also in another"
    ):
        read_telecom(tmp_path)
    copy.unlink()
    day_file(tmp_path, 1, [1], city="tn")
    with pytest.raises(FuelsError, match=r"Milan .* and Trentino"):
        read_telecom(tmp_path)


@pytest.mark.parametrize(
    "bad",
    [
        "1\t1383260400000\t39\t1\t2\t3\t4",  # a field short
        "1\t1383260400000\t39\t1\t2\t3\t4\t5\t6",  # one too many
        "1\t1383260400000\t39\t1\t2\t3\t4\tx",
        "1\t1383260400000\t39\t1\t2\t3\t4\t-5",
        "1\t1383260400000\t39\t1\t2\t3\t4\tnan",
        "1\t1383260400000\t39\t1\t2\t3\t4\t.",
        "1\t1383260400000\t39\t1\t2\t3\t4\t1e",
        "1\t1383260400000\t39\t1\t2\t3\t4\t1e99",
        "1\t1383260400000\t39\t1\t2\t3\t4\t1.2.3",
        "\t1383260400000\t39\t1\t2\t3\t4\t5",
        "1\t\t39\t1\t2\t3\t4\t5",
        "1\t1383260400\t39\t1\t2\t3\t4\t5",  # seconds, not ms
        f"1\t{'9' * 30}\t39\t1\t2\t3\t4\t5",
        "99999999\t1383260400000\t39\t1\t2\t3\t4\t5",
        "1 1383260400000 39 1 2 3 4 5",
        "1\t13832",  # cut off
        "x" * 3_000_000,
    ],
)
def test_a_damaged_line_is_reported_with_its_file(tmp_path, bad):
    path = write(tmp_path / FILE, [line(1, 0, 39, 1), "", line(1, 10, 39, 1), bad, line(1, 20)])
    with pytest.raises(FuelsError, match=f"{FILE}: line 4 "):
        read_telecom(path)


def test_a_time_far_from_all_others_is_rejected(tmp_path):
    wrong = line(1, 60 * 24 * 365 * 20, 39, 1)
    with pytest.raises(FuelsError, match="from 2013-10-31 to 2033-10-26: is a time wrong"):
        read_telecom(write(tmp_path / FILE, [line(1, 0, 39, 1), wrong]))
    write(tmp_path / FILE, [line(1, 0, 39, 1)])
    write(tmp_path / "sms-call-internet-mi-2033-11-01.txt", [wrong])
    with pytest.raises(FuelsError, match="is a time wrong"):
        read_telecom(tmp_path)


def test_one_damaged_file_of_many(tmp_path):
    for day in range(6):
        day_file(tmp_path, day, [1])
    write(tmp_path / "sms-call-internet-mi-2013-11-04.txt", [line(1, 0, 39, 1), "oops"])
    with pytest.raises(FuelsError, match=r"2013-11-04.txt: line 2 "):
        read_telecom(tmp_path)


def test_other_files_are_not_taken_for_records(tmp_path):
    assert not is_telecom(write(tmp_path / "a.tsv", ["client\ttime\tvalue"]))
    assert not is_telecom(tmp_path / "a.parquet")
    assert is_telecom(two_hours(tmp_path))
    with pytest.raises(FuelsError, match="there are no records"):
        (tmp_path / "e").mkdir()
        read_telecom(write(tmp_path / "e" / FILE, [""]).parent)
    with pytest.raises(FuelsError, match="activity 'fax'"):
        read_telecom(tmp_path / FILE, "fax")
    with pytest.raises(FuelsError, match="multiple of 10min"):
        read_telecom(tmp_path / FILE, step="15min")


@pytest.mark.parametrize("word", ["inf", "nan", "-1", "1e", ".", "1e400", "0,5"])
def test_an_activity_that_is_not_a_number_is_reported(tmp_path, word):
    path = write(tmp_path / FILE, [line(7, 0, 39, 1), line(7, 10, 39, 1, word)])
    with pytest.raises(FuelsError, match="line 2 has an activity that is not a plain number"):
        read_telecom(path)


def test_values_too_large_name_their_cell(tmp_path):
    path = write(tmp_path / FILE, [line(7, 10 * i, 39, 1, 1, 1, 1, "1e50") for i in range(6)])
    with pytest.raises(FuelsError, match=r"client 7 has the value 6e\+50 at 2013-11-01 00:00"):
        read_panel(path)


FIELD = st.one_of(st.none(), st.floats(0, 1e6).map(lambda x: round(x, 6)))
RECORD = st.tuples(
    st.integers(1, 12), st.integers(0, 431), st.sampled_from([0, 39, 33]), *[FIELD] * 5
)


@given(st.lists(RECORD, min_size=1, max_size=60), st.sampled_from([128, 1 << 20]))
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_sums_equal_those_of_a_table_library(tmp_path, records, piece):
    records = [*records, (1, 0, 39, *[None] * 5), (1, 431, 39, *[None] * 5)]  # whole hours
    lines = [line(cell, 10 * tick, code, *fields) for cell, tick, code, *fields in records]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(telecom_file, "_PIECE", piece)
        panel = read_telecom(write(tmp_path / FILE, lines), "sms")
    table = pl.DataFrame(
        [(c, t // 6, (a or 0) + (b or 0)) for c, t, _, a, b, *_ in records],
        schema=["cell", "hour", "sms"],
        orient="row",
    )
    expected = np.zeros(panel.values.shape)
    for cell, hour, total in table.group_by("cell", "hour").sum().rows():
        expected[hour, panel.ids.index(str(cell))] = total
    assert panel.values == pytest.approx(expected, rel=1e-12)


def test_the_real_day(real_data):
    path = real_data / "milan_cdr_raw_2013-11-01_25cells.tsv"
    cells = real_data / "milano_grid_centroids.csv"
    panel = read_panel(path, coordinates=cells)
    assert panel.values.shape == (24, 25) and panel.ids[0] == "1"
    assert panel.values.sum() == pytest.approx(25383.394473341497, rel=1e-12)
    assert panel.coordinates is not None and panel.coordinates[0].tolist() == [9.012991, 45.357743]
