"""Several rows of a client at one time, and rows combined into steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fuels.arrays import Floats, Integers
from fuels.data.means import ratio
from fuels.errors import FuelsError


def combine(keys: Integers, values: Floats, how: str) -> tuple[Integers, Floats]:
    """One row for each key, ascending, of values [row, column].

    first and last go by the order of rows; a sum with a missing part is missing, a mean ignores
    missing parts.
    """
    order = np.argsort(keys, kind="stable")
    ordered, values = keys[order], values[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))
    if how == "first":
        return ordered[starts], values[starts]
    if how == "last":
        ends = np.append(starts[1:], len(ordered)) - 1
        return ordered[starts], values[ends]
    if how == "sum":
        return ordered[starts], np.add.reduceat(values, starts, axis=0)
    present = ~np.isnan(values)
    count = np.add.reduceat(present.astype(np.int64), starts, axis=0)
    total = np.add.reduceat(np.where(present, values, 0.0), starts, axis=0)
    return ordered[starts], ratio(total, count)


def resolve_duplicates(
    keys: Integers,
    values: Floats,
    policy: str | None,
    refuse: Callable[[int, str], FuelsError],
) -> tuple[Integers, Floats, int]:
    """One row for each key of values [row, column], and how many rows that saved.

    By default rows with the same values are accepted. `refuse` makes the error from the position of
    a row that has the key of an earlier one, and what they hold.
    """
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(np.diff(keys[order]) == 0) + 1
    if len(again) == 0:
        return keys, values, 0
    if policy == "error":
        raise refuse(int(order[again[0]]), "")
    if policy in (None, "same"):
        one, two = values[order[again - 1]], values[order[again]]
        differs = (one != two) & ~(np.isnan(one) & np.isnan(two))
        if differs.any():
            at, column = np.argwhere(differs)[0]
            held = " and ".join(_shown(pair[at, column]) for pair in (one, two))
            raise refuse(int(order[again[at]]), held)
    unique, combined = combine(keys, values, "first" if policy in (None, "same") else str(policy))
    return unique, combined, len(again)


def _shown(value: float) -> str:
    return "no value" if np.isnan(value) else f"{value:.10g}"
