"""The inputs and targets of one sample: lags, calendar features, and the values to forecast.

The paper's sample has two windows, c values just before the step and the same phase of q earlier
periods, and one target, the value of the step itself. Settings describe others:

    windows.lags      "1-4/1p,1p+1,2p,7p"   one list of lags for each GRU; p is a period
    windows.calendar  time, free, weekday   calendar features, see calendar.py
    windows.doubt     0.35                  share of training periods in which working days and
                                            days off are swapped: the model learns to recognise
                                            the kind of day from the data, as holidays require
    windows.target    value or change       forecast the value, or its change against the last one
    windows.horizon   H                     forecast the next H values, one head each
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from fuels.arrays import Datetimes, Floats32
from fuels.config import Windows, nearest
from fuels.data.calendar import COLUMNS, Calendar, encoder_clock_width, indicator_width
from fuels.errors import FuelsError

Branches = tuple[tuple[int, ...], ...]
TARGETS = ("value", "change")


@dataclass(frozen=True)
class Sample:
    """The sample of a step k, for any number of clients."""

    branches: Branches  # lags of each GRU in steps, oldest first
    period: int
    calendar: tuple[str, ...] = ()
    change: bool = False
    horizon: int = 1
    doubt: float = 0.0  # share of training periods with working days and days off swapped

    @property
    def lags(self) -> tuple[int, ...]:
        return tuple(lag for branch in self.branches for lag in branch)

    @property
    def reach(self) -> int:
        """Number of steps the windows look back."""
        return max(self.lags)

    @property
    def reach_periods(self) -> int:
        """Number of whole periods that only feed windows."""
        return -(-self.reach // self.period)

    @property
    def newest(self) -> int:
        """Position of the latest value in the window."""
        return self.lags.index(min(self.lags))

    def clock(self, calendar: Calendar, times: Datetimes, first: int) -> Floats32:
        """Calendar features of steps first, first + 1, ... and the H - 1 after each.

        `times` includes the H - 1 steps after the last. Returns [step, H, column]: the columns for
        the heads, then those for the encoder.
        """
        phase = np.arange(first, first + len(times)) % self.period
        asked = (self.calendar, times, phase, self.period)
        columns = np.concatenate(
            [calendar.indicator_columns(*asked), calendar.encoder_columns(*asked)], axis=1
        )
        columns = columns.astype(np.float32)
        ahead = np.arange(len(times) - self.horizon + 1)[:, None] + np.arange(self.horizon)
        return np.asarray(columns[ahead])

    @property
    def clock_width(self) -> int:
        """Number of calendar features of a head."""
        return indicator_width(self.calendar, self.period)

    @property
    def encoder_clock_width(self) -> int:
        """Number of calendar features of the encoder."""
        return encoder_clock_width(self.calendar)


def paper_branches(period: int, closeness: int, periodicity: int) -> Branches:
    """The paper's two windows as lags, oldest first."""
    return (
        tuple(range(closeness, 0, -1)),
        tuple(period * j for j in range(periodicity, 0, -1)),
    )


def sample_of(windows: Windows) -> Sample:
    """The sample the settings describe."""
    for name in windows.calendar:
        if name not in COLUMNS:
            raise FuelsError(f"windows.calendar: unknown column {name}{nearest(name, COLUMNS)}")
    if windows.target not in TARGETS:
        raise FuelsError(
            f"windows.target must be {' or '.join(TARGETS)}, not {windows.target or 'empty'}"
        )
    usual = Windows()
    for name in ("closeness", "periodicity"):
        if windows.lags and getattr(windows, name) != getattr(usual, name):
            raise FuelsError(
                f"windows.{name} has no effect if windows.lags is set ({windows.lags}), as in"
                f" preset best: change the lags, clear them (--set windows.lags=), or use"
                f" --preset paper"
            )
    branches = (
        parse_lags(windows.lags, windows.period)
        if windows.lags
        else paper_branches(windows.period, windows.closeness, windows.periodicity)
    )
    change = windows.target == "change"
    if change and min(min(branch) for branch in branches) != 1:
        raise FuelsError(
            f"windows.target = change needs the last value: add lag 1 to windows.lags"
            f" {windows.lags}"
        )
    return Sample(
        branches,
        windows.period,
        windows.calendar,
        change,
        windows.horizon,
        windows.doubt if "free" in windows.calendar else 0.0,
    )


def parse_lags(text: str, period: int) -> Branches:
    """`1-4/1p,1p+1,7p` as lags in steps, oldest first, one tuple per GRU."""
    return tuple(_branch(part, text, period) for part in text.split("/"))


def _branch(part: str, text: str, period: int) -> tuple[int, ...]:
    found: set[int] = set()
    for word in part.split(","):
        span = re.fullmatch(r"(\d+)-(\d+)", word.strip())
        lag = re.fullmatch(r"(?:(\d*)(p))?([+-]?\d+)?", word.strip())
        if span:
            found |= set(range(int(span[1]), int(span[2]) + 1))
        elif lag and (lag[2] or lag[3]):
            periods = int(lag[1] or 1) if lag[2] else 0
            found.add(periods * period + int(lag[3] or 0))
        else:
            raise FuelsError(
                f"windows.lags {text!r}: {word.strip()!r} is not a lag; write steps (1, 2 or 1-4)"
                " or periods (1p, 1p+1, 7p), a comma between lags and / between the GRUs"
            )
    if not found or min(found) < 1:
        raise FuelsError(f"windows.lags {text!r}: a lag is at least 1 step")
    return tuple(sorted(found, reverse=True))
