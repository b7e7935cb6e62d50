"""What an expert may look at: the normalised past of every client, filled from the past alone.

A dataset fills a gap once its end is known; a forecaster at work does not know that end yet. So
experts fill by themselves, with the newest earlier value at the same time of the period, and a
forecast made on stored data is the one that would have been made on the day.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fuels.data.panel import Panel
from fuels.data.windows import Dataset
from fuels.errors import FuelsError

Floats = NDArray[np.float64]
WEEK_SECONDS = 7 * 86400
ALL = slice(None)


@dataclass(frozen=True)
class History:
    """Series on the scale of the training part, [client, time], and their clock."""

    observed: Floats  # NaN where nothing was observed
    filled: Floats  # gaps of up to one period filled from earlier periods, NaN beyond
    period: int
    week: int  # steps of one week; the period where a week is no whole number of steps
    start: np.datetime64  # local standard time of step 0
    step: np.timedelta64

    @property
    def clients(self) -> int:
        return int(self.observed.shape[0])

    @property
    def length(self) -> int:
        return int(self.observed.shape[1])

    def times(self, first: int, last: int) -> NDArray[np.datetime64]:
        """Local standard time of steps first..last-1, which may lie after the end."""
        return self.start + np.arange(first, last) * self.step

    def lagged(self, first: int, last: int, lag: int, clients: slice = ALL) -> Floats:
        """Filled values `lag` steps before steps first..last-1, [client, step]; NaN if unknown."""
        source = self.filled[clients]
        result = np.full((len(source), last - first), np.nan)
        low, high = max(first - lag, 0), min(last - lag, self.length)
        if high > low:
            result[:, low - first + lag : high - first + lag] = source[:, low:high]
        return result


def history_of(dataset: Dataset) -> History:
    """The history of a dataset's clients; step 0 is the dataset's step 0."""
    return make_history(dataset.panel, dataset.period, dataset.mean, dataset.std, dataset.offset)


def make_history(
    panel: Panel, period: int, mean: Floats, std: Floats, offset: int | None = None
) -> History:
    """The history of a panel's clients, on the scale (mean, std) [client] of their training."""
    if len(mean) != len(panel.ids) or len(std) != len(panel.ids):
        raise FuelsError(
            f"{panel.name}: {len(panel.ids)} clients, but the scale of {len(mean)} is given"
        )
    if offset is None:
        offset = int(panel.phases(period)[0]) if panel.length else 0
    before = np.full((len(panel.ids), offset), np.nan)
    observed = np.concatenate([before, (panel.values.T - mean[:, None]) / std[:, None]], axis=1)
    whole = WEEK_SECONDS % panel.step_seconds == 0
    return History(
        observed=observed,
        filled=fill_from_earlier(observed, period),
        period=period,
        week=WEEK_SECONDS // panel.step_seconds if whole else period,
        start=panel.start + panel.standard_offset - offset * panel.step,
        step=panel.step,
    )


def fill_from_earlier(observed: Floats, period: int) -> Floats:
    """Missing values [client, time] replaced by the newest earlier one of the same phase.

    From the step on where a client has been silent for a whole period its values stay NaN.
    """
    length = observed.shape[1]
    present = ~np.isnan(observed)
    step = np.arange(length)
    newest = np.maximum.accumulate(np.where(present, step, -1), axis=1)
    filled = observed.copy()
    for first in range(period, length, period):
        part = filled[:, first : first + period]
        earlier = filled[:, first - period : first - period + part.shape[1]]
        part[...] = np.where(np.isnan(part), earlier, part)
    return np.where(step - newest <= period, filled, np.nan)
