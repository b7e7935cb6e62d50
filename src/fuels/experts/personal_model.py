"""Forecasts of trained personal models from the newest data; needs no server and no other site."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fuels.arrays import Datetimes, Floats
from fuels.data.clock import zone_name
from fuels.data.panel import Panel
from fuels.errors import FuelsError
from fuels.experts.groups import by_groups
from fuels.experts.history import History, Past, make_history
from fuels.experts.input_weights import added_by_inputs, fit_input_weights
from fuels.storage.models import PersonalModels

# Of steps first..last-1, by expert, [client, step] each.
ModelForecasts = Callable[[int, int], dict[str, Floats]]
CHUNK = 4096  # windows forecast at once
ROWS = 192  # windows encoded at once where each is encoded on its own


@dataclass(frozen=True)
class Forecast:
    """The next values of every client, in the data's unit."""

    ids: tuple[str, ...]
    times: Datetimes  # [step]; UTC where the zone is known
    values: Floats  # [client, step]; NaN where the newest values are missing
    timezone: str | None
    unknown: tuple[str, ...]  # clients in the data that have no model
    levels: tuple[float, ...] = ()  # of the intervals, in percent
    lower: Floats = field(default_factory=lambda: np.empty((0, 0, 0)))  # [level, client, step]
    upper: Floats = field(default_factory=lambda: np.empty((0, 0, 0)))

    @property
    def missing(self) -> tuple[str, ...]:
        """Clients that got no forecast because a value their window needs is not known."""
        lacking = np.flatnonzero(np.isnan(self.values).any(axis=1))
        return tuple(self.ids[i] for i in lacking)


def forecast(models: PersonalModels, panel: Panel, horizon: int = 1) -> Forecast:
    """The `horizon` values after the end of the panel.

    Steps that have their own head are forecast directly; beyond them, forecasts replace the values
    that are not known yet. Gaps of up to one period are filled from earlier periods, including at
    the end of the data.
    """
    check_horizon(horizon)
    panel = on_model_clock(models, panel)
    known = clients_with_model(models, panel)
    models = models.take(known)
    # Windows need the last `reach` steps; gap filling may look further back.
    steps = min(panel.length, models.sample.reach + 8 * models.period)
    tail = replace(panel, values=panel.values[-steps:], start=panel.times[-steps])
    history = make_history(tail.select(known), models.period, models.mean, models.std)
    if panel.length < models.sample.reach:
        raise FuelsError(
            f"{panel.name}: {panel.length} steps are too few: the windows need"
            f" {models.sample.reach}"
        )
    values = forecasts_ahead(models, history, history.length, history.length + 1, horizon)[:, 0]
    return denormalised(models, panel, values)


