"""Panels as long tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from fuels.data.panel import Panel
from fuels.data.synthetic import synthesise
from fuels.storage.tables import in_zone


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


def is_pandas(frame: Any) -> bool:
    return type(frame).__module__.split(".")[0] == "pandas"


def as_pandas(table: pl.DataFrame) -> Any:
    import pandas as pd

    return pd.DataFrame({name: table[name].to_list() for name in table.columns})
