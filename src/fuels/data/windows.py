"""From a panel to samples: the split, the scale, and which values may be targets.

A sample at step k (Section 2) sees the values at k - lag for every lag of every branch, oldest
first, and calendar features (sample.py). Nothing from validation or test reaches training: the
split comes first, and the scale, gap filling and eligibility rules use only the training part.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fuels.arrays import Datetimes, Flags, Floats, Floats32, Integers
from fuels.data.calendar import Calendar, make_calendar
from fuels.data.eligibility import find_ineligible
from fuels.data.gaps import fill_gaps
from fuels.data.panel import Panel
from fuels.data.sample import Branches, Sample
from fuels.data.screening import Screened
from fuels.errors import FuelsError

DEFAULT_SPLIT = (40, 11, 11)
LEAST = 3  # periods to learn from
HARDLY = 0.01  # of a client's standard deviation in training
_CLIENT_ARRAYS = ("series", "known", "window", "observed", "target", "mean", "std")
TINY, HUGE = 1e-30, 1e30  # single precision fails beyond these


@dataclass(frozen=True)
class Split:
    """Bounds of the parts in steps: training is [0, train), then validation, then test."""

    train: int
    val: int
    test: int

    def part(self, name: str) -> tuple[int, int]:
        return {
            "train": (0, self.train),
            "val": (self.train, self.val),
            "test": (self.val, self.test),
        }[name]


def split_periods(text: str, periods: int) -> tuple[int, int, int]:
    """Whole periods for training, validation and test; by default 40:11:11 in proportion."""
    if not text:
        total = sum(DEFAULT_SPLIT)
        val, test = (max(1, round(periods * part / total)) for part in DEFAULT_SPLIT[1:])
        return periods - val - test, val, test
    try:
        train, val, test = (int(part) for part in text.split("/"))
    except ValueError:
        raise FuelsError(
            f"windows.split is train/val/test in whole periods, e.g. 40/11/11, not {text!r}"
        ) from None
    if train < 1 or val < 0 or test < 0:
        raise FuelsError(
            f"windows.split {text}: training needs at least one period, and no part may be negative"
        )
    if train + val + test > periods:
        raise FuelsError(
            f"windows.split {text} asks for {train + val + test} periods, but the data span"
            f" {periods}"
        )
    return train, val, test


@dataclass(frozen=True)
class Dataset:
    """What sites train on: normalised series of the clients that take part, aligned by period.

    Step 0 is the start of a period: a panel that begins in mid-period is preceded by `offset` steps
    without values. All arrays are [client, time].
    """

    panel: Panel  # the clients that take part, in the order of the arrays
    sample: Sample
    calendar: Calendar
    split: Split
    offset: int
    series: Floats32  # z-scored, gaps filled, 0 if unknown
    known: Flags  # observed or filled
    window: Flags  # every lag of the sample at this step is known
    observed: Flags
    target: Flags  # the value was observed, and its window is known
    mean: Floats  # [client], of the training part
    std: Floats  # [client], of the training part
    filled: int  # values filled
    left_out: dict[str, str]  # client: reason
    # Implausible values, which are missing above; None: not screened.
    screened: Screened | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        return self.panel.ids

    @property
    def period(self) -> int:
        return self.sample.period

    def take(self, columns: Sequence[int]) -> Dataset:
        """The dataset of some clients, by position: a site's share."""
        index = np.asarray(columns, dtype=np.int64)
        return replace(
            self,
            panel=self.panel.take(index),
            left_out={},
            screened=None
            if self.screened is None
            else self.screened.of([self.ids[i] for i in index]),
            **{name: getattr(self, name)[index] for name in _CLIENT_ARRAYS},
        )

    def inputs(self, clients: Integers, first: int, last: int) -> Floats32:
        """Windows [client, step, lag] of the steps first..last-1; unknown values are 0."""
        steps = np.arange(first, last)[:, None] - np.asarray(self.sample.lags)[None, :]
        known = (steps >= 0) & (steps < self.series.shape[1])
        gathered = self.series[clients][:, np.where(known, steps, 0)]
        return np.where(known, gathered, np.float32(0))

    def clock(self, first: int, last: int, inverted: bool = False) -> Floats32:
        """Calendar features of the samples of steps first..last-1, [step, H, column].

        `inverted` swaps working days and days off.
        """
        steps = np.arange(first, last + self.sample.horizon - 1) - self.offset
        local = self.panel.start + self.panel.standard_offset
        calendar = replace(self.calendar, inverted=inverted)
        return self.sample.clock(calendar, local + steps * self.panel.step, first)

    def values(self, part: str) -> Floats:
        """The observed values of a part in the data's unit, [client, step]; NaN if missing."""
        first, last = self.split.part(part)
        return self.panel.values[max(0, first - self.offset) : last - self.offset].T

    def nearly_constant(self, part: str) -> list[str]:
        """Clients whose values hardly change in a whole part, relative to training."""
        values = self.values(part)
        if values.shape[1] == 0:
            return []
        lowest, highest = np.fmin.reduce(values, axis=1), np.fmax.reduce(values, axis=1)
        hardly = highest - lowest <= HARDLY * self.std  # false if nothing is known
        return [self.ids[i] for i in np.flatnonzero(hardly)]

    def times(self, part: str) -> Datetimes:
        first, last = self.split.part(part)
        return self.panel.start + (np.arange(first, last) - self.offset) * self.panel.step


def draw_clients(ids: Sequence[str], count: int, seed: int) -> list[str]:
    """`count` of the sorted ids, drawn with NumPy's default generator from this seed."""
    if count > len(ids):
        raise FuelsError(
            f"data.clients asks for {count} clients, but only {len(ids)} can take"
            f" part; use --clients {len(ids)} or --clients all"
        )
    chosen = np.random.default_rng(seed).choice(len(ids), size=count, replace=False)
    return [ids[i] for i in sorted(chosen)]


