"""How good forecasts are on the data's own scale: one row per client and model, and overall.

The input is a long table with a row per client and time: the actual value in `y`, a column per
model, and bounds of intervals as `MODEL-lo-80` and `MODEL-hi-80`. A row without a value, or without
the model's forecast, does not count. All errors are in the unit of the data except MASE, WAPE and
coverage, which have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from fuels.data.means import mean
from fuels.data.panel import Panel

ERRORS = ("mse", "mae", "wape", "mase", "bias")


def accuracy(
    table: pl.DataFrame,
    models: Sequence[str],
    scales: Mapping[str, float],
    by: Sequence[str] = ("unique_id",),
) -> pl.DataFrame:
    """Errors of each model by client, or by what `by` says: mse, mae, wape, mase, bias, and for
    models with intervals pinball and coverage-LEVEL.

    mase is the MAE over the client's `scales`; wape is the sum of the absolute errors over that of
    the absolute values (`total`); bias is the mean of forecast minus actual value; pinball is the
    mean loss of all bounds. `values` counts the values compared.
    """
    return pl.concat([_errors(table, model, scales, list(by)) for model in models], how="diagonal")


def overall(found: pl.DataFrame, by: Sequence[str] = ("model",)) -> pl.DataFrame:
    """Means over the clients, each with the same weight; WAPE is that of all values together."""
    counted = {"unique_id", "values", "total", "wape"}
    means = [pl.col(name).mean() for name in found.columns if name not in counted | {*by}]
    absolute = (pl.col("mae") * pl.col("values")).sum()
    result = found.group_by(by, maintain_order=True).agg(
        pl.col("unique_id").n_unique().alias("clients"),
        pl.col("values").sum(),
        _ratio(absolute, pl.col("total").sum()).alias("wape"),
        *means,
    )
    order = [*by, "clients", "values", *ERRORS]
    return result.select(*order, pl.exclude(order))


def naive_scales(panel: Panel, end: int, period: int) -> dict[str, float]:
    """The MAE of "same time one period ago" over the steps before `end`, by client: for MASE."""
    values = panel.values[:end]
    moved = mean(np.abs(values[period:] - values[:-period]), axis=0)
    return dict(zip(panel.ids, moved.tolist(), strict=True))


def levels_of(table: pl.DataFrame, model: str) -> list[str]:
    """The levels of a model's intervals, as in the names of its columns."""
    start = f"{model}-lo-"
    return [name.removeprefix(start) for name in table.columns if name.startswith(start)]


def _errors(
    table: pl.DataFrame, model: str, scales: Mapping[str, float], by: list[str]
) -> pl.DataFrame:
    y, made = pl.col("y"), pl.col(model)
    known = table.filter(y.is_not_null() & made.is_not_null())
    error, levels = made - y, levels_of(table, model)
    losses = []
    for level in levels:
        below = (1.0 - float(level) / 100.0) / 2.0
        for side, quantile in (("lo", below), ("hi", 1.0 - below)):
            missed = y - pl.col(f"{model}-{side}-{level}")
            losses.append(pl.max_horizontal(quantile * missed, (quantile - 1.0) * missed))
    inside = [
        y.is_between(pl.col(f"{model}-lo-{level}"), pl.col(f"{model}-hi-{level}"))
        .mean()
        .alias(f"coverage-{level}")
        for level in levels
    ]
    pinball = [pl.mean_horizontal(losses).mean().alias("pinball")] if losses else []
    counted = known.group_by(by, maintain_order=True).agg(
        pl.len().alias("values"),
        y.abs().sum().alias("total"),
        (error**2).mean().alias("mse"),
        error.abs().mean().alias("mae"),
        _ratio(error.abs().sum(), y.abs().sum()).alias("wape"),
        error.mean().alias("bias"),
        *pinball,
        *inside,
    )
    unit = pl.col("unique_id").replace_strict(dict(scales), default=None, return_dtype=pl.Float64)
    order = [*by, "model", "values", "total", *ERRORS]
    named = counted.with_columns(
        pl.lit(model).alias("model"), _ratio(pl.col("mae"), unit).alias("mase")
    )
    return named.select(*order, pl.exclude(order))


def _ratio(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    """A ratio that is missing where there is nothing to compare with."""
    return pl.when(whole > 0).then(part / whole)
