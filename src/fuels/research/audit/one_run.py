"""A lower bound on epsilon from one run (Steinke, Nasr and Jagielski, arXiv:2305.08846, Th. 5.2).

Fair coins decide which of many records take part. An attacker guesses some of the coins. If the
run is (epsilon, delta)-differentially private, the number of correct guesses among r exceeds v no
more often than

    P[B >= v] + 2 m delta max_i P[v - i <= B < v] / i,   B ~ Binomial(r, e^eps / (1 + e^eps)),

for m coins. The largest epsilon that this contradicts at the chosen confidence is the bound. It is
a statement about one attacker: a better one may find more, and 0 does not mean private.
"""

from __future__ import annotations

import numpy as np

from fuels.arrays import Flags, Floats

CONFIDENCE, DELTA = 0.95, 1e-5
SHARES = (0.1, 0.5, 1.0)  # of the coins that are guessed: those with the most extreme scores
LARGEST, STEPS = 30.0, 20  # of the search


def p_value(epsilon: float, delta: float, coins: int, guesses: int, correct: int) -> float:
    """How likely so many correct guesses are, at most, under (epsilon, delta)."""
    from scipy.stats import binom  # slow to import

    success = 1 / (1 + np.exp(-epsilon))
    value = float(binom.sf(correct - 1, guesses, success))
    if correct > 0:
        below = binom.pmf(correct - np.arange(1, correct + 1), guesses, success)
        worst = float((np.cumsum(below) / np.arange(1, correct + 1)).max())
        value += 2 * coins * delta * worst
    return min(value, 1.0)


def epsilon_bound(score: Floats, member: Flags) -> float:
    """The bound for guesses by the sign of a score; the best share of guesses counts.

    The confidence is divided among the shares that are tried.
    """
    order = np.argsort(-np.abs(score), kind="stable")
    right = (score > 0) == member
    found = 0.0
    for share in SHARES:
        made = order[: max(1, round(share * len(order)))]
        level = (1 - CONFIDENCE) / len(SHARES)
        found = max(found, _largest(level, DELTA, len(score), len(made), int(right[made].sum())))
    return found


def _largest(level: float, delta: float, coins: int, guesses: int, correct: int) -> float:
    """The largest epsilon whose p-value is below the level."""
    low, high = 0.0, LARGEST
    if p_value(0.0, delta, coins, guesses, correct) >= level:
        return 0.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if p_value(middle, delta, coins, guesses, correct) < level:
            low = middle
        else:
            high = middle
    return low