def prepare(
    panel: Panel,
    sample: Sample,
    *,
    holidays: Sequence[str] = (),
    split: str = "",
    clients: int = 0,
    seed: int = 0,
    max_gap: int = 0,
    least: int = LEAST,
) -> Dataset:
    """Split, check eligibility, draw, fill gaps and scale: the dataset a federation trains on.

    `least`: training periods a client needs to learn from, in addition to those for its windows.
    """
    period = sample.period
    panel = panel.sorted()
    offset = int(panel.phases(period)[0]) if panel.length else 0
    length = offset + panel.length
    periods = -(-length // period)  # a final incomplete period counts
    values = np.full((periods * period, len(panel.ids)), np.nan)
    values[offset:length] = panel.values
    needed = sample.reach_periods + least
    train, val, test = split_periods(split, periods)
    if train < needed:
        raise too_short(panel, sample, needed, periods, train)
    farthest = (train - sample.reach_periods) * period  # from the first sample to training's end
    if sample.horizon > farthest:
        raise FuelsError(
            f"windows.horizon is {sample.horizon}, but training has samples in only"
            f" {farthest} steps: it can be at most {farthest}"
        )
    bounds = Split(
        train=train * period,
        val=min((train + val) * period, max(length, train * period)),
        test=min((train + val + test) * period, max(length, train * period)),
    )
    reasons = find_ineligible(values, bounds.train, period, needed)
    filled_values, _ = fill_gaps(values, period, bounds.train, max_gap=max_gap or period)
    known = ~np.isnan(filled_values)
    window = known_windows(known.T, sample.branches)
    window[:, length:] = False  # after the end of the data there are no targets
    training = window[:, : bounds.train].reshape(len(panel.ids), -1, period)
    with np.errstate(over="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # clients without values are left out above
        mean, std = (np.asarray(f(values[: bounds.train], axis=0)) for f in (np.nanmean, np.nanstd))
    for i in np.flatnonzero(
        ~((std > TINY) & (np.nanmax(np.abs(values), axis=0, initial=0) < HUGE))
    ):
        reasons.setdefault(int(i), "values too large or too similar to be normalised")
    for i in np.flatnonzero(~np.all(training, axis=2).any(axis=1)):
        reasons.setdefault(int(i), "no complete period of training: its gaps are too long to fill")
    left_out = {panel.ids[i]: reasons[i] for i in sorted(reasons)}
    live = [i for i in range(len(panel.ids)) if i not in reasons]
    if not live:
        client, reason = next(iter(left_out.items()), ("", "there are no clients"))
        raise FuelsError(f"{panel.name}: no client can take part; {client}: {reason}")
    if clients:
        drawn = set(draw_clients([panel.ids[i] for i in live], clients, seed))
        live = [i for i in live if panel.ids[i] in drawn]
    panel, values, filled_values = panel.take(live), values[:, live], filled_values[:, live]
    known, window, observed = known[:, live], window[live], ~np.isnan(values)
    mean, std = mean[live], std[live]
    scaled = ((filled_values - mean) / std).T
    return Dataset(
        panel=panel,
        sample=sample,
        calendar=panel_calendar(panel, holidays),
        split=bounds,
        offset=offset,
        series=np.nan_to_num(scaled, nan=0.0).astype(np.float32),
        known=known.T,
        window=window,
        observed=observed.T,
        target=observed.T & window,
        mean=mean,
        std=std,
        filled=int((known & ~observed)[:length].sum()),
        left_out=left_out,
    )


def too_short(panel: Panel, sample: Sample, needed: int, periods: int, train: int) -> FuelsError:
    """Why `train` periods are too few to learn from, and a split that would work."""
    reach, period, rest = sample.reach_periods, sample.period, periods - needed
    day = period * panel.step == np.timedelta64(1, "D")
    unit = "days" if day else f"periods of {period} steps"
    why = (
        f"training needs at least {needed}, {reach} for the windows to look back on and"
        f" {needed - reach} to learn from"
    )
    if rest < 0:
        spanned = f"{panel.length} steps, {panel.length / period:.1f} {unit}"
        return FuelsError(
            f"{panel.name}: the data span {spanned}; {why}, and a test needs one more"
        )
    if rest == 0:
        return FuelsError(
            f"{panel.name}: the data span {periods} {unit}; {why}, and a test needs one more: add"
            f" it and use --split {needed}/0/1, or train without a test: --split {needed}/0/0"
        )
    usual = split_periods("", periods)
    if usual[0] < needed:
        usual = needed, rest // 2, rest - rest // 2
    return FuelsError(
        f"{panel.name}: the split leaves {train} of {periods} {unit} for training; {why}:"
        f" try --split {'/'.join(map(str, usual))}"
    )


def panel_calendar(panel: Panel, holidays: Sequence[str]) -> Calendar:
    """The calendar of a panel's years and of the ten after them, for later forecasts."""
    first, last = (int(t.astype("datetime64[Y]").astype(int)) + 1970 for t in panel.times[[0, -1]])
    return make_calendar(holidays, range(first, last + 11))


def known_windows(known: Flags, lags: Branches) -> Flags:
    """Whether every lag of the sample at a step is known, [client, step]."""
    window = np.ones(known.shape, dtype=np.bool_)
    for lag in {lag for branch in lags for lag in branch}:
        window[:, :lag] = False
        window[:, lag:] &= known[:, : known.shape[1] - lag]
    return window
