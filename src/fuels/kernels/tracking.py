"""The tracking learner of the mixture: one step of it, in plain loops.

Its twin, with which the mixture is compiled, is tracking_simd.py.
"""

from __future__ import annotations

import numpy as np

from fuels.arrays import Floats
from fuels.kernels.jit import compiled

SWEEPS = 30  # pairwise moves of the weights at one step
CLOSE = 1e-9  # of the pull: slopes that differ by less are equal
TINY = 1e-300  # avoids 0 / 0 and changes no other number, whatever the scale of the data


@compiled()
def best_lately(
    forecasts: Floats,
    said: float,
    truth: float,
    moments: Floats,
    count: Floats,
    weights: Floats,
    memory: float,
    pulls: tuple[float, float],
) -> None:
    """Discount and add the products of errors, then move weight between pairs of experts.

    Each move shifts weight from the expert with the steepest slope to the one with the least, as
    far as it helps, starting from the weights of the previous step.
    """
    experts = len(weights)
    count[0] = memory * count[0] + 1.0
    errors, least_square = np.where(np.isnan(forecasts), said, forecasts) - truth, np.inf
    for i in range(experts):
        error = errors[i]
        for j in range(experts):
            moments[i, j] = memory * moments[i, j] + error * errors[j]
        least_square = min(least_square, moments[i, i])
    pull = least_square * (pulls[0] + pulls[1] / count[0]) + TINY
    slope = pull * weights
    for j in range(experts):
        weight = weights[j]
        for i in range(experts if weight != 0 else 0):
            slope[i] += moments[j, i] * weight
    idle = np.where(weights > 0, 0.0, -np.inf)  # an expert without weight has none to give
    for _ in range(SWEEPS):
        low, high, least, most = 0, 0, slope[0], slope[0] + idle[0]
        for i in range(1, experts):
            own = slope[i]
            if own < least:
                least, low = own, i
            own += idle[i]
            if own > most:
                most, high = own, i
        if most - least <= CLOSE * pull:
            break
        bend = moments[low, low] + moments[high, high] - 2 * moments[low, high] + 2 * pull
        move = min((most - least) / max(bend, TINY), weights[high])
        weights[low] += move
        weights[high] -= move
        for i in (low, high):
            idle[i] = 0.0 if weights[i] > 0 else -np.inf
        for i in range(experts):
            slope[i] += move * (moments[low, i] - moments[high, i])
        slope[low] += move * pull
        slope[high] -= move * pull


@compiled()
def median(values: Floats) -> float:
    """The median of the values that are not missing."""
    return float(np.nanmedian(values))
