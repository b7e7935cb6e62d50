"""Implausible values in the data of a forecast: left out, and listed with their scores."""

from __future__ import annotations

import numpy as np
import polars as pl

from fuels.config import Settings
from fuels.data.panel import Panel
from fuels.data.screening import Screen, Screened, drops_implausible
from fuels.experts.ensemble import Ensemble
from fuels.storage.tables import screened_table


def screen_values(
    panel: Panel, period: int, ensemble: Ensemble | None, since: np.datetime64 | None = None
) -> tuple[Panel, Screened]:
    """The panel from the start of training on, and what is said of all its values since a time.

    Default: those of the last period. Of earlier values, only the implausible ones are listed.
    """
    if ensemble is not None:
        panel = ensemble.since_training(panel)
    first = max(panel.length - period, 0)
    if since is not None:
        first = max(int((since - panel.start) // panel.step), 0)
    return panel, Screen.begin(len(panel.ids), period).check(panel, whole_from=first)


def without_implausible(panel: Panel, settings: Settings, ensemble: Ensemble | None) -> Panel:
    """The panel from the start of training on, screened if the settings say so."""
    if not drops_implausible(settings.data.implausible, ensemble is not None):
        return panel
    panel, screened = screen_values(panel, settings.windows.period, ensemble)
    return screened.removed(panel)


def anomaly_frame(
    panel: Panel, new: Panel, settings: Settings, ensemble: Ensemble | None
) -> pl.DataFrame:
    """Every value of `new`, the end of a panel, with its score, flag and plausible range."""
    _, screened = screen_values(panel, settings.windows.period, ensemble, new.start)
    table = screened_table(screened.since(new.start).of(new.ids))
    return table.rename({"client": "unique_id", "time": "ds", "value": "y"})
