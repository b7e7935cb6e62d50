"""Backtests: the same as fitting and predicting by hand, and nothing from the future."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fuels import Forecaster, FuelsError
from fuels.config import Engine
from fuels.forecasting.backtest import Plan, repeated, rolling
from fuels.forecasting.backtest_folder import BacktestFolder, forecaster_for
from fuels.forecasting.table import long_frame
from helpers.panels import make_panel

H, WINDOWS, STEP = 3, 3, 5
CHOSEN = {"model": {"hidden": 4}, "sharing": {"min_clients": 2}}


def small(**more: object) -> Forecaster:
    return Forecaster(rounds=2, threads=1, settings=CHOSEN | more)


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    return long_frame(make_panel(clients=3, days=16))


@pytest.fixture(scope="module")
def validated(frame: pl.DataFrame) -> pl.DataFrame:
    table: pl.DataFrame = small().cross_validation(H, WINDOWS, STEP, frame, level=[80])
    return table


def by_hand(frame: pl.DataFrame, cutoff: object, fitted: Forecaster | None) -> pl.DataFrame:
    past = frame.filter(pl.col("ds") <= cutoff)
    if fitted is None:
        return small().fit(past).predict(h=H, level=[80])
    seen = fitted._panel.times[-1].astype("datetime64[ms]").item()  # type: ignore[union-attr]
    new = past.filter(pl.col("ds") > seen)
    return fitted.predict(h=H, frame=new if len(new) else None, level=[80])


def test_it_equals_a_loop_of_fit_and_predict(frame: pl.DataFrame, validated: pl.DataFrame) -> None:
    columns = ["unique_id", "ds", "cutoff", "y", "FUELS", "FUELS-lo-80", "FUELS-hi-80"]
    assert validated.columns == columns and len(validated) == 3 * WINDOWS * H
    cutoffs = validated["cutoff"].unique().sort().to_list()
    assert [str(cutoff) for cutoff in cutoffs] == [
        f"2024-01-16 {hour}:00:00" for hour in (10, 15, 20)
    ]
    assert validated["ds"].max() == frame["ds"].max()
    fitted = small().fit(frame.filter(pl.col("ds") <= cutoffs[0]))
    for cutoff in cutoffs:
        own = validated.filter(pl.col("cutoff") == cutoff)
        expected = by_hand(frame, cutoff, fitted)
        assert own.select(expected.columns).equals(expected)
        actual = own.join(frame, on=["unique_id", "ds"], suffix="_true")
        assert (actual["y"] == actual["y_true"]).all() and len(actual) == len(own)


def test_with_refit_each_window_has_its_own_training(frame: pl.DataFrame) -> None:
    table = small().cross_validation(H, 2, STEP, frame, refit=True, level=[80])
    for cutoff in table["cutoff"].unique().sort():
        expected = by_hand(frame, cutoff, None)
        own = table.filter(pl.col("cutoff") == cutoff)
        assert own.select(expected.columns).equals(expected)


def test_trainings_by_window() -> None:
    assert [Plan(refit=0, windows=5).training(k) for k in range(1, 6)] == [1] * 5
    assert [Plan(refit=1, windows=5).training(k) for k in range(1, 6)] == [1, 2, 3, 4, 5]
    assert [Plan(refit=2, windows=5).training(k) for k in range(1, 6)] == [1, 1, 3, 3, 5]


def test_the_future_changes_no_earlier_window(frame: pl.DataFrame, validated: pl.DataFrame) -> None:
    cutoff = validated["cutoff"].unique().sort()[1]
    value = pl.when(pl.col("ds") > cutoff).then(pl.col("y") * 3).otherwise(pl.col("y"))
    other = small().cross_validation(H, WINDOWS, STEP, frame.with_columns(y=value), level=[80])
    earlier = pl.col("cutoff") <= cutoff
    assert other.filter(earlier).drop("y").equals(validated.filter(earlier).drop("y"))
    assert not other.filter(~earlier).drop("y").equals(validated.filter(~earlier).drop("y"))


def test_without_a_mixture_the_models_forecast(frame: pl.DataFrame) -> None:
    paper = Forecaster(preset="paper", rounds=2, threads=1, settings=CHOSEN)
    table = paper.cross_validation(2, 2, frame=frame)
    assert table.columns == ["unique_id", "ds", "cutoff", "y", "FUELS"]
    assert not table["FUELS"].is_null().any() and paper.models is None
    with pytest.raises(FuelsError, match="mixture of experts"):
        paper.cross_validation(2, 2, frame=frame, level=[80])


def test_windows_that_do_not_fit_are_refused(frame: pl.DataFrame) -> None:
    with pytest.raises(FuelsError, match="100 windows of 24 steps, 24 steps apart"):
        small().cross_validation(24, 100, frame=frame)
    with pytest.raises(FuelsError, match="windows must be a whole number, at least 1"):
        small().cross_validation(24, 0, frame=frame)
    with pytest.raises(FuelsError, match="no data"):
        small().cross_validation(24)


def test_naive_forecasts_repeat_known_values() -> None:
    past = np.arange(10.0)[:, None] + np.array([[0.0, 100.0]])
    past[9, 1] = np.nan
    assert repeated(past, 1, 2).tolist() == [[9.0, 9.0], [108.0, 108.0]]
    assert repeated(past, 4, 5)[0].tolist() == [6.0, 7.0, 8.0, 9.0, 6.0]
    assert repeated(past, 4, 5)[1].tolist() == [106.0, 107.0, 108.0, 105.0, 106.0]


# -- on disk -----------------------------------------------------------------------------------


def test_an_interrupted_backtest_ends_in_the_same_bytes(tmp_path: Path) -> None:
    panel, plan = make_panel(clients=3, days=16), Plan(2, 4, 6, refit=2)
    forecaster = forecaster_for(small().settings, Engine(threads=1), plan)
    whole, cut = BacktestFolder(tmp_path / "whole"), BacktestFolder(tmp_path / "cut")
    for folder in (whole, cut):
        folder.begin(forecaster.settings, forecaster.engine, plan, panel)
    summary = whole.run(forecaster, panel, plan)
    assert summary["lower_for"]["of"] == 3 and summary["errors"][0]["model"] == "FUELS"

    begun: list[int] = []

    def interrupt(number: int) -> None:
        begun.append(number)
        if begun == [1, 2, 3, 4]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut.run(forecaster, panel, plan, begun=interrupt)
    again, settings, engine, known = BacktestFolder.reopen(cut.path)
    assert known == plan
    again.run(forecaster_for(settings, engine, known), panel, known, begun=begun.append)
    assert begun == [1, 2, 3, 4, 4]
    for name in ("forecasts.parquet", "clients.csv", "summary.json"):
        assert (whole.path / name).read_bytes() == (cut.path / name).read_bytes(), name
    with pytest.raises(FuelsError, match="finished; there is nothing to resume"):
        BacktestFolder.reopen(cut.path)
    changed = replace(panel, values=panel.values + 1.0)
    with pytest.raises(FuelsError, match="the data have changed"):
        cut.run(forecaster, changed, plan)


def test_rolling_leaves_the_forecaster_as_it_was(frame: pl.DataFrame) -> None:
    fitted = small().fit(frame)
    before = fitted.predict(h=1)
    list(rolling(fitted, fitted._panel, Plan(1, 2, 1)))  # type: ignore[arg-type]
    assert fitted.predict(h=1).equals(before)
