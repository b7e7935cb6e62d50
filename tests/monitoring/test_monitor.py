"""`fuels monitor` over days of hourly forecasts: nothing before a drift, and the drift soon."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest

from fuels.experts.table import forecast_table
from fuels.forecasting.issued import record
from fuels.forecasting.saved_run import SavedRun
from helpers.commands import Fuels
from helpers.live import NOW, copied, drifted, follow, hours, whole_panel


def monitored(fuels: Fuels, *words: str) -> dict:
    code, out, err = fuels("monitor", "run", "--json", *words)
    assert code == 0, err
    found: dict = json.loads(out)
    return found


def kinds(found: dict) -> set[tuple[str, str]]:
    return {(flag["kind"], flag["what"]) for flag in found["flags"]}


def hours_after(moment: str, start: str) -> float:
    return (datetime.fromisoformat(moment) - datetime.fromisoformat(start)).total_seconds() / 3600


def test_a_short_week(fuels: Fuels, small_run: Path, tmp_path: Path) -> None:
    """Three days as usual, then one whose pattern is six hours late."""
    folder, at = copied(small_run, tmp_path / "run"), NOW + 3 * 24
    panel = drifted(whole_panel(), at, "pattern")
    follow(folder, panel, NOW, NOW + 2)
    follow(folder, panel, NOW + 2, at, horizon=2)
    before = monitored(fuels, "--fail-on", "flags")
    assert before["flags"] == [] and before["retrain"]["advice"] == "no"
    assert [row["steps"] for row in before["steps_ahead"]] == [1, 2]
    follow(folder, panel, at, at + 24)
    after = monitored(fuels)
    assert ("drift", "errors") in kinds(after) and ("drift", "values") in kinds(after)
    start = str(panel.times[at] + panel.standard_offset)
    for kind in ("errors", "values"):
        alarm = after["drift"][kind]["together"]
        assert -2 <= hours_after(alarm["since"], start) <= 1
        assert 0 <= hours_after(alarm["raised"], start) < 24 and alarm["lasts"]
    assert after["retrain"]["advice"] == "soon" and "errors have been" in str(after["retrain"])
    assert fuels("monitor", "run", "--fail-on", "drift")[0] == 3
    assert fuels("monitor", "run", "--fail-on", "retrain")[0] == 3
    code, out, _ = fuels("monitor", "run")
    assert code == 0 and "Advice: train again from" in out and "last week" in out
    code, _, err = fuels("report", "run")
    assert code == 0, err
    page = (folder / "report.html").read_text()
    assert "How the forecasts did since" in page and "errors have been" in page


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
    assert code == 1 and "--fail-on takes drift, retrain, flags, not rain" in err
    code, _, err = fuels("monitor", "nowhere")
    assert code == 1 and "no such run" in err


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["none", "level", "scale", "pattern"])
def test_a_week(kind: str, fuels: Fuels, small_run: Path, tmp_path: Path) -> None:
    """Five days as usual, then two with a drift."""
    folder, at = copied(small_run, tmp_path / "run"), NOW + 5 * 24 + 7
    panel = drifted(whole_panel(), at, kind)
    follow(folder, panel, NOW, at)
    assert not {"drift", "clients"} & {kind for kind, _ in kinds(monitored(fuels))}
    follow(folder, panel, at, NOW + 7 * 24)
    found = monitored(fuels)
    alarms = [one["together"] for one in found["drift"].values() if one["together"] is not None]
    assert bool(alarms) == (kind != "none")
    start = str(panel.times[at] + panel.standard_offset)
    for alarm in alarms:
        assert 0 <= hours_after(alarm["raised"], start) < 41
