"""Panels as long tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import polars as pl
from polars import selectors

from fuels.data.panel import Panel
from fuels.data.synthetic import synthesise
from fuels.storage.tables import long_table

Unit = Literal["ns", "us", "ms"]


def long_frame(panel: Panel) -> pl.DataFrame:
    """A panel as a long table unique_id, ds, y without the missing values."""
    frame = long_table(panel.ids, panel.times, {"y": panel.values.T}, panel.timezone)
    return frame.rename({"client": "unique_id", "time": "ds"}).filter(~pl.col("y").is_nan())


def example_frame(activity: str = "net", clients: int = 8, days: int = 28) -> pl.DataFrame:
    """Synthetic hourly traffic as a long table unique_id, ds, y, for examples."""
    return long_frame(synthesise(activity, clients=clients, days=days))


@dataclass(frozen=True)
class Kind:
    """What a user's frames are like; results are the same, so that they can be joined."""

    pandas: bool = False
    unit: Unit = "ms"  # of times, in polars
    ids: pl.DataType | None = None  # of whole numbers; None: ids are text

    @classmethod
    def of(cls, frame: Any) -> Kind:
        """The kind of a pandas or polars frame."""
        if type(frame).__module__.split(".")[0] == "pandas":
            whole = "unique_id" in frame and frame["unique_id"].dtype.kind in "iu"
            return cls(pandas=True, ids=pl.Int64() if whole else None)
        if not isinstance(frame, pl.DataFrame):
            return cls()
        units = [kind.time_unit for kind in frame.dtypes if isinstance(kind, pl.Datetime)]
        ids = frame.schema.get("unique_id")
        return cls(False, units[0] if units else "ms", ids if ids and ids.is_integer() else None)

    def give(self, table: pl.DataFrame) -> Any:
        """A table of results as a frame of this kind."""
        if self.ids is not None:
            table = table.with_columns(pl.col("unique_id").cast(self.ids))
        if self.pandas:
            import pandas as pd

            return pd.DataFrame({name: table[name].to_list() for name in table.columns})
        return table.with_columns(selectors.datetime().dt.cast_time_unit(self.unit))
