"""`fuels forecast` on the command line: what is missing, where it may write, compiled code."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from fuels.cli.forecast import step_counter
from helpers.commands import FUELS, SMALL, Fuels


def test_forecasts_say_what_is_missing(fuels: Fuels, csv: str, tmp_path: Path) -> None:
    assert fuels("run", "--data", csv, "--out", "r", *SMALL)[0] == 0
    assert fuels("run", "--data", csv, "--preset", "paper", "--out", "p", *SMALL)[0] == 0
    (tmp_path / "empty").mkdir()
    code, _, err = fuels("forecast", "empty")
    assert code == 1 and "empty: not a finished run, models.safetensors is missing" in err
    code, _, err = fuels("forecast", "r", "--out", "nowhere/x.csv")
    assert code == 1 and "the folder nowhere does not exist" in err
    code, _, err = fuels("run", "--set", "data.source=")
    assert code == 1 and "data.source is empty" in err
    later = pl.col("ds").str.to_datetime().dt.offset_by("60d")  # the run's own data do not help
    silent = pl.read_csv(csv).with_columns(later, y=pl.lit(None, pl.Float64))
    silent.write_csv("silent.csv")
    for run in ("p", "r"):
        expected = fuels("forecast", run)[1]
        code, out, err = fuels("forecast", run, "--data", "silent.csv")
        assert code == 0 and out == expected and "silent: there is no value" in err
    code, _, err = fuels("forecast", "r", "--missing", "0")
    assert code == 1 and "--missing says how a file is read: give the file with --data" in err


def test_only_forecasts_that_were_made_are_counted(fuels: Fuels, csv: str, tmp_path: Path) -> None:
    assert fuels("run", "--data", csv, "--preset", "paper", "--out", "p", *SMALL)[0] == 0
    frame = pl.read_csv(csv)
    gone = frame["unique_id"][0]
    later = pl.col("ds").str.to_datetime().dt.offset_by("60d")
    value = pl.when(pl.col("unique_id") != gone).then(pl.col("y"))
    frame.with_columns(later, y=value).write_csv("one-silent.csv")
    code, _, err = fuels("forecast", "p", "--data", "one-silent.csv", "--out", "next.csv")
    made = pl.read_csv("next.csv")["forecast"]
    assert code == 0 and made.null_count() == 1 and len(made) == 4
    assert "3 forecasts in next.csv, 1 row without a forecast" in err


@pytest.mark.parametrize("preset", ["paper", pytest.param("best", marks=pytest.mark.nightly)])
def test_forecast_where_compiled_code_cannot_be_stored(
    fuels: Fuels, csv: str, tmp_path: Path, preset: str
) -> None:
    """Compiled in memory, the kernels give the same forecasts; preset best needs all of them."""
    assert fuels("run", "--data", csv, "--preset", preset, "--out", "r", *SMALL)[0] == 0
    expected = fuels("forecast", "r")[1]
    nowhere = "from numba.core.caching import CacheImpl; CacheImpl._locator_classes = []; "
    done = subprocess.run(
        [*FUELS[:2], nowhere + FUELS[2], "forecast", "r"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected and len(expected.splitlines()) == 5
    assert done.stderr.count("cannot be stored") == 1


def test_forecast_looks_at_its_target_before_anything_else(fuels: Fuels, tmp_path: Path) -> None:
    """A wrong --out is refused at once, not after minutes of forecasting."""
    (tmp_path / "folder.csv").mkdir()
    for out, words in (
        ("missing/next.csv", "the folder missing does not exist"),
        ("next.txt", "can write .parquet, .csv files only"),
        ("folder.csv", "is a folder"),
    ):
        code, _, err = fuels("forecast", "nowhere", "--out", out)
        assert code == 1 and words in err and "nowhere" not in err


def test_forecast_refuses_a_file_that_holds_no_models(fuels: Fuels, tmp_path: Path) -> None:
    (tmp_path / "models.safetensors").write_text("hi")
    code, _, err = fuels("forecast", "models.safetensors", "--data", "x.csv")
    assert code == 1 and "models.safetensors: not a readable" in err and len(err.splitlines()) == 1


def test_progress_names_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """10 s after the start a third is done, so 20 s are left; a second later nothing is added."""
    moments = iter([100.0, 110.0, 110.0, 111.0])
    clock = SimpleNamespace(monotonic=lambda: next(moments))
    monkeypatch.setattr("fuels.cli.forecast.time", clock)
    with step_counter(24) as progress:
        monkeypatch.setattr("fuels.cli.forecast.PATIENCE", 5.0)
        progress(8)
        progress(9)
    assert capsys.readouterr().err == "8 of 24 steps ahead, about 20 s left\n"
