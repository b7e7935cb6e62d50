"""The forecasts of a run beyond its data, for its report: a period ahead, if that is affordable.

With a mixture, each step ahead has experts of its own, which are fitted and learn the whole test
part: about 10 ms per client and step. So at most AT_MOST forecasts are made, and never fewer steps
than the run was trained for.
"""

from __future__ import annotations

import warnings

import polars as pl

from fuels.config import Settings
from fuels.data.panel import Panel
from fuels.experts.ensemble import Ensemble, forecast_ensemble
from fuels.experts.personal_model import forecast
from fuels.experts.table import forecast_table
from fuels.storage.models import PersonalModels

AT_MOST = 2400  # forecasts: 24 steps for 100 clients
STEPS = 24


def steps_ahead(settings: Settings, clients: int) -> int:
    """How many steps the report looks ahead."""
    windows = settings.windows
    return max(windows.horizon, 1, min(windows.period, STEPS, AT_MOST // max(clients, 1)))


def look_ahead(
    settings: Settings, models: PersonalModels, ensemble: Ensemble | None, panel: Panel
) -> pl.DataFrame:
    """client, time, forecast and intervals after the end of a panel; the ensemble is unchanged."""
    steps = steps_ahead(settings, len(models.ids))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of clients without newest values: the table shows them
        if ensemble is None:
            return forecast_table(forecast(models, panel, steps))
        return forecast_table(forecast_ensemble(ensemble.copy(), panel, steps))
