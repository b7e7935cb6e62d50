"""The inputs of the experts: the normalised past of every client, and the calendar.

An expert takes all its inputs from a `History`; a ridge declares them as `Columns`. An input that
is not known is NaN, and the expert then abstains.

A dataset fills a gap once it knows where the gap ends, which a live forecaster cannot know. The
history therefore fills a gap with the newest earlier value at the same time of the period, so that
a forecast computed on stored data equals the one that would have been made at the time.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fuels.arrays import Datetimes, Floats, Integers, window
from fuels.data.calendar import Calendar
from fuels.data.inputs import aligned
from fuels.data.panel import Panel
from fuels.data.windows import Dataset
from fuels.errors import FuelsError

WEEK_SECONDS = 7 * 86400
ALL = slice(None)
REACH = 0.5  # of the range of an input in training: values farther beyond it count as its end

InputColumn = tuple[str, int]  # an input, and since how many steps before its change is; 0: itself


@dataclass(frozen=True)
class Columns:
    """The inputs that a ridge declares."""

    lags: tuple[int, ...]  # of the client's own filled values
    calendar: bool = False  # time of the period, separately for free days
    live: tuple[int, ...] = ()  # lags of the mean of the other clients
    inputs: tuple[InputColumn, ...] = ()  # external inputs at the target, and their changes


@dataclass(frozen=True)
class Past:
    """What a history needs to know of the values before its first step."""

    newest: Floats  # the newest normalised value at each time of the period, [client, period]
    silent: Floats  # steps without a value at the end, [client]
    smoothing: Mapping[int, Floats] = field(default_factory=dict)  # states, by horizon

    def take(self, clients: Integers | slice) -> Past:
        """The past of some clients, by position."""
        states = {horizon: state[clients] for horizon, state in self.smoothing.items()}
        return Past(self.newest[clients], self.silent[clients], states)


@dataclass(frozen=True)
class History:
    """Series on the scale of the training part, [client, time], and their clock."""

    observed: Floats  # NaN where nothing was observed
    filled: Floats  # gaps of up to one period filled from earlier periods, NaN beyond
    period: int
    week: int  # steps in a week; the period if a week is not a whole number of steps
    start: np.datetime64  # local standard time of step 0
    step: np.timedelta64
    calendar: Calendar = field(default_factory=Calendar)
    live: Floats | None = None  # the mean of the other clients [client, time], NaN where unknown
    past: Past | None = None  # None: there are no earlier values
    # External inputs in their own units, [client, time] each, perhaps beyond the end; NaN: unknown.
    inputs: Mapping[str, Floats] = field(default_factory=dict)

    @property
    def clients(self) -> int:
        return int(self.observed.shape[0])

    @property
    def length(self) -> int:
        return int(self.observed.shape[1])

    def take(self, clients: Integers | slice) -> History:
        """The history of some clients, by position."""
        live = None if self.live is None else self.live[clients]
        past = None if self.past is None else self.past.take(clients)
        own = self.observed[clients], self.filled[clients]
        inputs = {name: values[clients] for name, values in self.inputs.items()}
        return replace(self, observed=own[0], filled=own[1], live=live, past=past, inputs=inputs)

    def times(self, first: int, last: int) -> Datetimes:
        """Local standard time of steps first..last-1, which may be after the end."""
        return self.start + np.arange(first, last) * self.step

    def lagged(self, first: int, last: int, lag: int, clients: slice = ALL) -> Floats:
        """Filled values `lag` steps before steps first..last-1, [client, step]; NaN if unknown."""
        return window(self.filled[clients], first - lag, last - lag)

    def lagged_live(self, first: int, last: int, lag: int, clients: slice = ALL) -> Floats:
        """The live mean `lag` steps before steps first..last-1, [client, step]; NaN if unknown."""
        if self.live is None:
            return np.full((len(self.observed[clients]), last - first), np.nan)
        return window(self.live[clients], first - lag, last - lag)

    def input(self, name: str, first: int, last: int, lag: int, clients: slice = ALL) -> Floats:
        """An external input `lag` steps before steps first..last-1, [client, step]."""
        if name not in self.inputs:
            return np.full((len(self.observed[clients]), last - first), np.nan)
        return window(self.inputs[name][clients], first - lag, last - lag)

    def input_scales(self, names: Sequence[str], end: int, clients: slice = ALL) -> Floats:
        """Mean, deviation and normalised range of inputs before `end`, [client, input, 4].

        The deviation of a constant is infinite: whatever follows changes nothing.
        """
        values = np.stack([self.input(name, 0, end, 0, clients) for name in names], axis=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # an unknown input: all NaN
            low, high = np.nanmin(values, axis=2), np.nanmax(values, axis=2)
            mean, std = np.nanmean(values, axis=2), np.nanstd(values, axis=2)
        std = np.where(low == high, np.inf, std)
        beyond = REACH * (high - low)
        return np.stack([mean, std, (low - beyond - mean) / std, (high + beyond - mean) / std], 2)

    def input_columns(
        self, wanted: Sequence[InputColumn], scales: Floats, first: int, last: int,
        clients: slice = ALL,
    ) -> list[Floats]:  # fmt: skip
        """Normalised inputs at steps first..last-1, or their changes, [client, step] each."""
        names = list(dict.fromkeys(name for name, _ in wanted))

        def normalised(name: str, lag: int) -> Floats:
            mean, std, low, high = scales[:, names.index(name)].T[:, :, None]
            values = (self.input(name, first, last, lag, clients) - mean) / std
            return np.asarray(np.clip(values, low, high))

        now = {name: normalised(name, 0) for name in names}
        return [now[name] - normalised(name, lag) if lag else now[name] for name, lag in wanted]

    def columns(self, wanted: Columns, first: int, last: int, clients: slice = ALL) -> Floats:
        """The inputs for steps first..last-1, [client, step, column]: lags, live, calendar.

        External inputs are not among them: they need scales.
        """
        own, live = len(wanted.lags), len(wanted.live)
        x = np.empty((len(self.observed[clients]), last - first, own + live))
        for i, lag in enumerate(wanted.lags):
            x[:, :, i] = self.lagged(first, last, lag, clients)
        for i, lag in enumerate(wanted.live):
            x[:, :, own + i] = self.lagged_live(first, last, lag, clients)
        if not wanted.calendar:
            return x
        phase = np.arange(first, last) % self.period
        time = self.calendar.indicator_columns(
            ("time", "free"), self.times(first, last), phase, self.period
        )
        return np.concatenate([x, np.broadcast_to(time, (len(x), *time.shape))], axis=2)


def history_of(dataset: Dataset) -> History:
    """The history of a dataset's clients; step 0 is the dataset's step 0."""
    scale = dataset.mean, dataset.std
    return make_history(dataset.panel, dataset.period, *scale, dataset.offset, dataset.calendar)


def make_history(
    panel: Panel,
    period: int,
    mean: Floats,
    std: Floats,
    offset: int | None = None,
    calendar: Calendar | None = None,
    past: Past | None = None,
) -> History:
    """The history of a panel's clients, on the scale (mean, std) [client] of their training."""
    if len(mean) != len(panel.ids) or len(std) != len(panel.ids):
        raise FuelsError(
            f"{panel.name}: {len(panel.ids)} clients, but {len(mean)} scales are given"
        )
    if offset is None:
        offset = int(panel.phases(period)[0]) if panel.length else 0
    before = np.full((len(panel.ids), offset), np.nan)
    observed = np.concatenate([before, (panel.values.T - mean[:, None]) / std[:, None]], axis=1)
    return History(
        observed=observed,
        filled=fill_from_earlier(observed, period, past),
        period=period,
        week=steps_in_week(panel.step_seconds, period),
        start=panel.start + panel.standard_offset - offset * panel.step,
        step=panel.step,
        calendar=calendar or Calendar(),
        past=past,
        inputs=aligned(panel, offset),
    )


