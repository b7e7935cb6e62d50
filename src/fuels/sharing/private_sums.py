"""Sums with Gaussian noise, each recorded in a ledger before anybody sees it.

`PrivateSums` is a `SumCarrier` for one machine: it adds up the clients' contributions and the whole
noise. Between organisations, each site adds its share to its own contribution before it is masked:
`Ledger.release(..., sites=n, colluding=t)` gives variance sigma^2 / (n - t).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from fuels.arrays import Floats
from fuels.errors import FuelsError
from fuels.privacy.ledger import Entry, Ledger, Release
from fuels.privacy.sensitivity import SECONDS, Protected, Unit


@dataclass
class PrivateSums:
    """The releases of one run."""

    ledger: Ledger
    run: str
    noise: Mapping[str, float]  # standard deviations per sensitivity, by name without step ahead
    protected: Protected
    min_clients: int
    sites: tuple[int, int] = (1, 0)  # whose noise is added, and how many of them may collude
    expected: dict[str, Release] = field(default_factory=dict)

    def total(
        self,
        name: str,
        step: int,
        contributions: Mapping[str, Floats],
        about: Mapping[str, Any] | None = None,
    ) -> Floats | None:
        """The noised sum that was announced with `expect`; None with too few clients.

        `about` is kept with it: public facts that what is made of the sum depends on.
        """
        release = self.expected.get(name)
        if release is None or release.first != step:
            raise FuelsError(f"{name}, step {step}: nobody declared how much a unit can change it")
        if len(contributions) < self.min_clients:
            return None
        sites, colluding = self.sites
        entry = self.ledger.release(
            release, contributions.values(), about, sites=sites, colluding=colluding, here=sites
        )
        return entry.values

    def expect(self, release: Release) -> Release:
        """Declare what the next sum of this name releases."""
        self.expected[release.name] = release
        return release

    def known(self, name: str) -> list[Entry]:
        """What this run has released under a name, by time."""
        return self.ledger.find(self.run, name)

    def about(
        self, name: str, span: tuple[int, int], sensitivity: float, shape: tuple[int, ...]
    ) -> Release:
        """A release of the values in a span of seconds since 1970."""
        noise = self.noise[name.partition(",")[0]]
        return Release(self.run, name, *span, sensitivity, noise, shape)

    def part_of_unit(self, release: Release, steps: int, whole: int) -> Release:
        """The same noise for a span with only `steps` of the `whole` steps of a unit.

        The sensitivity given is that of the whole unit, and grows with the root of its steps.
        """
        share = np.sqrt(steps / whole)
        return replace(
            release, sensitivity=release.sensitivity * share, multiplier=release.multiplier / share
        )

    def pieces(self, first: int, last: int) -> list[tuple[int, int]]:
        """A span cut where units begin and end, so that no unit is charged for another one."""
        if first >= last:
            return []
        if self.protected.unit is Unit.CLIENT:
            return [(first, last)]
        length = SECONDS[self.protected.unit]
        inner = -(-first // length) * length, last // length * length
        cuts = sorted({first, last, *(cut for cut in inner if first < cut < last)})
        return list(pairwise(cuts))
