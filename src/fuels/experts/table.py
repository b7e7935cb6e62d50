"""Forecasts beyond the data as a table."""

from __future__ import annotations

import polars as pl

from fuels.experts.personal_model import Forecast
from fuels.storage.tables import long_table


def forecast_table(result: Forecast) -> pl.DataFrame:
    """One row per client and step: client, time, forecast; times in the zone of the data.

    Intervals add the columns lower-80, upper-80 and so on.
    """
    columns = {"forecast": result.values}
    for level, lower, upper in zip(result.levels, result.lower, result.upper, strict=True):
        columns |= {f"lower-{level:g}": lower, f"upper-{level:g}": upper}
    frame = long_table(result.ids, result.times, columns, result.timezone)
    return frame.with_columns(pl.col(*columns).fill_nan(None))
