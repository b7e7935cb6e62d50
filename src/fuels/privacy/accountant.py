"""From noise to epsilon: privacy loss distributions of `dp-accounting` (extra `privacy`).

Gaussian releases compose exactly: together, those with sensitivities D_i and noise s_i are one with
sensitivity sqrt(loss) and noise 1, loss = sum (D_i / s_i)^2, however adaptively they are chosen. So
a ledger adds up losses, and the epsilon of their sum is a single computation.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import inf, isfinite, sqrt
from typing import Any

import numpy as np

from fuels.config import nearest
from fuels.errors import FuelsError
from fuels.privacy.sensitivity import Relation

DP_ACCOUNTING = {Relation.REMOVED: "REPLACE_SPECIAL", Relation.REPLACED: "REPLACE_ONE"}
TOLERANCE = 1e-9  # of sums of losses, which are rounded
MARGIN = 1e-4  # first reduction of a loss whose epsilon is too large


def accounting() -> Any:
    """The package dp_accounting, or a sentence that says how to get it."""
    try:
        import dp_accounting
        import dp_accounting.pld
    except ImportError:
        raise FuelsError(
            "privacy.epsilon needs the package dp-accounting: pip install 'fuels-forecast[privacy]'"
        ) from None
    return dp_accounting


@lru_cache(maxsize=4096)
def epsilon_of(loss: float, delta: float) -> float:
    """Epsilon at `delta` of Gaussian releases whose losses add up to `loss`."""
    if loss <= 0:
        return 0.0
    package = accounting()
    accountant = package.pld.PLDAccountant()
    accountant.compose(package.GaussianDpEvent(1 / sqrt(loss)))
    return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=64)
def loss_for(epsilon: float, delta: float) -> float:
    """The largest loss within (epsilon, delta), to the safe side.

    From the closed form of the Gaussian mechanism, less what the discretisation of the privacy loss
    distribution adds: so the epsilon of this loss by `epsilon_of` is never above `epsilon`.
    """
    check(epsilon, delta)
    loss, margin = _closed_form(epsilon, delta), MARGIN
    while epsilon_of(loss, delta) > epsilon:
        loss, margin = loss * (1 - margin), 2 * margin
    return loss


def _closed_form(epsilon: float, delta: float) -> float:
    """The loss at which delta(epsilon) of a Gaussian (Balle and Wang, 2018, Th. 8) is delta."""
    from scipy.special import log_ndtr, ndtr  # slow to import

    low, high = 1e-9, 1e3  # of the square root of the loss
    for _ in range(200):
        mu = (low + high) / 2
        reached = ndtr(mu / 2 - epsilon / mu)
        reached -= np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
        low, high = (mu, high) if reached <= delta else (low, mu)
    return low * low


def check(epsilon: float, delta: float) -> None:
    if not (isfinite(epsilon) and epsilon > 0):
        raise FuelsError(f"privacy.epsilon must be a positive number; it is {epsilon:g}")
    if epsilon > 20:
        raise FuelsError(
            f"privacy.epsilon is {epsilon:g}, which guarantees nothing; useful values are 1 to 8,"
            " at most 20"
        )
    if not 0 < delta < 0.01:
        raise FuelsError(
            "privacy.delta must be above 0 and below 0.01, such as 1e-5: the probability with which"
            f" the guarantee may fail; it is {delta:g}"
        )


# How the budget is divided between the releases of a run, in proportion to these numbers: chosen on
# days before 11 December (benchmarks/private_sums.py, mean_day_groups.py).
SHARES: Mapping[str, float] = {
    "scale": 0.05,
    "own mean day": 0.1,  # only with privacy.groups
    "mean day": 0.05,
    "live mean": 0.2,
    "statistics": 0.7,
}


def multipliers(epsilon: float, delta: float, names: Mapping[str, int]) -> dict[str, float]:
    """Noise per sensitivity of every release; `names` says how often one unit is in each."""
    if unknown := [name for name in names if name not in SHARES]:
        raise FuelsError(f"no release is called {unknown[0]}{nearest(unknown[0], SHARES)}")
    whole = sum(SHARES[name] for name in names)
    loss = loss_for(epsilon, delta) / (1 + TOLERANCE) ** 2
    return {
        name: sqrt(times * whole / (SHARES[name] * loss)) if times else inf
        for name, times in names.items()
    }
