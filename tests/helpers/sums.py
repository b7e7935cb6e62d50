"""Small runs whose experts use sums over the clients of three sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from fuels.config import PRESETS, Settings, merge
from fuels.runs.settings import ResolvedSettings, resolve


def chosen(**changes: Any) -> ResolvedSettings:
    """Preset best, small, with sums over at least six clients."""
    best = merge(Settings(), {"preset": "best", **PRESETS["best"]}, "preset")
    small = {
        "windows": {"split": "8/2/2", "lags": "1-3,1p", "horizon": 2},
        "model": {"hidden": 4},
        "training": {"rounds": 1},
        "sharing": {"min_clients": 6},
    }
    return resolve(merge(merge(best, small, "test"), changes, "test"))


def forecasts(folder: Path) -> pl.DataFrame:
    """The forecasts in a run folder, in one order."""
    return pl.read_parquet(folder / "forecasts.parquet").sort("client", "time")
