"""Forecasts from trained models and the newest data; works at a site alone."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fuels.data.gaps import fill_gaps
from fuels.data.panel import Panel
from fuels.errors import FuelsError
from fuels.models import PersonalModels


@dataclass(frozen=True)
class Forecast:
    """The next values of every client, in the data's unit."""

    ids: tuple[str, ...]
    times: NDArray[np.datetime64]  # [step]; UTC where the zone is known
    values: NDArray[np.float64]  # [client, step]; NaN where the newest values are missing
    timezone: str | None
    unknown: tuple[str, ...]  # clients in the data that have no model

    @property
    def missing(self) -> tuple[str, ...]:
        """Clients that got no forecast because a value their window needs is not known."""
        lacking = np.flatnonzero(np.isnan(self.values).any(axis=1))
        return tuple(self.ids[i] for i in lacking)


def forecast(models: PersonalModels, panel: Panel, horizon: int = 1) -> Forecast:
    """The `horizon` values after the end of the panel, each from the ones before it.

    Beyond one step the forecast is recursive: a forecast value stands in for the one not seen yet.
    Gaps of up to one period are filled from earlier periods, at the very end too.
    """
    if not isinstance(horizon, int) or horizon < 1:
        raise FuelsError(f"horizon must be a whole number of steps, at least 1; it is {horizon}")
    if panel.step_seconds != models.step_seconds:
        raise FuelsError(
            f"{panel.name}: the step is {panel.step_seconds} s, the models were trained on"
            f" {models.step_seconds} s; resample the data"
        )
    known = [client for client in models.ids if client in set(panel.ids)]
    if not known:
        raise FuelsError(
            f"{panel.name}: none of its clients ({', '.join(panel.ids[:3])} ...) has a model here"
            f" ({', '.join(models.ids[:3])} ...)"
        )
    rows = np.array([models.ids.index(client) for client in known])
    reach = max(max(branch) for branch in models.branches)
    # Windows need the last `reach` steps; gap filling may look further back for the same phase.
    tail = panel.select(known).values[-(reach + 8 * models.period) :]
    if len(tail) < reach:
        raise FuelsError(
            f"{panel.name}: {len(tail)} steps are too few, the windows reach back {reach}"
        )
    filled = fill_from_past(tail, models.period)
    mean, std = models.mean[rows, None], models.std[rows, None]
    recent = ((filled.T[:, -reach:] - mean) / std).astype(np.float32)  # [client, reach]
    lags = np.array([lag for branch in models.branches for lag in branch])
    parts = {name: part[torch.from_numpy(rows)] for name, part in models.parts.items()}
    network = models.network
    steps = []
    with torch.no_grad():
        for _ in range(horizon):
            window = torch.from_numpy(recent[:, -lags]).unsqueeze(1)
            step = network.predict(parts, window).numpy()  # NaN in a window stays NaN
            steps.append(step[:, 0])
            recent = np.concatenate([recent[:, 1:], step], axis=1)
    values = np.stack(steps, axis=1).astype(np.float64) * std + mean
    end = panel.times[-1]
    result = Forecast(
        ids=tuple(known),
        times=end + np.arange(1, horizon + 1) * panel.step,
        values=values,
        timezone=panel.timezone,
        unknown=tuple(client for client in panel.ids if client not in set(models.ids)),
    )
    if result.missing:
        warnings.warn(
            f"no forecast for {len(result.missing)} clients whose newest values are missing:"
            f" {', '.join(result.missing[:5])}",
            stacklevel=2,
        )
    return result


def fill_from_past(values: NDArray[np.float64], period: int) -> NDArray[np.float64]:
    """Missing values [time, client] replaced by the newest earlier value of the same phase.

    Only up to one period after the last value that was observed: a client silent for longer stays
    missing, what comes next is then anybody's guess. The rule of the test part, step by step.
    """
    filled, _ = fill_gaps(values, period, 0)
    return filled
