"""The period by autocorrelation, the description, and the `fuels data` commands."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from fuels.cli.data import data_app
from fuels.cli.options import parse_ids
from fuels.data.chart import bar_chart
from fuels.data.describe import describe
from fuels.data.panel import Panel
from fuels.data.periodicity import autocorrelation, find_cycle
from fuels.data.readers import read_panel
from fuels.data.synthetic import synthesise
from fuels.errors import FuelsError


def make(values, step=3600, **more) -> Panel:
    ids = tuple(f"c{i}" for i in range(values.shape[1]))
    start = np.datetime64("2020-01-06T00:00:00", "s")
    return Panel(values, ids, start, np.timedelta64(step, "s"), **more)


def wave(period, steps=1000, clients=8, noise=0.5, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(steps)[:, None]
    return np.sin(2 * np.pi * t / period) + noise * rng.normal(size=(steps, clients))


def test_autocorrelation_by_hand():
    # Alternating +1, -1: perfectly opposed after one step, perfectly alike after two.
    values = np.tile([1.0, -1.0], 50)[:, None]
    assert autocorrelation(values, 4) == pytest.approx([1, -1, 1, -1], abs=0.02)
    values[10:15] = np.nan
    assert autocorrelation(values, 4) == pytest.approx([1, -1, 1, -1], abs=0.02)


@pytest.mark.parametrize("period", [7, 24, 37, 96])
def test_a_period_is_found_under_noise_trend_and_gaps(period):
    values = wave(period) + 0.02 * np.arange(1000)[:, None]
    values[np.random.default_rng(1).random(values.shape) < 0.1] = np.nan
    cycle = find_cycle(make(values))
    assert cycle is not None and cycle.period == period


def test_the_day_is_preferred_to_half_a_day_and_a_week():
    hours = np.arange(24 * 56)[:, None]
    rush = np.exp(-0.5 * ((hours % 24 - 8) / 1.5) ** 2) + np.exp(
        -0.5 * ((hours % 24 - 18) / 2) ** 2
    )
    weekend = np.where(hours // 24 % 7 >= 5, 0.4, 1.0)
    values = rush * weekend + 0.1 * np.random.default_rng(0).normal(size=(len(hours), 10))
    cycle = find_cycle(make(values))
    assert cycle is not None and cycle.period == 24


def test_noise_a_random_walk_and_constants_have_no_period():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(1000, 20))
    assert find_cycle(make(noise)) is None
    assert find_cycle(make(noise.cumsum(axis=0))) is None
    assert find_cycle(make(np.ones((100, 3)))) is None


@pytest.mark.parametrize("activity", ["sms", "call", "net"])
def test_the_synthetic_federation_has_a_daily_period(activity):
    cycle = find_cycle(synthesise(activity, clients=30, days=30, seed=0))
    assert cycle is not None and cycle.period == 24


def test_real_periods(real_data):
    milan = find_cycle(read_panel(real_data / "milan_net_441cells_hourly.npz"))
    assert milan is not None and milan.period == 24
    speeds = real_data / "metr_la_first10_full_5min.npz"
    fine = find_cycle(read_panel(speeds, missing="0"))
    assert fine is not None and fine.period == 288
    hourly = find_cycle(read_panel(speeds, missing="0", resample="1h", how="mean"))
    assert hourly is not None and hourly.period == 24


def described() -> Panel:
    values = wave(24, steps=480, clients=4, noise=0.05) + 5
    values[30:40, 1] = np.nan  # the longest gap
    values[0:3, 2] = np.nan  # starts late
    values[300:, 3] = 0.0  # dies
    return make(values, unit="mph", name="roads", notes=("read with care",))


def test_a_description_in_figures():
    found = describe(described())
    assert (found.clients, found.steps, found.step) == (4, 480, "1h")
    assert (found.first, found.last) == ("2020-01-06 00:00", "2020-01-25 23:00")
    assert found.missing_share == pytest.approx(13 / 1920)
    assert found.zero_share == pytest.approx(180 / 1907)
    assert found.longest_gap is not None
    assert (found.longest_gap.client, found.longest_gap.steps) == ("c1", 10)
    assert found.longest_gap.start == "2020-01-07 06:00"
    assert found.late_or_early == 1
    assert list(found.left_out) == ["c3"]
    assert found.period == 24 and len(found.profile) == 24
    assert int(np.argmax(found.profile)) == 6 and int(np.argmin(found.profile)) == 18
    assert found.quantiles["100%"] == np.nanmax(described().values)
    assert json.loads(json.dumps(found.to_dict()))["left_out"] == found.left_out


def test_a_description_on_the_screen():
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(describe(replace(described(), timezone="Asia/Kolkata")).render())
    text = console.export_text()
    for piece in ("roads, in mph", "UTC+05:30", "c3 (dead", "longest gap 10 steps", "█"):
        assert piece in text
    assert "read with care" in text


def test_the_chart_by_hand():
    lines = bar_chart([0.0, 1.0, None, 0.5]).splitlines()
    assert len(lines) == 6
    bars = [row.split(" ", 1)[1] if row[0] != " " else row[2:] for row in lines[:5]]
    assert bars[0][12:24] == "█" * 12  # the highest fills the top row
    assert bars[-1][0:12] == "▁" * 12  # the lowest still shows
    assert bars[-1][24:36] == " " * 12  # what is missing does not
    assert bar_chart([1.0, 1.0])  # a flat course is drawn too
    assert max(map(len, bar_chart(list(range(288))).splitlines())) <= 60


def test_the_chart_in_ascii():
    lines = bar_chart([0.0, 1.0, None, 0.5], ascii_only=True).splitlines()
    assert all(line.isascii() for line in lines) and len(lines) == 6
    assert lines[0].endswith(" " * 12 + "#" * 12 + " " * 24)
    assert lines[4].endswith("." * 12 + "#" * 12 + " " * 12 + "#" * 12)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_describe_on_a_terminal_without_block_characters(tmp_path, encoding):
    import os
    import subprocess
    import sys

    toy = tmp_path / "toy.csv"
    call("synth", "--out", toy, "--clients", 2, "--days", 10)
    words = [sys.executable, "-c", "from fuels.cli import main; main()", "data", "describe", toy]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    shown = subprocess.run(words, capture_output=True, check=True, env=environment).stdout
    assert ("█" in shown.decode(encoding)) == (encoding == "utf-8")
    assert "mean value by phase" in shown.decode(encoding)


# -- commands ------------------------------------------------------------------------------------

runner = CliRunner()


def call(*words):
    return runner.invoke(data_app, [str(word) for word in words])


def test_synth_convert_and_describe(tmp_path):
    toy, copy = tmp_path / "toy.csv", tmp_path / "copy.parquet"
    made = call("synth", "--out", toy, "--clients", 3, "--days", 20, "--json")
    assert made.exit_code == 0 and json.loads(made.stdout)["synthetic"] is True
    assert call("convert", toy, "--out", copy, "--layout", "wide").exit_code == 0
    one, two = read_panel(toy), read_panel(copy)
    assert one.synthetic and two.synthetic
    assert one.ids == two.ids and np.array_equal(one.values, two.values)
    shown = call(
        "describe", copy, "--resample", "2h", "--how", "sum", "--ids", one.ids[1], "--json"
    )
    about = json.loads(shown.stdout)
    assert about["clients"] == 1 and about["step"] == "2h" and about["steps"] == 240
    assert about["period"] == 12 and about["synthetic"]
    assert "(synthetic)" in call("describe", copy).stdout


def test_an_existing_file_is_rejected_before_any_work(tmp_path):
    target = tmp_path / "p.csv"
    target.write_text("precious", encoding="utf-8")
    result = call("synth", "--out", target)
    assert isinstance(result.exception, FuelsError) and "--overwrite" in str(result.exception)
    assert target.read_text(encoding="utf-8") == "precious"
    assert call("synth", "--out", target, "--clients", 2, "--days", 2, "--overwrite").exit_code == 0


def test_all_activities_in_one_pass(tmp_path):
    raw = tmp_path / "sms-call-internet-tn-2013-11-01.txt"
    start = 1383260400000
    rows = [f"1\t{start + i * 600_000}\t39\t1\t1\t3\t\t{i}\n" for i in range(18)]
    raw.write_text("".join(rows), encoding="utf-8")
    result = call(
        "convert",
        raw,
        "--out",
        tmp_path / "tn.csv",
        "--activity",
        "all",
        "--from",
        "2013-11-01T01:00",
    )
    assert result.exit_code == 0, result.exception
    sums = {a: read_panel(tmp_path / f"tn_{a}.csv").values.tolist() for a in ("sms", "call", "net")}
    assert sums == {"sms": [[12], [12]], "call": [[18], [18]], "net": [[51], [87]]}
    assert read_panel(tmp_path / "tn_net.csv").unit == "Internet activity"
    wrong = call(
        "convert", tmp_path / "tn_net.csv", "--out", tmp_path / "x.csv", "--activity", "all"
    )
    assert "raw Telecom Italia records only" in str(wrong.exception)


def test_ids_from_a_list_and_a_file(tmp_path):
    assert parse_ids(None) is None
    assert parse_ids("a, b,,a") == ("a", "b")
    (tmp_path / "ids.txt").write_text("a\nb,c\n\n", encoding="utf-8")
    assert parse_ids(f"@{tmp_path / 'ids.txt'}") == ("a", "b", "c")
    (tmp_path / "bom.txt").write_text("a\r\nb\r\n", encoding="utf-8-sig")
    assert parse_ids(f"@{tmp_path / 'bom.txt'}") == ("a", "b")
    with pytest.raises(FuelsError, match="names no client"):
        parse_ids(" , ")
    with pytest.raises(FuelsError, match="cannot be read"):
        parse_ids("@nowhere.txt")


@pytest.mark.parametrize("command", ["describe", "convert", "synth"])
def test_help_names_every_option_in_words(command):
    text = call(command, "--help").stdout
    assert "Example: fuels data" in text
