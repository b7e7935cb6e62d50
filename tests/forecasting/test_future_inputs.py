"""External inputs from end to end: Forecaster, and run, forecast, backtest, retrain by command."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fuels import Forecaster
from fuels.errors import FuelsError
from fuels.forecasting.table import long_frame
from fuels.storage.panels import read_panel_file
from helpers.commands import SMALL, Fuels
from helpers.panels import make_panel

DAYS, NEW = 24, 36  # the newest hours are in another file
SETTINGS = {"model": {"hidden": 4}}


@pytest.fixture(scope="module")
def frames() -> tuple[pl.DataFrame, pl.DataFrame]:
    """Series of which a temperature adds twice the noise, and the temperature, also of later."""
    panel = make_panel(clients=4, days=DAYS + 3)
    draw = np.random.default_rng(5)
    driver = np.round(np.convolve(draw.normal(size=panel.length + 5), np.ones(6), "valid"), 3)
    weather = pl.DataFrame({"ds": panel.times.astype("datetime64[ms]"), "temperature": driver})
    table = long_frame(panel).join(weather, on="ds")
    table = table.with_columns(y=pl.col("y") + 50 + pl.col("temperature")).drop("temperature")
    return table.filter(pl.col("ds") < weather["ds"][DAYS * 24]), weather


def part(table: pl.DataFrame, first: int, last: int) -> pl.DataFrame:
    times = table["ds"].unique().sort()
    return table.filter(pl.col("ds").is_in(times[first:last].implode()))


def error(made: pl.DataFrame, truth: pl.DataFrame) -> float:
    both = made.join(truth, on=["unique_id", "ds"])
    return float(((both["Solo"] - both["y"]) ** 2).mean())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def fitted(frames: tuple[pl.DataFrame, pl.DataFrame]) -> Forecaster:
    table, weather = frames
    known = part(table, 0, DAYS * 24 - NEW).join(weather, on="ds")
    made = Forecaster("solo", rounds=1, settings=SETTINGS, inputs=["temperature"])
    return made.fit(known)


def test_a_driver_lowers_the_error(
    fitted: Forecaster, frames: tuple[pl.DataFrame, pl.DataFrame]
) -> None:
    table, weather = frames
    truth = part(table, DAYS * 24 - NEW, DAYS * 24)
    with_it = fitted.predict(h=12, X_df=weather)
    with pytest.warns(UserWarning, match="temperature has no value at 12 of the 12 steps ahead"):
        without = fitted.predict(h=12)
    assert error(with_it, truth) < 0.2 * error(without, truth)
    for_each = truth.select("unique_id", "ds").join(weather, on="ds")
    by_client = fitted.predict(h=12, X_df=pd.DataFrame(for_each.to_dict(as_series=False)))
    assert by_client["Solo"].to_list() == with_it["Solo"].to_list()
    partly = weather.filter(pl.col("ds") < truth["ds"].min() + pl.duration(hours=4))  # type: ignore[operator]
    with pytest.warns(UserWarning, match=r"8 of the 12 steps ahead: .* \(X_df gives values\)"):
        some = fitted.predict(h=12, X_df=partly)
    hour = pl.col("ds").rank("dense")
    one, two = (frame.filter(hour <= 4)["Solo"].to_list() for frame in (some, with_it))
    assert one == two
    rest = some.filter(hour > 4)["Solo"].to_list()
    assert rest == without.filter(hour > 4)["Solo"].to_list() and None not in rest


def test_a_forecaster_keeps_its_inputs(
    fitted: Forecaster, frames: tuple[pl.DataFrame, pl.DataFrame], tmp_path: Path
) -> None:
    table, weather = frames
    expected = fitted.predict(h=3, X_df=weather)["Solo"].to_list()
    fitted.save(tmp_path / "saved")
    loaded = Forecaster.load(tmp_path / "saved")
    assert loaded.predict(h=3, X_df=weather)["Solo"].to_list() == expected
    newest = part(table, DAYS * 24 - NEW, DAYS * 24)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded.predict(h=3, frame=newest, X_df=weather)
    errors = loaded.evaluate(newest.join(weather, on="ds"))["mse"].mean()
    assert errors < 0.5 * loaded.evaluate(newest)["mse"].mean()  # type: ignore[operator]
    with pytest.raises(FuelsError, match="X_df: this forecaster was made without inputs"):
        Forecaster("solo", rounds=1, settings=SETTINGS).fit(table).predict(1, X_df=weather)
    with pytest.raises(FuelsError, match=r"^inputs=\['wind'\]: there is no such column in frame"):
        Forecaster(inputs=["wind"]).fit(table)


def test_personal_models_use_inputs_without_any_expert(
    frames: tuple[pl.DataFrame, pl.DataFrame], tmp_path: Path
) -> None:
    table, weather = frames
    known = part(table, 0, DAYS * 24 - NEW).join(weather, on="ds")
    made = Forecaster("solo", rounds=8, settings=SETTINGS, inputs=["temperature"], preset="paper")
    truth = part(table, DAYS * 24 - NEW, DAYS * 24)
    with_it = made.fit(known).predict(h=12, X_df=weather)
    with pytest.warns(UserWarning, match="temperature has no value at 12 of the 12 steps ahead"):
        without = made.predict(h=12)
    assert error(with_it, truth) < 0.75 * error(without, truth)
    made.save(tmp_path / "saved")
    assert Forecaster.load(tmp_path / "saved").predict(h=12, X_df=weather).equals(with_it)
    newest = made.evaluate(truth.join(weather, on="ds"))["mse"].mean()
    assert newest < 0.75 * made.evaluate(truth)["mse"].mean()  # type: ignore[operator]


def test_backtests_know_the_inputs(frames: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    table, weather = frames
    made = Forecaster("solo", rounds=1, settings=SETTINGS, inputs=["temperature"])
    windows = made.cross_validation(6, 2, frame=table.join(weather, on="ds"), refit=True)
    blind = Forecaster("solo", rounds=1, settings=SETTINGS).cross_validation(6, 2, frame=table)
    assert error(windows, table) < 0.3 * error(blind, table)


@pytest.fixture
def files(frames: tuple[pl.DataFrame, pl.DataFrame], tmp_path: Path) -> Path:
    table, weather = frames
    part(table, 0, DAYS * 24 - NEW).write_csv(tmp_path / "old.csv")
    part(table, DAYS * 24 - NEW, DAYS * 24).write_csv(tmp_path / "new.csv")
    weather[: DAYS * 24 - NEW].write_csv(tmp_path / "past.csv")
    weather[DAYS * 24 - NEW :].write_csv(tmp_path / "weather.csv")
    return tmp_path


def test_inputs_by_command(fuels: Fuels, files: Path) -> None:
    given = ("--data", "old.csv", "--inputs", "temperature", "--inputs-file", "past.csv")
    code, _, err = fuels("run", *given, "--method", "solo", "--out", "r", *SMALL)
    assert code == 0, err
    summary = json.loads((files / "r" / "summary.json").read_text())
    assert summary["data"]["inputs"] == ["temperature"]
    code, out, err = fuels("forecast", "r", "--horizon", "2")
    assert code == 0 and "temperature has no value at 2 of the 2 steps ahead" in err
    code, later, err = fuels("forecast", "r", "--horizon", "2", "--inputs-file", "weather.csv")
    assert code == 0 and "note" not in err and later != out
    assert fuels("forecast", "r", "--horizon", "2")[1] == later  # they are remembered
    shutil.copytree(files / "r", files / "copy")
    code, both, err = fuels("forecast", "r", "--data", "new.csv", "--horizon", "2")
    assert code == 0 and "note" not in err
    together = ("--data", "new.csv", "--inputs-file", "weather.csv", "--horizon", "2", "--forget")
    assert fuels("forecast", "copy", *together)[1] == both
    pl.read_csv("new.csv").join(pl.read_csv("weather.csv"), on="ds").write_csv("joined.csv")
    code, joined, err = fuels("forecast", "copy", "--data", "joined.csv", "--forget")
    assert code == 0 and "1 of the 1 steps ahead" in err and len(joined.splitlines()) == 5
    code, _, err = fuels("retrain", "r", "--out", "second", "--no-plots", "--threads", "1")
    assert code == 0, err
    stored = read_panel_file(files / "second" / "history.safetensors")[0]
    assert stored.inputs["temperature"].length > stored.length > (DAYS * 24 - NEW)
    (files / "past.csv").unlink()
    assert fuels("forecast", "second", "--horizon", "2")[0] == 0


def test_inputs_by_command_without_experts(fuels: Fuels, files: Path) -> None:
    given = ("--data", "old.csv", "--inputs", "temperature", "--inputs-file", "past.csv")
    words = (*given, "--preset", "paper", "--method", "solo", *SMALL)
    code, _, err = fuels("run", *words, "--out", "r")
    assert code == 0, err
    code, out, err = fuels("forecast", "r", "--horizon", "2")
    assert code == 0 and "temperature has no value at 2 of the 2 steps ahead" in err
    code, later, err = fuels("forecast", "r", "--horizon", "2", "--inputs-file", "weather.csv")
    assert code == 0 and "note" not in err and later != out
    assert fuels("forecast", "r", "--horizon", "2")[1] == later  # they are remembered


def test_commands_refuse_what_cannot_be_used(fuels: Fuels, files: Path) -> None:
    def refused(said: str, *words: str) -> None:
        code, _, err = fuels(*words)
        assert code == 1 and said in err and "Traceback" not in err, err

    start = ("run", "--data", "old.csv", "--out", "r", *SMALL)
    refused("--inputs=wind: there is no such column in old.csv", *start, "--inputs", "wind")
    refused("name the columns that are inputs", *start, "--inputs-file", "past.csv")
    refused("no such file", *start, "--inputs", "a", "--inputs-file", "nowhere.csv")
    assert fuels(*start)[0] == 0
    refused("trained without external inputs", "forecast", "r", "--inputs-file", "weather.csv")
