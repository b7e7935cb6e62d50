"""The one place where values of several clients are added up.

Shared statistics and the live mean need nothing but sums over clients. They ask a `SumCarrier` for
"the sum of this over these clients" and do not know how it is computed: in this process
(`LocalSums`), or between organisations that do not show each other their contributions
(experts/run_sums.py). The mixtures multiply weights at every step, so that a difference in the last
bit of a sum can change the fifth digit of a forecast; both therefore add up the same integers.

`LocalSums` can add Gaussian noise to each number of a sum, to show what noise costs. It is noise,
not a privacy guarantee: nothing tracks how much the sums of many steps say about a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fuels.arrays import Floats
from fuels.config import Sharing
from fuels.errors import FuelsError
from fuels.randomness import SUMS, generator
from fuels.sharing.fixed_point import from_words, to_words

MIN_CLIENTS = Sharing.min_clients  # a sum over fewer clients says too much about each of them


class SumCarrier(Protocol):
    """Adds up the arrays of several clients."""

    def total(self, name: str, step: int, contributions: Mapping[str, Floats]) -> Floats | None:
        """The sum of the contributions, by client id; None if the sum is not available.

        `name` says what is added up and `step` the time it belongs to; together they identify the
        sum. All contributions have the same shape and finite entries.
        """
        ...


@dataclass
class LocalSums:
    """Adds up in this process and counts the numbers that a client would send and receive."""

    min_clients: int = MIN_CLIENTS
    noise: float = 0.0  # standard deviation of the noise on each number of a sum
    seed: int = 0  # of the noise
    sent: dict[str, int] = field(default_factory=dict)  # numbers one client sends, by name
    received: dict[str, int] = field(default_factory=dict)

    def total(self, name: str, step: int, contributions: Mapping[str, Floats]) -> Floats | None:
        if len(contributions) < self.min_clients:
            return None
        arrays = list(contributions.values())
        for client, array in contributions.items():
            if array.shape != arrays[0].shape or not np.isfinite(array).all():
                raise FuelsError(
                    f"{name}, step {step}: the contribution of {client} has shape {array.shape}"
                    f" and {np.count_nonzero(~np.isfinite(array))} entries that are not finite;"
                    f" {arrays[0].shape} and none are required"
                )
        # As between organisations: the same sum however clients are divided, to the last bit.
        result = from_words(to_words(arrays, 1, f"{name}, step {step}"))
        if self.noise:
            # Drawn step by step: what more steps add does not change the noise of the first ones.
            rng = generator(self.seed, SUMS, name, step)
            result = result + rng.normal(0.0, self.noise, result.shape)
        self.sent[name] = self.sent.get(name, 0) + result.size
        self.received[name] = self.received.get(name, 0) + result.size
        return result
