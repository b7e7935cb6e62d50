"""How good intervals are: coverage overall, by time of the period and by client; pinball loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from fuels.arrays import Flags, Floats
from fuels.data.calendar import MOST_SLOTS, slot_of
from fuels.data.means import known, mean, ratio
from fuels.experts.intervals import Bands
from fuels.experts.limits import NO_LIMITS, Limits


@dataclass(frozen=True)
class IntervalScores:
    """Scores on the normalised scale, of the targets that have an interval; NaN without any."""

    levels: tuple[float, ...]
    coverage: Floats  # [level], mean over clients
    width: Floats  # [level]
    by_phase: Floats  # [level, phase], in at most 48 groups of phases
    by_client: Floats  # [level, client]
    pinball: float  # mean over the bounds of all levels
    limits: Limits

    def summary(self) -> dict[str, Any]:
        """As in summary.json, by level."""
        return {
            f"{level:g}": {
                "coverage": float(self.coverage[i]),
                "width": float(self.width[i]),
                "by_phase": known(self.by_phase[i].tolist()),
                "by_client": spread(self.by_client[i]),
            }
            for i, level in enumerate(self.levels)
        }

    def frame(self, ids: tuple[str, ...]) -> pl.DataFrame:
        """Coverage of each client: client, and a column for each level."""
        columns = {f"inside-{level:g}": self.by_client[i] for i, level in enumerate(self.levels)}
        return pl.DataFrame({"client": ids, **columns}).with_columns(
            pl.col(*columns).fill_nan(None)
        )


def interval_scores(
    bands: Bands, truth: Floats, first: int, period: int, limits: Limits = NO_LIMITS
) -> IntervalScores:
    """Scores of the intervals around forecasts of `truth` [client, step], NaN where unknown.

    `first` is the step of the first value, counted from the start of a period. A value at a bound
    is inside. The targets of a dataset are in single precision, so all are compared in it: zeros
    would otherwise lie outside an interval that begins at zero, or not, as they were rounded.
    """
    there = ~np.isnan(truth) & ~np.isnan(bands.lower[0])
    value, low, high = (x.astype(np.float32) for x in (truth, bands.lower, bands.upper))
    inside = there & (value >= low) & (value <= high)
    slots = min(period, MOST_SLOTS)
    slot = slot_of(np.arange(first, first + truth.shape[1]) % period, period)
    member = (slot[:, None] == np.arange(slots)).astype(np.float64)  # [step, slot]
    by_client = ratio(inside.sum(axis=2), there.sum(axis=1))
    width = np.where(there, bands.upper - bands.lower, 0.0).sum(axis=(1, 2))
    return IntervalScores(
        bands.levels,
        mean(by_client, axis=1),
        ratio(width, there.sum()),
        ratio(inside.sum(axis=1) @ member, there.sum(axis=0) @ member),
        by_client,
        pinball(bands, truth),
        limits,
    )


def pinball(bands: Bands, truth: Floats) -> float:
    """Mean pinball loss of the bounds of all levels: a proper score, less is better.

    The bounds of an 80 % interval are forecasts of the 10 % and the 90 % quantile. The loss weighs
    a value above a quantile q with q and one below it with 1 - q; it is least for the true one.
    """
    below = (1.0 - np.array(bands.levels)[:, None, None] / 100.0) / 2.0
    losses = []
    for quantile, bound in ((below, bands.lower), (1.0 - below, bands.upper)):
        missed = truth - bound
        losses.append(np.maximum(quantile * missed, (quantile - 1.0) * missed))
    loss = np.mean(losses, axis=(0, 1))
    return float(np.nanmean(loss)) if np.isfinite(loss).any() else float("nan")


def restricted(bands: Bands, where: Flags) -> Bands:
    """Intervals of some targets [client, step]; NaN elsewhere."""
    lower, upper = (np.where(where, band, np.nan) for band in (bands.lower, bands.upper))
    return replace(bands, lower=lower, upper=upper)


def spread(shares: Floats) -> dict[str, float] | None:
    """The middle and the ends of the shares inside, over clients or phases."""
    there = shares[~np.isnan(shares)]
    if not len(there):
        return None
    names, at = ("lowest", "5 %", "median", "95 %", "highest"), (0.0, 0.05, 0.5, 0.95, 1.0)
    return dict(zip(names, np.quantile(there, at).tolist(), strict=True))