def denormalised(
    models: PersonalModels,
    panel: Panel,
    values: Floats,
    levels: tuple[float, ...] = (),
    bands: tuple[Floats, Floats] | None = None,
    steps: Sequence[int] = (),
) -> Forecast:
    """Normalised values [client, step] after the end of a panel, as a forecast in its unit.

    `steps`: how many steps after the end each value is. Default: 1, 2, ...
    """
    ahead = np.array(steps or range(1, values.shape[1] + 1))
    mean, std = models.mean[:, None], models.std[:, None]
    both = np.empty((2, 0, *values.shape)) if bands is None else bands
    lower, upper = (band * std + mean for band in both)
    result = Forecast(
        ids=models.ids,
        times=panel.times[-1] + ahead * panel.step,
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
    if isinstance(horizon, bool) or not isinstance(horizon, Integral) or horizon < 1:
        raise FuelsError(f"horizon must be a whole number of steps, at least 1; it is {horizon!r}")


def on_model_clock(models: PersonalModels, panel: Panel) -> Panel:
    """The panel in the time zone of the models; refuses one that is not on their clock."""
    if panel.step_seconds != models.step_seconds:
        raise FuelsError(
            f"{panel.name}: the step is {panel.step_seconds} s, but the models were trained"
            f" with a step of {models.step_seconds} s; resample the data"
        )
    if (panel.timezone is None) != (models.timezone is None):
        theirs, ours = (
            f"in {zone_name(zone)}" if zone else "without a time zone"
            for zone in (models.timezone, panel.timezone)
        )
        raise FuelsError(
            f"{panel.name}: its times are {ours}, but those of the training data were {theirs};"
            " write both the same way, or give the zone with --timezone"
        )
    panel = replace(panel, timezone=models.timezone)  # the same moments, in UTC
    if panel.clock_seconds != models.clock_seconds:
        raise FuelsError(
            f"{panel.name}: its times do not fall on the steps of the training data: they are"
            f" {panel.clock_seconds} s past whole steps of {panel.step_seconds} s, those of the"
            f" training data were {models.clock_seconds} s past"
        )
    return panel


def clients_with_model(models: PersonalModels, panel: Panel) -> list[str]:
    """The clients of a panel that have a model, at least one."""
    there = set(panel.ids)
    known = [client for client in models.ids if client in there]
    if not known:
        raise FuelsError(
            f"{panel.name}: none of its clients ({', '.join(panel.ids[:3])} ...) has a model here"
            f" ({', '.join(models.ids[:3])} ...)"
        )
    return known


def forecasts_ahead(
    models: PersonalModels,
    history: History,
    first: int,
    last: int,
    horizon: int = 1,
    *,
    direct: bool = True,
) -> Floats:
    """Forecasts made before each of the steps first..last-1, [client, step, horizon].

    Entry [.., k, h] is of step first + k + h from the values before step first + k.
    """
    steps = forecast_chain(models, history, first, last, direct=direct)
    return np.stack(list(islice(steps, horizon)), axis=2)


def forecast_chain(
    models: PersonalModels,
    history: History,
    first: int,
    last: int,
    *,
    direct: bool = True,
    block: int = 0,
) -> Iterator[Floats]:
    """Forecasts one step ahead, then two, and so on without end: [client, step] each.

    Unknown values are NaN, as is a forecast that needs one. Without `direct`, only the first head
    is used, recursively. The last bits of a library's matrix product depend on its number of rows;
    with `block`, such products are of blocks of so many steps that begin at fixed times, so a
    forecast does not depend on how many are asked for.
    """
    for forecasts in _as_made(models, history, first, last, direct, block):
        yield forecasts.astype(np.float64)


def _as_made(
    models: PersonalModels, history: History, first: int, last: int, direct: bool, block: int
) -> Iterator[NDArray[Any]]:
    """As `forecast_chain`, in single precision where the models are not corrected by inputs."""
    if block:
        begin, end = first, last
        place = int((history.start - np.datetime64(0, "s")) // history.step)
        first -= (place + first) % block
        last += -(place + last) % block
        for forecasts in _chain(models, history, first, last, direct, block):
            yield forecasts[:, begin - first : end - first]
    yield from _chain(models, history, first, last, direct, CHUNK)


def chains_by_name(
    models: PersonalModels,
    names: Sequence[str],
    history: History,
    first: int,
    last: int,
    block: int,
) -> Iterator[ModelForecasts]:
    """Forecasts one step ahead, then two, and so on, by models without inputs: the first name.

    A second name is for the models with inputs.
    """
    of_name = zip(names, (replace(models, inputs=None), models), strict=False)
    chains = {name: _as_made(each, history, first, last, True, block) for name, each in of_name}
    for begin in count(first):
        yield partial(_steps, {name: next(chain) for name, chain in chains.items()}, begin)


def _steps(made: dict[str, NDArray[Any]], start: int, first: int, last: int) -> dict[str, Floats]:
    """Steps first..last-1 of forecasts [client, step] that begin with step `start`."""
    steps = slice(first - start, last - start)
    return {name: forecasts[:, steps].astype(np.float64) for name, forecasts in made.items()}


class OneChain:
    """`chains_by_name` for several calls on one history, which computes every forecast once.

    Those up to the end of the history are computed together, from the first one asked for. Only
    with `block`, with which forecasts do not depend on how many are computed together.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Free the memory of the forecasts and their history."""
        self._of: tuple[PersonalModels, History] | None = None
        self._settings: tuple[Sequence[str], int] = (), 0
        self._first, self._made = 0, list[ModelForecasts]()
        self._more = iter(self._made)

    def __call__(
        self,
        models: PersonalModels,
        names: Sequence[str],
        history: History,
        first: int,
        last: int,
        block: int,
    ) -> Iterator[ModelForecasts]:
        end = history.length + 1
        if not block or last > end:
            return chains_by_name(models, names, history, first, last, block)
        known = self._of is not None and self._of[0] is models and self._of[1] is history
        if not known or self._settings != (names, block) or first < self._first:
            self._of, self._settings = (models, history), (names, block)
            self._first, self._made = first, []
            self._more = chains_by_name(models, names, history, first, end, block)
        return self._each()

    def _each(self) -> Iterator[ModelForecasts]:
        made, more = self._made, self._more
        for h in count():
            if h == len(made):
                made.append(next(more))
            yield made[h]


def _chain(
    models: PersonalModels, history: History, first: int, last: int, direct: bool, chunk: int
) -> Iterator[NDArray[Any]]:
    sample = models.sample
    made: deque[NDArray[Any]] = deque(maxlen=max(sample.lags))  # the newest forecasts, in order
    heads = sample.horizon if direct else 1
    done = 0
    while True:
        lags = [
            made[-lag] if lag <= done else history.lagged(first + done, last + done, lag)
            for lag in sample.lags
        ]
        x = torch.from_numpy(np.stack(lags, axis=2).astype(np.float32))
        times = history.times(first + done, last + done + sample.horizon - 1)
        clock = torch.from_numpy(sample.clock(models.calendar, times, first + done))
        found = _heads(models, x, clock, heads if done == 0 else 1, chunk)
        for head, forecasts in enumerate(found, start=1):
            if models.inputs is not None:
                span = first + done, last + done
                forecasts = forecasts + added_by_inputs(models.inputs, history, head, *span)
            made.append(forecasts)
            done += 1
            yield forecasts


def _heads(
    models: PersonalModels, x: Tensor, clock: Tensor, heads: int, chunk: int
) -> list[NDArray[Any]]:
    """The forecasts of the first head or of all, [client, row] each."""
    network = models.network

    @torch.no_grad()  # of this thread
    def predict(clients: slice) -> Tensor:
        parts = {name: part[clients] for name, part in models.parts.items()}
        at_once = max(chunk, ROWS) if network.rows_are_independent(parts) else chunk
        pieces = []
        for low in range(0, x.shape[1], at_once):
            rows = slice(low, low + at_once)
            own = x[clients, rows].contiguous()
            encoded = network.encode(parts, own, clock[rows])
            for first in range(0, own.shape[1], chunk):
                r, seen = (view[:, first : first + chunk] for view in (encoded, own))
                signs = clock[rows][first : first + chunk]
                if heads == 1:
                    pieces.append(network.decode(parts, r, seen, signs).unsqueeze(2))
                else:
                    pieces.append(network.decode_all(parts, r, seen, signs))
        return torch.cat(pieces, dim=1)

    made = torch.cat(by_groups(len(x), predict)).numpy()
    return [made[:, :, h] for h in range(heads)]


def with_input_weights(models: PersonalModels, history: History, end: int) -> PersonalModels:
    """Models that also read the inputs of a history, with weights fitted before step `end`."""
    first = models.sample.reach
    heads = islice(forecast_chain(models, history, first, end), models.sample.horizon)
    return replace(models, inputs=fit_input_weights(history, heads, first, end))


def warn_no_recent_values(models: PersonalModels, history: History, known: Sequence[str]) -> None:
    """Warn about the clients without a value in the last period."""
    last = history.observed[:, -models.period :]
    silent = [c for c, row in zip(models.ids, last, strict=True) if np.isnan(row).all()]
    named = [client for client in silent if client in set(known)]
    if named:
        warnings.warn(
            f"{len(named)} clients have no value in the last {models.period} steps; their forecasts"
            f" rely on older data: {', '.join(named[:5])}",
            stacklevel=3,
        )


def history_for(models: PersonalModels, panel: Panel, past: Past | None = None) -> History:
    """The history of the models' clients in a panel; absent clients have no values."""
    column = {client: i for i, client in enumerate(panel.ids)}
    values = np.full((panel.length, len(models.ids)), np.nan)
    for i, client in enumerate(models.ids):
        if client in column:
            values[:, i] = panel.values[:, column[client]]
    aligned = replace(panel, values=values, ids=models.ids, coordinates=None)
    scale, calendar = (models.mean, models.std), models.calendar
    return make_history(aligned, models.period, *scale, calendar=calendar, past=past)
