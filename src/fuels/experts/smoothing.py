"""Exponential smoothing: a level and a time-of-period profile that follow the series.

A forecast is level + profile at the target's slot + phi^h x the last deviation. Free days have a
separate profile. The three smoothing constants of a client minimise the squared error h steps ahead
on the training part, over a small grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from fuels.arrays import Floats, Integers
from fuels.experts.history import History
from fuels.experts.linear import Arrays
from fuels.kernels.smoothing import choose_pace, smooth_all

# Level, profile and deviation: (alpha, gamma, phi).
GRID = np.array(list(product((0.01, 0.05, 0.2, 0.6), (0.05, 0.15, 0.4), (0.0, 0.5, 0.8, 0.95))))


@dataclass(frozen=True)
class Smoothing:
    """The expert; it smooths all values, those before the history's first step included."""

    name: str = "smoothing"
    one_step_only: bool = False
    shared: bool = False
    pooled: bool = False

    def fit(self, history: History, end: int, horizon: int) -> Arrays:
        slot, slots = _slots(history, end)
        warm = min(history.week, end // 2)
        y = np.ascontiguousarray(history.observed[:, :end])
        return {"pace": GRID[choose_pace(y, slot, slots, horizon, warm, GRID)]}

    def forecasts(
        self, fitted: Arrays, history: History, first: int, last: int, horizon: int
    ) -> Floats:
        known = min(history.length, last - 1)  # the newest value that these forecasts may use
        out = np.full((history.clients, last), np.nan)
        self.state(fitted, history, known, horizon, out)
        return out[:, first:]

    def state(
        self, fitted: Arrays, history: History, end: int, horizon: int, out: Floats | None = None
    ) -> Floats:
        """The state after the steps before `end`; the forecasts [client, step] go to `out`."""
        out = np.empty((history.clients, end)) if out is None else out
        slot, slots = _slots(history, max(out.shape[1], end))
        state = np.full((history.clients, 2 + slots), np.nan)
        state[:, 1] = 0.0
        if history.past is not None and horizon in history.past.smoothing:
            state = history.past.smoothing[horizon].copy()
        y = np.ascontiguousarray(history.observed[:, :end])
        smooth_all(y, slot, horizon, np.ascontiguousarray(fitted["pace"]), state, out)
        return state


def _slots(history: History, last: int) -> tuple[Integers, int]:
    """Slot of every step before `last`: the phase, with separate slots for free days."""
    phase = np.arange(last) % history.period
    free = history.calendar.free(history.times(0, last))
    return phase + history.period * free, 2 * history.period
