"""Errors of a forecast: one number per client, and their mean over clients.

Every client has the same weight, however many of its values are missing. MSE and MAE are on the
normalised scale (in standard deviations of the client's training part), as the paper reports them,
and in the data's own unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Flags, Floats
from fuels.data.means import ratio
from fuels.data.windows import Dataset
from fuels.errors import FuelsError


@dataclass(frozen=True)
class Scores:
    """MSE and MAE of every client, normalised; `std` turns them into the data's unit."""

    mse: Floats  # [client], NaN for a client without a target
    mae: Floats
    std: Floats

    def means(self) -> dict[str, float]:
        return {
            "mse": float(np.nanmean(self.mse)),
            "mae": float(np.nanmean(self.mae)),
            "mse_unit": float(np.nanmean(self.mse * self.std**2)),
            "mae_unit": float(np.nanmean(self.mae * self.std)),
        }


def score(dataset: Dataset, part: str, forecast: NDArray[Any]) -> Scores:
    """Scores of a normalised forecast [client, step] of a part."""
    first, last = dataset.split.part(part)
    target = dataset.target[:, first:last]
    if not target.any():
        raise FuelsError(
            f"the {part} part has no observed value with known inputs to compare a forecast with"
        )
    mse, mae = errors(dataset.series[:, first:last], forecast, target)
    return Scores(mse, mae, dataset.std)


def weighted_percentage(dataset: Dataset, part: str, scores: Scores) -> float | None:
    """WAPE: the sum of all absolute errors over that of all actual values; None if that is 0."""
    first, last = dataset.split.part(part)
    target = dataset.target[:, first:last]
    actual = np.where(target, np.abs(dataset.values(part)), 0.0).sum()
    error = np.nansum(scores.mae * scores.std * target.sum(axis=1))
    return float(error / actual) if actual > 0 else None


def errors(actual: NDArray[Any], predicted: NDArray[Any], target: Flags) -> tuple[Floats, Floats]:
    """MSE and MAE of each client over its targets, [client]; NaN for a client without any."""
    difference = np.where(target, actual.astype(np.float64) - predicted, 0.0)
    count = target.sum(axis=1)
    return ratio((difference**2).sum(axis=1), count), ratio(np.abs(difference).sum(axis=1), count)
