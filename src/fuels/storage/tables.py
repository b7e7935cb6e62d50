"""Result tables as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fuels.data.files import writing
from fuels.data.screening import REASONS, Screened


def in_zone(frame: pl.DataFrame, timezone: str | None, column: str = "time") -> pl.DataFrame:
    """Times as a reader expects them: in the zone of the data where it is known."""
    if timezone is None:
        return frame
    return frame.with_columns(
        pl.col(column).dt.replace_time_zone("UTC").dt.convert_time_zone(timezone)
    )


def long_table(
    ids: Sequence[str],
    times: NDArray[np.datetime64],
    columns: Mapping[str, NDArray[Any]],
    timezone: str | None,
) -> pl.DataFrame:
    """client, time in the zone of the data, and columns [client, step]: a row for each of both."""
    frame = pl.DataFrame(
        {
            "client": np.repeat(np.array(ids), len(times)),
            "time": np.tile(times.astype("datetime64[ms]"), len(ids)),
            **{name: values.ravel() for name, values in columns.items()},
        }
    )
    return in_zone(frame, timezone)


def screened_table(screened: Screened) -> pl.DataFrame:
    """client, time, value, score, flag, lower, upper, reason: one row for each screened value."""
    frame = pl.DataFrame(
        {
            "client": np.array(screened.ids, dtype=object)[screened.client],
            "time": screened.times[screened.step].astype("datetime64[ms]"),
            "value": screened.value,
            "score": screened.score,
            "flag": screened.implausible,
            "lower": screened.low,
            "upper": screened.high,
            "reason": [REASONS[code] for code in screened.code.tolist()],
        },
        schema_overrides={"client": pl.String, "reason": pl.String},
    )
    bounds = [
        pl.when(pl.col(name).is_finite()).then(pl.col(name)) for name in ("score", "lower", "upper")
    ]
    return in_zone(frame.with_columns(bounds), screened.timezone)


def write_table(frame: pl.DataFrame, path: Path) -> None:
    """Parquet or CSV by the file's ending, complete or not at all."""
    with writing(path) as temporary:
        if path.suffix == ".csv":
            frame.write_csv(temporary)
        else:
            frame.write_parquet(temporary)