def steps_in_week(step_seconds: int, period: int) -> int:
    """The period if a week is not a whole number of steps."""
    return WEEK_SECONDS // step_seconds if WEEK_SECONDS % step_seconds == 0 else period


def fill_from_earlier(observed: Floats, period: int, past: Past | None = None) -> Floats:
    """Missing values [client, time] replaced by the newest earlier value of the same phase.

    Once a client has had no value for a whole period, its values stay NaN.
    """
    silent = np.ones(len(observed)) if past is None else past.silent + 1
    filled = newest_values(observed, period, past)
    return np.where(steps_since_value(observed, silent) <= period, filled, np.nan)


def steps_since_value(observed: Floats, before: Floats) -> Floats:
    """Steps since the newest value [client, time]; at step 0 without a value, `before` [client]."""
    step = np.arange(observed.shape[1], dtype=np.float64)
    newest = np.where(np.isnan(observed), -np.inf, step)
    newest[:, :1] = np.fmax(newest[:, :1], -before[:, None])
    return step - np.maximum.accumulate(newest, axis=1)


def newest_values(observed: Floats, period: int, past: Past | None = None) -> Floats:
    """The newest value of the same phase up to each step, however old."""
    filled = observed.copy()
    for first in range(0 if past else period, filled.shape[1], period):
        part = filled[:, first : first + period]
        if first == 0 and past:
            earlier = past.newest[:, : part.shape[1]]
        else:
            earlier = filled[:, first - period : first - period + part.shape[1]]
        part[...] = np.where(np.isnan(part), earlier, part)
    return filled
