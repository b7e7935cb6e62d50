"""The live mean: how the other clients are doing right now.

At each step a client contributes its normalised value, clipped to +-CLIP, and the number 1; if its
value is missing it contributes 0 and 0. From the two sums each client subtracts its own part, so
the mean it sees is that of the others. A mean outside the clipping range cannot be one: it is
treated as missing, and so is the mean of too few values.

A forecast of step k made h steps ahead sees the live mean of steps up to k - h only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fuels.arrays import Floats
from fuels.errors import FuelsError
from fuels.sharing.sums import MIN_CLIENTS, SumCarrier

NUMBERS = 2  # that a client contributes at each step: its value and 1
ESTIMATED = 3  # steps in a row for which a missing mean is estimated
CLIP = 4.0  # standard deviations of the training part


def contribution(observed: Floats) -> Floats:
    """What clients with normalised values [..., step] contribute, [..., step, 2]: value, count."""
    known = ~np.isnan(observed)
    value = np.where(known, np.clip(observed, -CLIP, CLIP), 0.0)
    return np.stack([value, known.astype(np.float64)], axis=-1)


def identity(ids: Sequence[str], mean: Floats, std: Floats, of: str = "live mean") -> str:
    """Of the sums that clients with these means and standard deviations contribute to.

    Sums of the same identity and time contain the same numbers of these clients, whether they are
    exchanged before training, in a live series, or in another run.
    """
    clients = sorted(zip(ids, mean.tolist(), std.tolist(), strict=True))
    return f"{of} " + hashlib.sha256(json.dumps(clients).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class LiveMean:
    """Sums over the clients, step by step."""

    total: Floats  # [step]; NaN where the sum is not available
    count: Floats  # [step]
    min_clients: int = MIN_CLIENTS  # with a value, or the mean of a step counts as missing

    def others(self, observed: Floats, member: bool = True) -> Floats:
        """The mean of the others [client, step], for clients with values `observed`.

        `member`: whether these clients contributed. A client that did not, such as a newcomer,
        has nothing to subtract.
        """
        steps = len(self.total)
        if observed.shape[1] != steps:
            raise FuelsError(
                f"the live mean has {steps} steps, the clients' values {observed.shape[1]}"
            )
        own = contribution(observed) * float(member)
        count = self.count - own[..., 1]
        enough = self.count >= self.min_clients
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = (self.total - own[..., 0]) / count
            # The tolerance is for rounding: all others may have been clipped.
            usable = enough & (count > 0) & (np.abs(mean) <= CLIP * (1 + 1e-9))
        return np.where(usable, mean, np.nan)


def estimated(mean: Floats, period: int) -> Floats:
    """A live mean [client, step] with short gaps filled by what was known before them.

    A missing mean is that of one period ago, moved as far as the last one was from its own. After
    ESTIMATED steps without a mean it stays missing.
    """
    found, gap = mean.copy(), np.zeros(len(mean))
    for step in np.flatnonzero(np.isnan(mean).any(axis=0)):
        missing = np.isnan(mean[:, step])
        before = np.isnan(mean[:, step - 1]) if step else missing
        gap = np.where(before, gap, 0.0) + missing
        if step <= period:
            continue
        moved = found[:, step - period] + found[:, step - 1] - found[:, step - 1 - period]
        fill = missing & (gap <= ESTIMATED)
        found[:, step] = np.where(fill, np.clip(moved, -CLIP, CLIP), found[:, step])
    return found


def exchange(
    carrier: SumCarrier, observed: Mapping[str, Floats], min_clients: int = MIN_CLIENTS
) -> LiveMean | None:
    """The live mean over the steps of the clients' values [step]; None without a sum."""
    parts = {client: contribution(values) for client, values in observed.items()}
    total = carrier.total("live mean", 0, parts)
    if total is None:
        return None
    return LiveMean(total[:, 0], total[:, 1], min_clients)
