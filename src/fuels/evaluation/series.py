"""The forecasts of a run as arrays, from the tables in its folder."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from fuels.arrays import Flags, Floats
from fuels.data.files import table_errors
from fuels.data.means import mean
from fuels.errors import FuelsError


@dataclass(frozen=True)
class Series:
    """forecasts.parquet or ahead.parquet as arrays [client, step], in the data's unit."""

    ids: tuple[str, ...]
    times: tuple[datetime, ...]  # local where the zone is known
    forecast: Floats
    actual: Floats  # NaN throughout if the values are not known yet
    levels: tuple[str, ...]  # of the intervals, "80"
    lower: Floats  # [level, client, step]
    upper: Floats

    @cached_property
    def error(self) -> Floats:
        """Absolute error, NaN where there is no forecast or no value."""
        return np.abs(self.forecast - self.actual)

    @property
    def step(self) -> timedelta:
        return self.times[1] - self.times[0] if len(self.times) > 1 else timedelta(hours=1)

    @property
    def widest(self) -> int | None:
        """The place of the widest interval among the levels."""
        return max(range(len(self.levels)), key=lambda i: float(self.levels[i]), default=None)

    @cached_property
    def missed(self) -> Flags:
        """Values outside the widest interval; without intervals, errors four times as large as the
        client's mean error."""
        if self.widest is None:
            with np.errstate(invalid="ignore"):
                return np.asarray(self.error > 4 * mean(self.error, axis=1)[:, None])
        lower, upper = self.lower[self.widest], self.upper[self.widest]
        return np.asarray((self.actual < lower) | (self.actual > upper))  # false for NaN


def read_table(
    path: Path, *needed: str, read: Callable[[Path], pl.DataFrame] = pl.read_parquet
) -> pl.DataFrame | None:
    """A table of a run; None if there is no such file."""
    if not path.exists():
        return None
    with table_errors(path, "cannot be read"):
        frame = read(path)
    if missing := [name for name in needed if name not in frame.columns]:
        raise FuelsError(f"{path}: not written by a run, the column {missing[0]} is missing")
    return frame


def read_series(path: Path) -> Series | None:
    """Forecasts of a run; None if there is no such file, or nothing in it."""
    frame = read_table(path, "client", "time", "forecast")
    if frame is None or not len(frame):
        return None
    ids = tuple(frame["client"].unique(maintain_order=True).to_list())
    steps = len(frame) // len(ids)
    if steps * len(ids) != len(frame):
        raise FuelsError(f"{path}: the clients have different numbers of rows")

    def column(name: str) -> Floats:
        return frame[name].cast(pl.Float64).fill_null(math.nan).to_numpy().reshape(len(ids), steps)

    levels = tuple(n.removeprefix("lower-") for n in frame.columns if n.startswith("lower-"))
    forecast = column("forecast")
    none = np.empty((0, *forecast.shape))
    return Series(
        ids=ids,
        times=tuple(frame["time"].head(steps).to_list()),
        forecast=forecast,
        actual=column("actual") if "actual" in frame.columns else np.full(forecast.shape, np.nan),
        levels=levels,
        lower=np.stack([column(f"lower-{x}") for x in levels]) if levels else none,
        upper=np.stack([column(f"upper-{x}") for x in levels]) if levels else none,
    )
