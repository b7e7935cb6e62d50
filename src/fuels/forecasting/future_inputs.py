"""Future values of external inputs, as a frame gives them to `Forecaster.predict`."""

from __future__ import annotations

import warnings
from typing import Any

from fuels.config import Settings
from fuels.data.inputs import missing_notes
from fuels.data.loading import as_setting, frame_inputs
from fuels.data.panel import Panel
from fuels.errors import FuelsError, options_renamed, renamed


def with_future_inputs(panel: Panel, settings: Settings, frame: Any, horizon: int) -> Panel:
    """The panel with the inputs in `frame`; warns about those that forecasts need and lack."""
    data = settings.data
    if frame is not None:
        if not data.inputs:
            raise FuelsError(
                "X_df: this forecaster was made without inputs; name them with"
                " Forecaster(inputs=[...])"
            )
        with options_renamed(as_setting):
            panel = frame_inputs(frame, data, panel)
    for note in missing_notes(panel, data.inputs, panel.ids, horizon, settings.windows.period):
        said = renamed(note, lambda option, value: "X_df" if option == "inputs_file" else None)
        warnings.warn(said, stacklevel=3)
    return panel
