"""Forecasts as a table."""

from __future__ import annotations

import numpy as np
import polars as pl

from fuels.data.panel import Panel
from fuels.data.synthetic import synthesise
from fuels.experts.personal_model import Forecast
from fuels.storage.tables import in_zone


def forecast_table(result: Forecast) -> pl.DataFrame:
    """One row per client and step: client, time, forecast; times in the zone of the data.

    Intervals add the columns lower-80, upper-80 and so on.
    """
    steps = len(result.times)
    columns = {"forecast": result.values.ravel()}
    if result.lower is not None and result.upper is not None:
        for level, lower, upper in zip(result.levels, result.lower, result.upper, strict=True):
            columns[f"lower-{level:g}"] = lower.ravel()
            columns[f"upper-{level:g}"] = upper.ravel()
    frame = pl.DataFrame(
        {
            "client": np.repeat(np.array(result.ids), steps),
            "time": np.tile(result.times.astype("datetime64[ms]"), len(result.ids)),
            **columns,
        }
    ).with_columns(pl.col(*columns).fill_nan(None))
    return in_zone(frame, result.timezone)


def long_frame(panel: Panel) -> pl.DataFrame:
    """A panel as a long table unique_id, ds, y without the missing values."""
    frame = pl.DataFrame(
        {
            "unique_id": np.repeat(np.array(panel.ids), panel.length),
            "time": np.tile(panel.times.astype("datetime64[ms]"), len(panel.ids)),
            "y": panel.values.T.ravel(),
        }
    )
    return in_zone(frame, panel.timezone).rename({"time": "ds"}).filter(~pl.col("y").is_nan())


def example_frame(activity: str = "net", clients: int = 8, days: int = 28) -> pl.DataFrame:
    """Synthetic hourly traffic as a long table unique_id, ds, y, for examples."""
    return long_frame(synthesise(activity, clients=clients, days=days))
