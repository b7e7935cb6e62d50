"""`fuels backtest` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from helpers.commands import Fuels

TINY = ("--set", "model.hidden=4", "--rounds", "1", "--threads", "1", "--clients", "3")


def test_a_week_of_days_is_forecast_and_compared(fuels: Fuels, csv: str, tmp_path: Path) -> None:
    words = ("--horizon", "2", "--windows", "3", "--step", "24", "--out", "b")
    code, out, err = fuels("backtest", "--data", csv, *TINY, *words)
    assert code == 0, err
    assert "3 windows of 2 steps, 3 clients" in out and "MAE by steps ahead" in out
    assert "best naive forecast" in out and "window 3 of 3" in err
    summary = json.loads(Path("b/summary.json").read_text())
    table, clients = pl.read_parquet("b/forecasts.parquet"), pl.read_csv("b/clients.csv")
    assert len(table) == 3 * 2 * 3 and table["cutoff"].n_unique() == 3
    own = clients.filter(pl.col("model") == "FUELS")
    assert summary["errors"][0]["mae"] == pytest.approx(own["mae"].mean())
    assert {row["steps_ahead"] for row in summary["by_step"]} == {1, 2}
    code, _, err = fuels("backtest", "--data", csv, *TINY, *words)
    assert code == 1 and "b is not empty" in err
    code, _, err = fuels("backtest", "--resume", "b")
    assert code == 1 and "nothing to resume" in err


def test_what_cannot_work_is_refused_before_anything_is_written(
    fuels: Fuels, csv: str, tmp_path: Path
) -> None:
    code, _, err = fuels("backtest", "--data", csv, *TINY, "--windows", "999", "--out", "b")
    assert code == 1 and "999 windows of 24 steps" in err and not Path("b").exists()
    code, _, err = fuels("backtest", "--resume", "b")
    assert code == 1 and "no backtest to continue here" in err
    code, _, err = fuels("backtest", "--resume", "b", "--rounds", "3")
    assert code == 1 and "give no others" in err
