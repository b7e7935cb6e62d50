"""Forecasts for clients that the run has never seen: no personal model, but shared experts.

The scale and the local experts come from the client's own values, at least three periods of them;
pooled coefficients come from the run, the live mean from its clients. The weights start equal and
learn from the last part of the client's history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fuels.data.panel import Panel
from fuels.experts.ensemble import Ensemble
from fuels.experts.history import History, make_history
from fuels.experts.horizon import fit_horizon
from fuels.experts.personal_model import Forecast, history_for
from fuels.experts.shared import SharedExperts

LEAST_PERIODS = 3  # of values


def can_be_forecast(ensemble: Ensemble, panel: Panel, ids: Sequence[str]) -> list[str]:
    """The clients of a panel, out of those without a model, that have enough values."""
    if ensemble.sharing is None or 1 not in ensemble.horizons:
        return []
    found = []
    for client in ids:
        values = panel.select([client]).values[:, 0]
        known = values[~np.isnan(values)]
        if len(known) >= LEAST_PERIODS * ensemble.models.period and known.std() > 0:
            found.append(client)
    return found


def forecast_unseen(
    ensemble: Ensemble, panel: Panel, ids: Sequence[str], horizon: int = 1
) -> Forecast:
    """The `horizon` values after the end of a panel that also holds the run's own clients."""
    shared = ensemble.sharing
    assert shared is not None
    recent = ensemble.since_training(panel)
    own = recent.select(list(ids))
    mean, std = np.nanmean(own.values, axis=0), np.nanstd(own.values, axis=0)
    models = ensemble.models
    history = make_history(own, models.period, mean, std, calendar=models.calendar)
    history = _with_live_mean(history, ids, ensemble, shared, recent)
    limits = ensemble.limits.suiting(own.values)
    values, lower, upper = [], [], []
    for h in range(1, horizon + 1):
        pooled = ensemble.horizons[h].pool.pooled() if h in ensemble.horizons else {}
        fitted = fit_horizon(
            ensemble.pool,
            history,
            history.length,
            horizon=h,
            levels=ensemble.levels,
            pooled=lambda end, pooled=pooled: pooled,  # type: ignore[misc]
            limits=limits.normalised(mean, std),
            keep=False,
        )
        value, _, bands = fitted.next(history)
        values.append(value * std + mean)
        lower.append(bands.lower[:, :, 0] * std + mean)
        upper.append(bands.upper[:, :, 0] * std + mean)
    made = Forecast(
        ids=tuple(ids),
        times=panel.times[-1] + np.arange(1, horizon + 1) * panel.step,
        values=np.stack(values, axis=1),
        timezone=panel.timezone,
        unknown=(),
        levels=ensemble.levels,
        lower=np.stack(lower, axis=2),
        upper=np.stack(upper, axis=2),
    )
    return limits.confined(made)


def _with_live_mean(
    history: History, ids: Sequence[str], ensemble: Ensemble, shared: SharedExperts, panel: Panel
) -> History:
    """The history with the mean of the run's clients, to which these have not contributed."""
    if not shared.live_mean:
        return history
    if shared.received is not None:
        return shared.with_live_mean(history, ids)
    members = history_for(ensemble.models, panel)
    return shared.heard_by(history, members, ensemble.models.ids)


def together(one: Forecast, other: Forecast) -> Forecast:
    """The forecasts of two groups of clients, made at the same time."""
    return replace(
        one,
        ids=(*one.ids, *other.ids),
        values=np.concatenate([one.values, other.values]),
        unknown=tuple(client for client in one.unknown if client not in set(other.ids)),
        lower=np.concatenate([one.lower, other.lower], axis=1),
        upper=np.concatenate([one.upper, other.upper], axis=1),
    )
