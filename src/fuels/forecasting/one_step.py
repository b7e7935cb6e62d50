"""One-step errors of fitted forecasters on new data."""

from __future__ import annotations

import numpy as np
import polars as pl

from fuels.arrays import Floats
from fuels.data.panel import Panel
from fuels.errors import FuelsError
from fuels.evaluation.scores import errors
from fuels.experts.ensemble import Ensemble
from fuels.experts.history import History
from fuels.experts.personal_model import forecasts_ahead, history_for
from fuels.storage.models import PersonalModels


def one_step_errors(
    models: PersonalModels, ensemble: Ensemble | None, whole: Panel, new: Panel
) -> pl.DataFrame:
    """Errors on the steps of `new`, one row per client; `whole` also has the data before.

    The ensemble, if there is one, learns on the way.
    """
    there = set(new.ids)
    known = [client for client in models.ids if client in there]
    if not known:
        raise FuelsError("no client in this frame has a model")
    history = history_for(models, whole) if ensemble is None else ensemble.history(whole)
    before = history.length - whole.length  # where the panel begins in the history
    start = before + int((new.start - whole.start) // whole.step)
    reach = models.sample.reach
    first, last = max(start, max(before, 0) + reach), start + new.length
    if first >= last:
        raise FuelsError(
            f"the windows need {reach} steps before the first forecast: give more values"
        )
    predicted = _predicted(models, ensemble, history, first, last)
    actual = history.observed[:, first:last]
    target = ~np.isnan(actual) & ~np.isnan(predicted)
    mse, mae = errors(np.nan_to_num(actual), np.nan_to_num(predicted), target)
    table = pl.DataFrame(
        {
            "unique_id": models.ids,
            "mse": mse,
            "mae": mae,
            "mse_unit": mse * models.std**2,
            "mae_unit": mae * models.std,
            "values": target.sum(axis=1),
        }
    )
    return table.filter(pl.col("unique_id").is_in(known))


def _predicted(
    models: PersonalModels, ensemble: Ensemble | None, history: History, first: int, last: int
) -> Floats:
    """One-step forecasts of steps first..last-1."""
    if ensemble is None:
        return forecasts_ahead(models, history, first, last)[:, :, 0]
    backtest = None if ensemble.ends_in_training(history) else ensemble.run(history, last)
    if backtest is None:
        raise FuelsError(
            f"the experts were fitted on values up to {ensemble.trained}: evaluate needs later"
            " values"
        )
    combined = backtest.mixed.combined
    forecasts = np.full((history.clients, history.length), np.nan)  # NaN in the training part
    forecasts[:, last - combined.shape[1] : last] = combined
    return forecasts[:, first:last]
