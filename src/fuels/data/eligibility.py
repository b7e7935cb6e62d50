"""Which clients cannot take part, and why: dead, constant or too short.

The rules use only the training part. The movement of a period is the mean absolute change from step
to step; it is zero for a silent client and for a stuck meter. A period is still if its movement is
at most 1 % of the client's 90th percentile. A client is dead if its training part ends in a stretch
that is still on average and lasts at least 3 periods and at least a fifth of the training part.
Sparse clients, such as near-empty cells with many days without an SMS, are kept: the stretch must
be more than twice as long as the longest still run before it, and have a probability of less than
one in a thousand at the earlier rate of still periods.
"""

from __future__ import annotations

import numpy as np

from fuels.arrays import Floats
from fuels.data.gaps import stack_periods
from fuels.data.means import mean

_STILL = 0.01  # of the movement at the percentile below
_LIVELY = 90  # percentile of the client's movement over periods
_LEAST_PERIODS = 3
_LEAST_SHARE = 0.2
_LONGER = 2  # times the longest earlier still run
_CHANCE = 0.001


def find_ineligible(
    values: Floats,
    train_end: int,
    period: int,
    periods_needed: int,
    part: str = "training",
) -> dict[int, str]:
    """The positions of clients in values [time, client] that cannot take part, with the reasons.

    `part` is the name that the reasons give to these steps.
    """
    training = values[:train_end]
    observed = ~np.isnan(training)
    periods = -(-len(training) // period)
    enough = (~np.isnan(stack_periods(training, period))).any(axis=1).sum(axis=0)
    lowest = np.min(np.where(observed, training, np.inf), axis=0, initial=np.inf)
    highest = np.max(np.where(observed, training, -np.inf), axis=0, initial=-np.inf)
    movement = _movement(training, period)

    reasons: dict[int, str] = {}
    for client in range(values.shape[1]):
        if enough[client] < periods_needed:
            reasons[client] = (
                f"too short: values in {enough[client]} periods of {part};"
                f" {periods_needed} are needed"
            )
        elif lowest[client] == highest[client]:
            reasons[client] = f"constant: always {lowest[client]:g} in {part}"
        elif still := _still_at_end(movement[:, client]):
            reasons[client] = (
                f"dead: almost no activity in the last {still} of {periods} periods of {part}"
            )
    return reasons


def _movement(values: Floats, period: int) -> Floats:
    """Mean absolute change per period [period number, client]; NaN if no change is known."""
    change = np.abs(np.diff(values, axis=0, prepend=np.nan))
    if period > 1:  # the step into a period, such as the fall to silence, does not count
        change[::period] = np.nan
    return mean(stack_periods(change, period), axis=1)


def _still_at_end(movement: Floats) -> int:
    """Number of still periods at the end if the client is dead, otherwise 0."""
    known = movement[~np.isnan(movement)]
    if len(known) == 0:
        return 0
    threshold = _STILL * np.percentile(known, _LIVELY)
    still = known <= threshold
    # Mean movement of the last k periods, for every k: a single blip does not revive a dead client.
    length = np.arange(1, len(known) + 1)
    quiet = (np.cumsum(known[::-1]) / length <= threshold) & still[::-1]
    if not quiet.any():
        return 0
    at_end = int(length[quiet][-1])
    moving = np.flatnonzero(~still[: len(known) - at_end])
    if len(moving) == 0:
        return 0
    before = len(known) - at_end
    longest_run = int(np.max(np.diff(moving, prepend=-1))) - 1
    # Never exactly 0, so that a few periods are weak evidence.
    share_still = (before - len(moving) + 1) / (before + 2)
    long_enough = at_end >= max(_LEAST_PERIODS, _LEAST_SHARE * len(known))
    unusual = at_end > _LONGER * longest_run and share_still**at_end < _CHANCE
    return at_end if long_enough and unusual else 0
