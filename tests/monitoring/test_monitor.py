"""`fuels monitor`: its figures are those of the forecasts that were issued."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from fuels.experts.table import forecast_table
from fuels.forecasting.issued import record
from fuels.forecasting.saved_run import SavedRun
from helpers.commands import Fuels
from helpers.live import NOW, copied, follow, hours, whole_panel


def monitored(fuels: Fuels, *words: str) -> dict:
    code, out, err = fuels("monitor", "run", "--json", *words)
    assert code == 0, err
    found: dict = json.loads(out)
    return found


def test_errors_are_those_of_the_forecasts_that_were_issued(
    fuels: Fuels, small_run: Path, tmp_path: Path
) -> None:
    """By hand, from the tables that `fuels forecast` prints; a late value counts, too."""
    folder, panel = copied(small_run, tmp_path / "run"), whole_panel()
    tables = []
    for step in range(NOW, NOW + 4):
        new = hours(panel, step, step + 1)
        if step == NOW + 1:
            new.values[0, 2] = float("nan")
        saved = SavedRun.load(folder)
        made, _ = saved.forecast(new)
        record(saved, made)
        tables.append(forecast_table(made))
    late = hours(panel, NOW + 1, NOW + 2)
    SavedRun.load(folder).forecast(late)
    actual = {
        (client, step): panel.values[step, i]
        for i, client in enumerate(panel.ids)
        for step in range(NOW + 1, NOW + 4)
    }
    errors: dict[str, list[float]] = {client: [] for client in panel.ids}
    for step, table in enumerate(tables[:3], start=NOW + 1):
        for row in table.iter_rows(named=True):
            errors[row["client"]].append(abs(row["forecast"] - actual[row["client"], step]))
    found = monitored(fuels)
    by_client = {row["client"]: row for row in found["by_client"]}
    for client, own in errors.items():
        assert by_client[client]["values"] == 3
        assert by_client[client]["mae"] == pytest.approx(sum(own) / 3, rel=1e-5)
    test = found["windows"]["test part"]["errors"]["FUELS"]
    own_file = pl.read_parquet(folder / "forecasts.parquet").drop_nulls()
    mae = own_file.group_by("client").agg((pl.col("forecast") - pl.col("actual")).abs().mean())
    assert test["mae"] == pytest.approx(mae["forecast"].mean(), rel=1e-9)
    scores = json.loads((folder / "summary.json").read_text())["scores"]
    naive = found["windows"]["test part"]["errors"]["one week ago"]["mae"]
    assert naive == pytest.approx(scores["one week ago"]["mae_unit"], rel=1e-4)


def test_without_anything_to_compare(fuels: Fuels, small_run: Path, tmp_path: Path) -> None:
    folder = copied(small_run, tmp_path / "run")
    code, _, err = fuels("monitor", "run")
    assert code == 1 and "no past forecasts to compare" in err
    code, _, err = fuels("forecast", "run")
    assert code == 0, err
    found = monitored(fuels)
    assert found["retrain"]["advice"] == "unknown" and found["forecasts"]["steps"] == 0
    assert fuels("monitor", "run")[0] == 0
    (folder / "forecasts.parquet").unlink()  # as in a folder of Forecaster.save
    follow(folder, whole_panel(), NOW, NOW + 2)
    found = monitored(fuels)
    assert found["retrain"]["advice"] == "unknown" and "test part" not in found["windows"]
    code, _, err = fuels("monitor", "run", "--fail-on", "rain")
    assert code == 1 and "--fail-on must be one of drift, retrain, flags, not rain" in err
    code, _, err = fuels("monitor", "nowhere")
    assert code == 1 and "no such run" in err
