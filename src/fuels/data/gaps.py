"""Filling short gaps from the same phase of neighbouring periods.

A gap is a run of missing values after a client's first observed value. Filled values feed windows
but are never targets. No future data leak: how a step inside the training part is filled depends
only on the training part; after it, only on earlier steps, as in a live forecast.
"""

from __future__ import annotations

import numpy as np

from fuels.arrays import Flags, Floats


def fill_gaps(
    values: Floats, period: int, train_end: int, *, max_gap: int | None = None
) -> tuple[Floats, int]:
    """Fill gaps of at most `max_gap` steps (one period by default) in values [time, client].

    Inside training (step < train_end): the mean of the nearest earlier and the nearest later value
    at the same phase, or whichever exists, in gaps whose part inside training is short enough.
    After it: the nearest earlier one, up to `max_gap` steps after the last observed value. Returns
    the filled values and how many were filled; what cannot be filled stays NaN.
    """
    length = values.shape[0]
    fillable = _fillable(~np.isnan(values), train_end, period if max_gap is None else max_gap)
    if not fillable.any():
        return values.copy(), 0
    by_phase = stack_periods(values, period)  # [period number, phase, client]
    earlier = _carry_forward(by_phase).reshape(-1, values.shape[1])[:length]
    training = values.copy()
    training[train_end:] = np.nan
    later = _carry_forward(stack_periods(training, period)[::-1])[::-1]
    later = later.reshape(-1, values.shape[1])[:length]  # NaN from train_end on, by construction
    fill = np.where(
        np.isnan(later), earlier, np.where(np.isnan(earlier), later, 0.5 * (earlier + later))
    )
    fill[train_end:] = earlier[train_end:]
    filled = np.where(fillable, fill, values)
    return filled, int(np.count_nonzero(fillable & ~np.isnan(filled)))


def _fillable(observed: Flags, train_end: int, max_gap: int) -> Flags:
    """Whether each missing value is in a short gap, by data that may be used there."""
    length = observed.shape[0]
    step = np.arange(length, dtype=np.int32)[:, None]
    before = np.maximum.accumulate(np.where(observed, step, np.int32(-1)), axis=0)
    # Inside training a gap ends at the next value or the end of training; after it, only its start
    # is known.
    seen = observed[:train_end]
    ends = np.where(seen, step[:train_end], np.int32(min(train_end, length)))
    after = np.minimum.accumulate(ends[::-1], axis=0)[::-1]
    gap = step - before
    gap[:train_end] = after - before[:train_end] - 1
    return ~observed & (before >= 0) & (gap <= max_gap)


def stack_periods(values: Floats, period: int) -> Floats:
    """[time, client] as [period number, phase, client], padded at the end with missing values."""
    padding = np.full((-values.shape[0] % period, values.shape[1]), np.nan)
    return np.concatenate((values, padding)).reshape(-1, period, values.shape[1])


def _carry_forward(stacked: Floats) -> Floats:
    """The last observed value at or before each period, along the first axis."""
    carried = stacked.copy()
    for row in range(1, len(carried)):
        empty = np.isnan(carried[row])
        carried[row][empty] = carried[row - 1][empty]
    return carried
