"""Rows whose times are not on a regular step: a few seconds off, or at any time.

With --resample, times that are a little off are moved to the step they are near; rows at any times
are combined into the steps wanted. Without it, the error names the options that help.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fuels.arrays import Floats, Integers
from fuels.data.clock import SECOND, format_step, parse_step
from fuels.data.groups import combine
from fuels.data.table_options import TableOptions
from fuels.data.times import Times, local_offset

_STEPS = (
    *(1, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600),
    *(7200, 10800, 14400, 21600, 28800, 43200, 86400, 604800),
)
_LITTLE = 0.1  # of a step: a time that is off by at most this belongs to the step it is near
_MOSTLY = 0.9  # of the rows: if more are exactly on a step, the others are errors


def usual_step(gaps: Integers) -> int | None:
    """The round step nearest to the usual distance between times, if one is near."""
    if len(gaps) == 0:
        return None
    middle = float(np.median(gaps))
    step = min(_STEPS, key=lambda each: abs(each - middle))
    return step if abs(step - middle) <= _LITTLE * step else None


def nearly_regular(times: Times, step: int) -> bool:
    """Whether all times are near the step."""
    return bool((np.abs(_off(times, step)) <= _LITTLE * step).all())


def mostly_regular(times: Times, step: int) -> bool:
    """Whether most times are exactly on the step."""
    return float((_off(times, step) == 0).mean()) >= _MOSTLY


def _off(times: Times, step: int) -> Integers:
    """Signed distance of each time from the nearest step."""
    seconds = times.seconds + local_offset(times)
    return (seconds + step // 2) % step - step // 2


def binned(
    times: Times, codes: Integers, values: Floats, gaps: Integers, given: TableOptions
) -> tuple[Times, Integers, Floats]:
    """Rows [row, column] combined into the steps of --resample: time, client and values of each.

    Steps at the two ends that the data do not cover are dropped.
    """
    assert given.resample is not None and given.how is not None
    wide = int(parse_step(given.resample) / SECOND)
    local = times.seconds + local_offset(times)
    bins, clients = local // wide, int(codes.max()) + 1
    usual = 2 * float(np.median(gaps)) if len(gaps) else 0.0
    first, last = int(bins.min()), int(bins.max())
    first += local.min() - first * wide > usual
    last -= (last + 1) * wide - local.max() > usual
    inside = (bins >= first) & (bins <= last)
    if not inside.any():
        inside, first = np.ones(len(bins), dtype=bool), int(bins.min())
    keys, combined = combine(bins[inside] * clients + codes[inside], values[inside], given.how)
    dropped = len(bins) - int(inside.sum())
    ends = f"; {dropped} rows in incomplete bins at the ends were dropped" if dropped else ""
    note = f"rows at irregular times: resampled to {format_step(wide)} by {given.how}{ends}"
    seconds = keys // clients * wide - local_offset(times)
    return replace(times, seconds=seconds, notes=(*times.notes, note)), keys % clients, combined
