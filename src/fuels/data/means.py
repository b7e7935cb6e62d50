"""Means and ratios of values some of which are not known: NaN where nothing is."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats


def ratio(part: NDArray[Any], whole: NDArray[Any]) -> Floats:
    """`part` over `whole`, NaN where that is 0 or not known."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(whole != 0, part / whole, np.nan))


def mean(values: NDArray[Any], axis: int | None) -> Floats:
    """The mean of the known values."""
    known = ~np.isnan(values)
    return ratio(np.where(known, values, 0.0).sum(axis=axis), known.sum(axis=axis))


def known(values: Iterable[float]) -> list[float | None]:
    """Numbers for JSON, which has no NaN."""
    return [None if math.isnan(value) else value for value in values]
