"""Implausible values in new data: reported, left out of the forecast, and listed with scores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fuels.data.panel import Panel
from fuels.data.writers import write_panel
from fuels.forecasting.forecaster import Forecaster
from fuels.forecasting.table import long_frame
from helpers.commands import Fuels
from helpers.panels import make_panel

KNOWN = 18 * 24  # steps of `fit`


@pytest.fixture(scope="module")
def panel() -> Panel:
    return make_panel(clients=12, days=19)  # enough clients for a live mean


@pytest.fixture(scope="module")
def best(panel: Panel) -> Forecaster:
    settings = {"model": {"hidden": 6}}
    made = Forecaster(rounds=1, validation=2, threads=1, settings=settings)
    return made.fit(long_frame(part(panel, 0, KNOWN)))


def part(panel: Panel, first: int, last: int) -> Panel:
    return replace(panel, values=panel.values[first:last].copy(), start=panel.times[first])


def newest(panel: Panel, value: float | None = None, steps: int = 1) -> Panel:
    """What follows the data of `fit`; the last values of c3 replaced."""
    new = part(panel, KNOWN, panel.length)
    if value is not None:
        new.values[-steps:, 3] = value
    return new


def test_a_forecast_with_a_bad_value_is_the_one_without_it(best: Forecaster, panel: Panel) -> None:
    """Also of the other clients, which share a live mean."""
    spiked = best.predict(h=2, frame=long_frame(newest(panel, 99999.0)), level=[80])
    missing = best.predict(h=2, frame=long_frame(newest(panel, np.nan)), level=[80])
    assert spiked.equals(missing)
    assert spiked["FUELS-hi-80"].max() < 60


def test_anomalies_lists_every_value_with_its_score(best: Forecaster, panel: Panel) -> None:
    table = best.anomalies(long_frame(newest(panel, 99999.0)))
    assert table.columns == ["unique_id", "ds", "y", "score", "flag", "lower", "upper", "reason"]
    assert len(table) == 24 * 12 and table["ds"].min() == panel.times[KNOWN].astype(object)
    bad = table.filter("flag")
    assert bad.select("unique_id", "y", "reason").rows() == [("c3", 99999.0, "outside")]
    assert bad["score"][0] > 1 and bad["upper"][0] < 99999
    assert (table.filter(~pl.col("flag"))["score"] <= 1).all()
    assert len(best.anomalies()) == KNOWN * 12 and not best.anomalies()["flag"].any()


def test_the_command_reports_writes_and_obeys(
    best: Forecaster, panel: Panel, fuels: Fuels, tmp_path: Path
) -> None:
    best.save(tmp_path / "run")
    write_panel(newest(panel, 99999.0), tmp_path / "spike.csv")
    code, out, err = fuels(
        *("forecast", "run", "--data", "spike.csv", "--forget", "--anomalies", "found.csv")
    )
    assert code == 0
    assert "1 value of 1 client is implausible: c3 at 2024-01-19 23:00: 99999 (plausible: at" in err
    assert "counted as missing (--implausible keep uses all)" in err
    assert pl.read_csv(out.encode())["forecast"].max() < 60
    found = pl.read_csv("found.csv")
    assert len(found) == 24 * 12 and found.filter("flag")["client"].to_list() == ["c3"]
    words = ("forecast", "run", "--data", "spike.csv", "--forget", "--implausible")
    code, out, err = fuels(*words, "keep")
    assert code == 0 and "implausible" not in err
    assert pl.read_csv(out.encode())["forecast"].max() > 1000
    code, _, err = fuels(*words, "drop")
    assert code == 1 and "implausible must be missing or keep, not drop" in err
    code, _, err = fuels(*words, "keep", "--anomalies", "found.txt")
    assert code == 1 and "found.txt: can write .parquet, .csv files only" in err
