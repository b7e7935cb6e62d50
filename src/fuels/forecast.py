"""Forecasts from trained models and the newest data; works at a site alone."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fuels.data.panel import Panel
from fuels.errors import FuelsError
from fuels.experts.history import Floats, History, make_history
from fuels.models import PersonalModels

CHUNK = 4096  # rows encoded at once


@dataclass(frozen=True)
class Forecast:
    """The next values of every client, in the data's unit."""

    ids: tuple[str, ...]
    times: NDArray[np.datetime64]  # [step]; UTC where the zone is known
    values: NDArray[np.float64]  # [client, step]; NaN where the newest values are missing
    timezone: str | None
    unknown: tuple[str, ...]  # clients in the data that have no model
    levels: tuple[float, ...] = ()  # of the intervals, in percent
    lower: NDArray[np.float64] | None = None  # [level, client, step]
    upper: NDArray[np.float64] | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """Clients that got no forecast because a value their window needs is not known."""
        lacking = np.flatnonzero(np.isnan(self.values).any(axis=1))
        return tuple(self.ids[i] for i in lacking)


def forecast(models: PersonalModels, panel: Panel, horizon: int = 1) -> Forecast:
    """The `horizon` values after the end of the panel.

    Steps that have a head of their own are forecast directly; beyond, a forecast value stands in
    for the one not seen yet. Gaps of up to one period are filled from earlier periods, at the very
    end too.
    """
    check_horizon(horizon)
    known = matching(models, panel)
    models = models.take(known)
    # Windows need the last `reach` steps; gap filling may look further back for the same phase.
    steps = min(panel.length, models.sample.reach + 8 * models.period)
    tail = replace(panel, values=panel.values[-steps:], start=panel.times[-steps])
    history = make_history(tail.select(known), models.period, models.mean, models.std)
    if panel.length < models.sample.reach:
        raise FuelsError(
            f"{panel.name}: {panel.length} steps are too few, the windows reach back"
            f" {models.sample.reach}"
        )
    values = ahead(models, history, history.length, history.length + 1, horizon)[:, 0]
    return in_unit(models, panel, values)


def in_unit(
    models: PersonalModels,
    panel: Panel,
    values: Floats,
    levels: tuple[float, ...] = (),
    bands: tuple[Floats, Floats] | None = None,
) -> Forecast:
    """Normalised values [client, step] after the end of a panel as a forecast, in its unit."""
    mean, std = models.mean[:, None], models.std[:, None]
    lower, upper = (None, None) if bands is None else (band * std + mean for band in bands)
    result = Forecast(
        ids=models.ids,
        times=panel.times[-1] + np.arange(1, values.shape[1] + 1) * panel.step,
        values=values * std + mean,
        timezone=panel.timezone,
        unknown=tuple(client for client in panel.ids if client not in set(models.ids)),
        levels=levels,
        lower=lower,
        upper=upper,
    )
    if result.missing:
        warnings.warn(
            f"no forecast for {len(result.missing)} clients whose newest values are missing:"
            f" {', '.join(result.missing[:5])}",
            stacklevel=3,
        )
    return result


def check_horizon(horizon: int) -> None:
    if not isinstance(horizon, int) or horizon < 1:
        raise FuelsError(f"horizon must be a whole number of steps, at least 1; it is {horizon}")


def matching(models: PersonalModels, panel: Panel) -> list[str]:
    """The clients of a panel that have a model; refuses a panel that does not fit the models."""
    if panel.step_seconds != models.step_seconds:
        raise FuelsError(
            f"{panel.name}: the step is {panel.step_seconds} s, the models were trained on"
            f" {models.step_seconds} s; resample the data"
        )
    there = set(panel.ids)
    known = [client for client in models.ids if client in there]
    if not known:
        raise FuelsError(
            f"{panel.name}: none of its clients ({', '.join(panel.ids[:3])} ...) has a model here"
            f" ({', '.join(models.ids[:3])} ...)"
        )
    return known


@torch.no_grad()
def ahead(
    models: PersonalModels,
    history: History,
    first: int,
    last: int,
    horizon: int = 1,
    *,
    direct: bool = True,
) -> Floats:
    """Forecasts made before each of the steps first..last-1, [client, step, horizon].

    Entry [.., k, h] is of step first + k + h and knows the values before step first + k alone.
    Unknown values are NaN, and so is a forecast that would need one. Without `direct` the first
    head alone speaks, and its forecasts feed on each other.
    """
    pieces = [
        _ahead(models, history, low, min(low + CHUNK, last), horizon, direct)
        for low in range(first, last, CHUNK)
    ]
    return np.concatenate(pieces, axis=1)


def _ahead(
    models: PersonalModels, history: History, first: int, last: int, horizon: int, direct: bool
) -> Floats:
    sample, network = models.sample, models.network
    said: list[Floats] = []  # [client, step] for each step ahead
    while len(said) < horizon:
        done = len(said)
        lags = [
            said[done - lag] if lag <= done else history.lagged(first + done, last + done, lag)
            for lag in sample.lags
        ]
        x = torch.from_numpy(np.stack(lags, axis=2).astype(np.float32))
        times = history.times(first + done, last + done + sample.horizon - 1)
        clock = torch.from_numpy(sample.clock(models.calendar, times, first + done))
        if direct and done == 0:  # every head speaks from what is known
            heads = network.predict_all(models.parts, x, clock).numpy()
        else:
            heads = network.predict(models.parts, x, clock).numpy()[:, :, None]
        said += [heads[:, :, h].astype(np.float64) for h in range(heads.shape[2])]
    return np.stack(said[:horizon], axis=2)
