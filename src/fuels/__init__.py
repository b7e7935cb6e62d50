"""Personal traffic forecasters, trained together without sharing the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fuels.errors import FuelsError
from fuels.version import __version__

__all__ = ["Forecaster", "FuelsError", "__version__", "example_frame"]

if TYPE_CHECKING:
    from fuels.forecasting.forecaster import Forecaster
    from fuels.forecasting.table import example_frame


def __getattr__(name: str) -> Any:
    """Import the forecaster, and torch with it, only when it is asked for."""
    if name == "Forecaster":
        from fuels.forecasting.forecaster import Forecaster

        return Forecaster
    if name == "example_frame":
        from fuels.forecasting.table import example_frame

        return example_frame
    raise AttributeError(f"module 'fuels' has no attribute {name!r}")
