"""Forecasts as a table, and the table as a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from fuels.errors import FuelsError
from fuels.forecast import Forecast


def forecast_table(result: Forecast) -> pl.DataFrame:
    """One row per client and step: client, time, forecast; times in the zone of the data.

    With intervals lower-80, upper-80 and so on stand beside the forecast.
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


def in_zone(frame: pl.DataFrame, timezone: str | None) -> pl.DataFrame:
    """Times as a reader expects them: in the zone of the data where it is known."""
    if timezone is None:
        return frame
    return frame.with_columns(
        pl.col("time").dt.replace_time_zone("UTC").dt.convert_time_zone(timezone)
    )


def write_table(frame: pl.DataFrame, path: Path) -> None:
    """Parquet or CSV by the file's ending, complete or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        if path.suffix == ".csv":
            frame.write_csv(temporary)
        else:
            frame.write_parquet(temporary)
        temporary.replace(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        temporary.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise FuelsError(f"{path}: cannot be written ({reason})") from None
