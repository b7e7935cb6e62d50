"""The Python interface on pandas and polars tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fuels import Forecaster, FuelsError
from fuels.experts.history import fill_from_earlier
from fuels.experts.personal_model import forecast
from fuels.experts.pool import Pool
from fuels.forecasting.table import long_frame
from helpers.panels import make_panel

SMALL = {"model": {"hidden": 8}}


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    return long_frame(make_panel(clients=4, days=20))


@pytest.fixture(scope="module")
def fitted(frame: pl.DataFrame) -> Forecaster:
    history = frame.filter(pl.col("ds") < pl.datetime(2024, 1, 17))
    settings = {**SMALL, "training": {"learning_rate": 0.01}}
    return Forecaster(preset="paper", rounds=40, settings=settings).fit(history)


@pytest.fixture(scope="module")
def best(frame: pl.DataFrame) -> Forecaster:
    """The preset people use, on the days before 17 January."""
    history = frame.filter(pl.col("ds") < pl.datetime(2024, 1, 17))
    return Forecaster(rounds=3, settings=SMALL).fit(history)


def test_predict_gives_the_next_steps(fitted: Forecaster) -> None:
    table = fitted.predict(h=5)
    assert table.columns == ["unique_id", "ds", "FUELS"]
    assert table["unique_id"].n_unique() == 4 and len(table) == 20
    first = table.filter(pl.col("unique_id") == "c0")["ds"]
    assert str(first[0]) == "2024-01-17 00:00:00" and str(first[4]) == "2024-01-17 04:00:00"


def test_predictions_follow_the_cycle(fitted: Forecaster) -> None:
    """A day ahead, recursively, the forecast stays closer than the mean would."""
    table = fitted.predict(h=24)
    truth = make_panel(clients=4, days=20).values[16 * 24 : 17 * 24]
    for i in range(4):
        predicted = table.filter(pl.col("unique_id") == f"c{i}")["FUELS"].to_numpy()
        assert np.mean((predicted - truth[:, i]) ** 2) < 0.3 * truth[:, i].var()


def test_evaluate_scores_what_comes_after(fitted: Forecaster, frame: pl.DataFrame) -> None:
    new = frame.filter(pl.col("ds") >= pl.datetime(2024, 1, 17))
    table = fitted.evaluate(new)
    assert table["values"].to_list() == [96] * 4
    assert (table["mse"] < 0.2).all()
    ratio = table["mse_unit"] / table["mse"]
    assert ratio.to_list() == pytest.approx((fitted.models.std**2).tolist())  # type: ignore[union-attr]


def test_evaluate_scores_the_rows_it_is_given(fitted: Forecaster, frame: pl.DataFrame) -> None:
    """Also rows from the middle of what `fit` saw, and never others."""
    middle = frame.filter(pl.col("ds").is_between(pl.datetime(2024, 1, 8), pl.datetime(2024, 1, 9)))
    table = fitted.evaluate(middle)
    assert table["values"].to_list() == [25] * 4 and (table["mse"] < 0.2).all()
    assert (fitted.evaluate(middle.with_columns(pl.col("y") + 100))["mse"] > 10).all()
    shifted = middle.with_columns(pl.col("ds").dt.offset_by("30m"))
    with pytest.raises(FuelsError, match="do not fall on the steps"):
        fitted.evaluate(shifted)


def test_data_that_end_in_mid_period_are_fitted(frame: pl.DataFrame) -> None:
    cut = frame.filter(pl.col("ds") < pl.datetime(2024, 1, 20, 19))
    table = Forecaster(rounds=1, settings=SMALL).fit(cut).predict()
    assert str(table["ds"][0]) == "2024-01-20 19:00:00"


def test_saved_and_loaded_is_the_same(fitted: Forecaster, tmp_path: Path) -> None:
    fitted.save(tmp_path / "f")
    loaded = Forecaster.load(tmp_path / "f")
    assert loaded.predict(h=3).equals(fitted.predict(h=3))


def test_saving_overwrites_only_what_it_is_told_to(fitted: Forecaster, tmp_path: Path) -> None:
    folder = tmp_path / "f"
    with pytest.raises(FuelsError, match="no models yet"):
        Forecaster().save(folder)
    assert not folder.exists()
    fitted.save(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(FuelsError, match=r"f is not empty; choose .* or give overwrite=True"):
        fitted.save(folder)
    fitted.save(folder, overwrite=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(FuelsError, match=r"contains thesis\.txt, which save did not write"):
        fitted.save(folder, overwrite=True)
    with pytest.raises(FuelsError, match="is a file; save writes a folder"):
        fitted.save(folder / "thesis.txt")
    with pytest.raises(FuelsError, match="cannot be written"):
        fitted.save(folder / "thesis.txt" / "f")


def test_wrong_settings_are_sentences(frame: pl.DataFrame) -> None:
    for wrong in (-1, "x"):
        with pytest.raises(FuelsError, match="whole number of periods"):
            Forecaster(validation=wrong)  # type: ignore[arg-type]
    with pytest.raises(FuelsError, match="of which 99 are for validation"):
        Forecaster(validation=99).fit(frame)
    with pytest.raises(FuelsError, match="a dict of sections"):
        Forecaster(settings=3)  # type: ignore[arg-type]
    for column, message in (("y", "no value column"), ("ds", "unique_id, ds and y are needed")):
        with pytest.raises(FuelsError, match=message):
            Forecaster().fit(frame.drop(column))
    with pytest.raises(FuelsError, match=r"span 1\.0 periods .* training needs at least 5"):
        Forecaster().fit(frame.filter(pl.col("ds") < pl.col("ds").min().dt.offset_by("1d")))


def test_pandas_in_pandas_out(frame: pl.DataFrame) -> None:
    table = pd.DataFrame({name: frame[name].to_list() for name in frame.columns})
    fitted = Forecaster(rounds=2, settings=SMALL).fit(table)
    predicted = fitted.predict(h=2)
    assert isinstance(predicted, pd.DataFrame)
    assert predicted.columns.tolist() == ["unique_id", "ds", "FUELS"]
    same = Forecaster(rounds=2, settings=SMALL).fit(frame).predict(h=2)
    assert predicted["FUELS"].tolist() == pytest.approx(same["FUELS"].to_list())


def test_results_can_be_joined_with_the_frame(frame: pl.DataFrame) -> None:
    """Ids that are numbers stay numbers, and times keep their unit."""
    number = pl.col("unique_id").str.tail(1).cast(pl.Int32)
    given = frame.with_columns(unique_id=number, ds=pl.col("ds").dt.cast_time_unit("us"))
    fitted = Forecaster(preset="paper", rounds=1, settings=SMALL).fit(given)
    table = fitted.cross_validation(h=2, n_windows=2)
    assert table.schema["unique_id"] == pl.Int32 and table.schema["cutoff"] == pl.Datetime("us")
    joined = table.join(given, on=["unique_id", "ds"], suffix="_given")
    assert len(joined) == len(table) == 16 and (joined["y"] == joined["y_given"]).all()
    again = pd.DataFrame(given.to_dict(as_series=False))
    assert fitted.predict(h=1, frame=again)["unique_id"].dtype.kind == "i"


def test_errors_are_sentences(fitted: Forecaster) -> None:
    with pytest.raises(FuelsError, match="call fit or load first"):
        Forecaster().predict()
    with pytest.raises(FuelsError, match="unknown method"):
        Forecaster(method="fedavgg")
    with pytest.raises(FuelsError, match="horizon"):
        fitted.predict(h=0)
    with pytest.raises(FuelsError, match="pandas or polars"):
        fitted.predict(frame=[1, 2])
    stranger = long_frame(make_panel(clients=1)).with_columns(unique_id=pl.lit("zz"))
    with pytest.raises(FuelsError, match="has a model"):
        fitted.predict(frame=stranger)
    with pytest.raises(FuelsError, match="too few"):
        fitted.predict(frame=long_frame(make_panel(clients=4, days=2)))


def test_a_missing_newest_value_is_filled_from_the_past(fitted: Forecaster) -> None:
    panel = make_panel(clients=4, days=20)
    panel.values[-2:, 1] = np.nan
    panel.values[-30:, 2] = np.nan  # silent for more than a day: no forecast
    with pytest.warns(UserWarning, match="newest values are missing: c2"):
        result = forecast(fitted.models, panel, 1)  # type: ignore[arg-type]
    assert np.isfinite(result.values[[0, 1, 3]]).all() and np.isnan(result.values[2]).all()
    assert result.missing == ("c2",)


def test_filling_from_the_past_by_hand() -> None:
    nan = np.nan
    values = np.array([1.0, 2, nan, 4, 5, nan, nan, 8])[:, None]
    filled = fill_from_earlier(values.T, 2)[0]
    np.testing.assert_array_equal(filled, [1, 2, 1, 4, 5, 4, 5, 8])


def test_the_future_does_not_change_a_forecast(fitted: Forecaster, frame: pl.DataFrame) -> None:
    cut = pl.datetime(2024, 1, 18, 7)
    known = frame.filter(pl.col("ds") < cut)
    direct = fitted.predict(h=1, frame=known)
    altered = frame.with_columns(
        y=pl.when(pl.col("ds") >= cut).then(pl.col("y") * -50).otherwise(pl.col("y"))
    )
    again = fitted.predict(h=1, frame=altered.filter(pl.col("ds") < cut))
    assert direct.equals(again)


# -- the preset with experts -------------------------------------------------------------------


def test_intervals_stand_beside_the_forecast(best: Forecaster) -> None:
    table = best.predict(h=2, level=[80, 95])
    names = ["FUELS-lo-80", "FUELS-hi-80", "FUELS-lo-95", "FUELS-hi-95"]
    assert table.columns == ["unique_id", "ds", "FUELS", *names]
    for row in table.iter_rows(named=True):
        assert row["FUELS-lo-95"] <= row["FUELS-lo-80"] <= row["FUELS"]
        assert row["FUELS"] <= row["FUELS-hi-80"] <= row["FUELS-hi-95"]
    assert best.predict(h=2).columns == ["unique_id", "ds", "FUELS"]
    odd = best.predict(level=[50])
    assert (odd["FUELS-hi-50"] <= best.predict(level=[80])["FUELS-hi-80"]).all()


def test_the_paper_has_no_intervals(fitted: Forecaster) -> None:
    with pytest.raises(FuelsError, match="preset='best'"):
        fitted.predict(level=[80])
    assert "best" in repr(Forecaster()) and "paper" in repr(fitted)
    with pytest.raises(FuelsError, match="did you mean best"):
        Forecaster(preset="bset")
    with pytest.raises(FuelsError, match=r"use Forecaster\(preset="):
        Forecaster(settings={"preset": "paper"})
    budgets = [Forecaster(preset=p).settings.training.rounds for p in ("best", "paper")]
    assert budgets == [40, 200] and Forecaster(rounds=3).settings.training.rounds == 3


def test_the_mixture_is_evaluated_after_its_training_only(
    best: Forecaster, frame: pl.DataFrame
) -> None:
    new = frame.filter(pl.col("ds") >= pl.datetime(2024, 1, 17))
    table = best.evaluate(new)
    assert table["values"].to_list() == [96] * 4 and (table["mse"] < 0.2).all()
    assert best.evaluate(new).equals(table)  # nothing is remembered from call to call
    with pytest.raises(FuelsError, match="evaluate needs later values"):
        best.evaluate(frame.filter(pl.col("ds") < pl.datetime(2024, 1, 9)))
    with pytest.raises(FuelsError, match="before the end of the training"):
        best.predict(frame=frame.filter(pl.col("ds") < pl.datetime(2024, 1, 9)))


def test_new_values_move_the_mixture_on(best: Forecaster, frame: pl.DataFrame) -> None:
    known = frame.filter(pl.col("ds") < pl.datetime(2024, 1, 18, 7))
    alone = known.filter(pl.col("ds") >= pl.datetime(2024, 1, 17))  # the rest is known from `fit`
    table = best.predict(frame=known)
    assert table.equals(best.predict(frame=alone))
    assert str(table["ds"][0]) == "2024-01-18 07:00:00"


def test_a_saved_mixture_is_the_same(best: Forecaster, tmp_path: Path) -> None:
    best.save(tmp_path / "f")
    loaded = Forecaster.load(tmp_path / "f")
    assert loaded.predict(h=2, level=[90]).equals(best.predict(h=2, level=[90]))


def test_experts_are_fitted_once_per_horizon(
    best: Forecaster, frame: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By fit, or by the first call that needs the horizon; other levels need no fitting."""
    before = best.predict(h=3, level=[90])
    new = frame.filter(pl.col("ds") >= pl.datetime(2024, 1, 17))
    best.save(tmp_path / "f")
    loaded = Forecaster.load(tmp_path / "f")
    fits: list[int] = []
    fit = Pool.fit
    monkeypatch.setattr(Pool, "fit", lambda *given: [fits.append(given[3]), fit(*given)][1])
    assert best.predict(h=3, level=[90]).equals(before)
    assert loaded.predict(h=3).equals(best.predict(h=3))
    best.predict(h=2, frame=new, level=[60, 70])
    best.evaluate(new)
    assert fits == []
    best.predict(h=5)
    best.predict(h=5)
    assert fits == [4, 4, 5, 5]  # before the warm-up, and on all of training


def test_a_wrong_number_of_threads_is_refused_when_it_is_given() -> None:
    with pytest.raises(FuelsError, match=r"engine\.threads must not be negative; it is -1"):
        Forecaster(threads=-1)
