"""The tables of a run: forecasts, errors by client, and the weights of the experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fuels.data.windows import Dataset
from fuels.evaluation.outcome import MixtureOutcome
from fuels.evaluation.scores import Scores
from fuels.experts.intervals import Bands
from fuels.storage.tables import long_table


def forecast_frame(
    dataset: Dataset, forecast: NDArray[Any], bands: Bands | None = None
) -> pl.DataFrame:
    """client, time, actual, forecast of the test part, in its unit; times in the data's zone.

    With intervals, there are also lower-80, upper-80 and so on.
    """
    actual = dataset.values("test")
    first, last = dataset.split.part("test")

    def in_unit(values: NDArray[Any]) -> NDArray[Any]:
        scaled = values * dataset.std[:, None] + dataset.mean[:, None]
        return np.where(dataset.window[:, first:last], scaled, np.nan)

    columns = {"actual": actual, "forecast": in_unit(forecast)}
    for i, level in enumerate(() if bands is None else bands.levels):
        assert bands is not None
        columns[f"lower-{level:g}"] = in_unit(bands.lower[i])
        columns[f"upper-{level:g}"] = in_unit(bands.upper[i])
    return frame_of_test(dataset, columns).with_columns(pl.col(*columns).fill_nan(None))


def frame_of_test(dataset: Dataset, columns: Mapping[str, NDArray[Any]]) -> pl.DataFrame:
    """client, time and columns [client, step] of the test part; times in the data's zone."""
    return long_table(dataset.ids, dataset.times("test"), columns, dataset.panel.timezone)


def errors_frame(dataset: Dataset, scores: Mapping[str, Scores]) -> pl.DataFrame:
    """Errors of each forecast by client: client, forecast, mse, mae (z-scored), mse_unit, mae_unit.

    Empty for a client without a target.
    """
    tables = [
        pl.DataFrame(
            {
                "client": dataset.ids,
                "forecast": [name] * len(dataset.ids),
                "mse": one.mse,
                "mae": one.mae,
                "mse_unit": one.mse * one.std**2,
                "mae_unit": one.mae * one.std,
            }
        )
        for name, one in scores.items()
    ]
    return pl.concat(tables).with_columns(pl.col(pl.Float64).fill_nan(None))


def weights_frame(dataset: Dataset, mixture: MixtureOutcome) -> pl.DataFrame:
    """client, time and a column for each expert: its weight in the forecasts of the test part."""
    by_expert = mixture.weights.transpose(2, 1, 0).astype(np.float32)  # [expert, client, step]
    return frame_of_test(dataset, dict(zip(mixture.names, by_expert, strict=True)))
