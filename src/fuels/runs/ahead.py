"""The forecasts of a run beyond its data, for its report: up to a period ahead.

With a mixture, each step ahead has experts of its own, which are fitted and learn the whole test
part. That takes half a second and another 7 ms per client, so only a few steps are forecast, evenly
spaced, in addition to those that the run was trained for.
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

FARTHEST = 24  # steps, unless the run was trained for more
POINTS = 8  # of these at most, for
CLIENTS = 300  # clients; with more clients, fewer


def steps_ahead(settings: Settings, clients: int) -> list[int]:
    """The steps that the report shows."""
    trained, period = settings.windows.horizon, settings.windows.period
    farthest = max(trained, min(period, FARTHEST))
    points = max(1, min(POINTS, POINTS * CLIENTS // max(clients, 1)))
    every = -(-farthest // points)
    return sorted({*range(1, trained + 1), *range(every, farthest + 1, every)})


def look_ahead(
    settings: Settings, models: PersonalModels, ensemble: Ensemble | None, panel: Panel
) -> pl.DataFrame:
    """client, time, forecast and intervals after the end of a panel; the ensemble is unchanged."""
    steps = steps_ahead(settings, len(models.ids))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of clients without newest values: the table shows them
        if ensemble is None:
            return forecast_table(forecast(models, panel, steps[-1]))
        return forecast_table(forecast_ensemble(ensemble.copy(), panel, steps[-1], steps=steps))
