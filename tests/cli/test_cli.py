"""The command line as a stranger meets it: help, wrong input, and a small run from end to end."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fuels.forecasting.table import long_frame
from helpers.commands import SMALL, Fuels
from helpers.panels import make_panel


def test_help_and_version(fuels: Fuels) -> None:
    code, out, _ = fuels("--version")
    assert code == 0 and out.startswith("fuels ")
    for words in ([], ["run"], ["forecast"], ["data"], ["data", "describe"], ["data", "convert"]):
        code, out, _ = fuels(*words, "--help")
        assert code == 0 and "Usage" in out


def test_from_file_to_forecast(fuels: Fuels, csv: str, tmp_path: Path) -> None:
    code, out, err = fuels("run", "--data", csv, "--out", "r", *SMALL)
    assert code == 0, err
    assert "last value" in out and "ridge" in out and "Results" in out
    code, out, err = fuels("forecast", "r", "--horizon", "3")
    assert code == 0, err
    head = "client,time,forecast,lower-80,upper-80,lower-95,upper-95"
    assert out.splitlines()[0] == head and len(out.splitlines()) == 13
    code, out, err = fuels("forecast", "r", "--data", csv, "--out", "next.parquet")
    assert code == 0, err
    assert len(pl.read_parquet(tmp_path / "next.parquet")) == 4
    code, _, err = fuels("forecast", "r", "--data", csv, "--out", "next.parquet")
    assert code == 1 and "--overwrite" in err


def test_the_config_reproduces_the_run(fuels: Fuels, csv: str, tmp_path: Path) -> None:
    assert fuels("run", "--data", csv, "--out", "a", "--seed", "3", *SMALL)[0] == 0
    code, _, err = fuels("run", "--config", "a/config.toml", "--out", "b", "--no-plots")
    assert code == 0, err
    models = ("models.safetensors", "mixture.safetensors")
    for name in ("config.toml", "metrics.jsonl", *models, "forecasts.parquet"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_another_preset_over_a_config_is_that_preset(fuels: Fuels, csv: str) -> None:
    assert fuels("run", "--data", csv, "--out", "a", *SMALL)[0] == 0
    assert fuels("run", "--data", csv, "--out", "b", "--preset", "paper", *SMALL)[0] == 0
    again = ("run", "--config", "a/config.toml", "--preset", "paper", "--out", "c")
    code, _, told = fuels(*again, "--rounds", "2", "--no-plots")
    assert code == 0 and "--preset paper replaces windows.lags" in told
    configs = [tomllib.loads(Path(name, "config.toml").read_text()) for name in "abc"]
    assert configs[2] == configs[1] != configs[0]
    _, _, err = fuels("run", "--config", "b/config.toml", "--out", "d", "--no-plots")
    assert "using preset paper, as b/config.toml says" in err


def test_json_is_the_summary(fuels: Fuels, csv: str, tmp_path: Path) -> None:
    code, out, _ = fuels("run", "--data", csv, "--out", "r", "--json", *SMALL)
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "r" / "summary.json").read_text())


def test_profile_shows_every_stage_of_a_round(fuels: Fuels, csv: str) -> None:
    code, out, err = fuels("run", "--data", csv, "--out", "r", "--profile", *SMALL)
    assert code == 0, err
    shown = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert {"train", "aggregate", "evaluate", "save"} <= set(shown)


def test_the_default_run_says_it_is_synthetic_and_quick(fuels: Fuels) -> None:
    code, out, err = fuels("run", "--clients", "3", *SMALL)
    assert code == 0, err
    assert "synthetic" in out and "--scale paper" in out + err
    assert "using preset best" in err and "--preset paper" in err and "Intervals" in out
    assert list(Path("runs").iterdir()) == [Path("runs/fuels-synthetic-net-seed0-001")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--data", "none.csv"], "none.csv"),
        (["run", "--method", "fuel"], "did you mean fuels"),
        (["run", "--preset", "papr"], "did you mean paper"),
        (["run", "--scale", "quik"], "did you mean quick"),
        (["run", "--set", "options.taau=1"], "did you mean tau"),
        (["run", "--set", "training.batch=12"], "row b is phase b"),
        (["run", "--set", "training.round=5"], "did you mean rounds"),
        (["run", "--config", "none.toml"], "none.toml: cannot be read"),
        (["run", "--resume", "nowhere"], "no run to continue"),
        (["run", "--resume", "nowhere", "--seed", "1"], "with its own settings"),
        (["run", "--split", "1/2"], "train/val/test"),
        (["run", "--clients", "5000000"], "clients"),
        (["forecast", "nowhere"], "no such run"),
        (["forecast", "nowhere", "--out", "x.txt"], ".parquet, .csv files only"),
        (["data", "describe", "none.parquet"], "none.parquet"),
    ],
)
def test_wrong_input_is_one_sentence(fuels: Fuels, words: list[str], message: str) -> None:
    code, out, err = fuels(*words)
    assert code == 1
    lines = [line for line in err.splitlines() if line.startswith("fuels: ")]
    assert len(lines) == 1 and message in lines[0]
    assert "Traceback" not in out + err
    assert not Path("runs").exists()


def test_unknown_options_are_usage_errors(fuels: Fuels) -> None:
    code, _, err = fuels("run", "--roundz", "5")
    assert code == 2 and "No such option: --roundz. Did you mean --rounds?" in err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty"),
        ("unique_id,ds,y\na,2024-01-01,x\n", "x"),
        ("unique_id,y\na,1\n", "time"),
        ("unique_id,ds,y\na,2024-01-01,1\na,2024-01-01,2\na,2024-01-02,2\n", "2024-01-01"),
    ],
)
def test_bad_tables_are_refused(fuels: Fuels, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "bad.csv").write_text(content)
    code, _, err = fuels("run", "--data", "bad.csv", "--out", "r")
    assert code == 1 and "bad.csv" in err and message in err and "Traceback" not in err
    assert not (tmp_path / "r").exists()


def test_nothing_is_overwritten(fuels: Fuels, csv: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    code, _, err = fuels("run", "--data", csv, "--out", "mine", *SMALL)
    assert code == 1 and "not empty" in err
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_infinite_values_are_refused(fuels: Fuels, tmp_path: Path) -> None:
    panel = make_panel(clients=2, days=14)
    panel.values[30, 1] = np.inf
    long_frame(panel).write_csv(tmp_path / "inf.csv")
    code, _, err = fuels("run", "--data", "inf.csv", "--out", "r")
    assert code == 1 and "inf.csv" in err and "c1" in err


def test_the_default_run_twice(
    fuels: Fuels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file is the same to the byte but for times and memory; 6144 numbers go up."""
    monkeypatch.setattr("fuels.runs.ahead.FARTHEST", 2)
    for name in ("one", "two"):
        code, _, err = fuels("run", "--clients", "4", "--rounds", "2", "--out", name)
        assert code == 0, err
    one, two = tmp_path / "one", tmp_path / "two"
    files = sorted(str(file.relative_to(one)) for file in one.rglob("*") if file.is_file())
    assert {"mixture.safetensors", "forecasts.parquet", "plots/experts.png"} <= set(files)
    assert files == sorted(str(file.relative_to(two)) for file in two.rglob("*") if file.is_file())
    assert {"report.html", "errors.parquet", "ahead.parquet"} <= set(files)
    for name in set(files) - {"timings.jsonl", "summary.json", "report.html"}:
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    first, second = (json.loads((folder / "summary.json").read_text()) for folder in (one, two))
    assert first["per_client_and_round"]["numbers_up"] == 6144
    for summary in (first, second):
        del summary["seconds"], summary["peak_memory_mb"]
    assert first == second
    written = (one / "report.html").read_bytes()
    (one / "report.html").unlink()
    assert fuels("report", "one") == (0, "one/report.html\n", "")
    assert (one / "report.html").read_bytes() == written
