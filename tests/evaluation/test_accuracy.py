"""Errors on the data's own scale, against an independent library and by hand."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from utilsforecast import losses

from fuels.evaluation.accuracy import accuracy, naive_scales, overall
from helpers.panels import make_panel

MODELS = ["A", "B"]


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    rng = np.random.default_rng(0)
    rows = 60
    frame = pl.DataFrame(
        {
            "unique_id": np.repeat(["x", "y", "z"], rows // 3),
            "ds": np.tile(np.arange(rows // 3), 3),
            "y": rng.gamma(2.0, 5.0, rows),
            "A": rng.gamma(2.0, 5.0, rows),
            "B": rng.gamma(2.0, 5.0, rows),
        }
    )
    for level, width in ((80, 4.0), (95, 7.0)):
        bounds = {f"A-lo-{level}": pl.col("A") - width, f"A-hi-{level}": pl.col("A") + width}
        frame = frame.with_columns(**bounds)
    return frame


@pytest.fixture(scope="module")
def training() -> pl.DataFrame:
    rng = np.random.default_rng(1)
    return pl.DataFrame(
        {
            "unique_id": np.repeat(["x", "y", "z"], 30),
            "ds": np.tile(np.arange(30), 3),
            "y": rng.gamma(2.0, 5.0, 90),
        }
    )


def scales_of(training: pl.DataFrame, season: int) -> dict[str, float]:
    moved = (pl.col("y") - pl.col("y").shift(season)).abs().mean().over("unique_id")
    return dict(training.select("unique_id", moved).unique().iter_rows())


def test_errors_equal_those_of_an_independent_library(
    table: pl.DataFrame, training: pl.DataFrame
) -> None:
    found = accuracy(table, MODELS, scales_of(training, 7)).sort("unique_id")
    expected = {
        "mse": losses.mse(table, MODELS),
        "mae": losses.mae(table, MODELS),
        "bias": losses.bias(table, MODELS),
        "wape": losses.nd(table, MODELS),
        "mase": losses.mase(table, MODELS, seasonality=7, train_df=training),
    }
    for name, by_model in expected.items():
        for model in MODELS:
            own = found.filter(pl.col("model") == model)[name]
            assert own.to_list() == pytest.approx(by_model.sort("unique_id")[model], abs=1e-9)


def test_scores_of_intervals_equal_those_of_an_independent_library(table: pl.DataFrame) -> None:
    found = accuracy(table, ["A"], {"x": 1.0, "y": 1.0, "z": 1.0}).sort("unique_id")
    quantiles = {"A-lo-80": 0.1, "A-hi-80": 0.9, "A-lo-95": 0.025, "A-hi-95": 0.975}
    each = [
        losses.quantile_loss(table, {"A": bound}, q=q).sort("unique_id")["A"]
        for bound, q in quantiles.items()
    ]
    assert found["pinball"].to_list() == pytest.approx(np.mean(each, axis=0), abs=1e-9)
    for level in (80, 95):
        inside = losses.coverage(table, ["A"], level=level).sort("unique_id")["A"]
        assert found[f"coverage-{level}"].to_list() == pytest.approx(inside.to_list(), abs=1e-9)


def test_what_is_missing_does_not_count(table: pl.DataFrame) -> None:
    gaps = table.with_columns(
        y=pl.when(pl.col("ds") == 3).then(None).otherwise(pl.col("y")),
        B=pl.when(pl.col("ds") < 5).then(None).otherwise(pl.col("B")),
    )
    found = accuracy(gaps, MODELS, {})
    assert found.filter(pl.col("model") == "A")["values"].to_list() == [19] * 3
    assert found.filter(pl.col("model") == "B")["values"].to_list() == [15] * 3
    kept = gaps.drop_nulls(["y", "B"])
    own = found.filter(pl.col("model") == "B").sort("unique_id")["mae"]
    assert own.to_list() == pytest.approx(losses.mae(kept, ["B"]).sort("unique_id")["B"])
    assert found["mase"].null_count() == 6  # no scale, no ratio


def test_overall_gives_every_client_the_same_weight_but_for_wape() -> None:
    table = pl.DataFrame(
        {"unique_id": ["x", "x", "y"], "y": [1.0, 3.0, 10.0], "A": [2.0, 3.0, 7.0]}
    )
    row = overall(accuracy(table, ["A"], {"x": 1.0, "y": 2.0})).row(0, named=True)
    assert (row["clients"], row["values"]) == (2, 3)
    assert row["mae"] == pytest.approx((0.5 + 3.0) / 2)
    assert row["mase"] == pytest.approx((0.5 + 1.5) / 2)
    assert row["bias"] == pytest.approx((0.5 - 3.0) / 2)
    assert row["wape"] == pytest.approx(4.0 / 14.0)


def test_the_scale_of_mase_is_that_of_the_training_part() -> None:
    panel = make_panel(clients=2, days=6)
    values = panel.values[:72]
    expected = np.abs(values[24:] - values[:-24]).mean(axis=0)
    assert list(naive_scales(panel, 72, 24).values()) == pytest.approx(expected)
