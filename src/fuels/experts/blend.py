"""Several steps ahead: the mixture of all experts, blended with that of the local ones.

There the values that would correct wrong weights arrive late, so a mixture cannot leave shared
experts that fail together, as they do on holidays. Each client therefore gives the mixture with
shared experts a fixed share, the larger the shorter its own history is: WEEK / (WEEK + history).
A forecast can then be worse than the local one by no more than that share of the difference. The
share is at most 1/2, and less for farther steps, down to FAR.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.experts.history import Floats, History
from fuels.experts.mixture import Mixed, Mixture
from fuels.experts.state import State

FAR = 1 / 8  # the largest share, three quarters of a period ahead and further


def shares(history: History, end: int, horizon: int) -> Floats:
    """The share of the mixture with shared experts, [client], by the values before step `end`."""
    known = (~np.isnan(history.observed[:, :end])).sum(axis=1)
    most = max(FAR, (1 - horizon / history.period) / 2)
    result: Floats = np.minimum(history.week / (history.week + known), most)
    return result


class Blend:
    """Two mixtures with fixed shares, used like one `Mixture`."""

    def __init__(
        self, clients: int, names: Sequence[str], shared: Collection[str], delay: int
    ) -> None:
        self.names, self.delay, self.clients = tuple(names), delay, clients
        self.local = [i for i, name in enumerate(names) if name not in shared]
        self.whole = Mixture(clients, names, delay)
        self.alone = Mixture(clients, [names[i] for i in self.local], delay)
        self.share = np.ones(clients)  # of `whole`

    def part(self, rows: slice) -> Blend:
        """As `Mixture.part`."""
        part = copy(self)
        part.whole, part.alone = self.whole.part(rows), self.alone.part(rows)
        part.share = self.share[rows]
        part.clients = len(part.share)
        return part

    @classmethod
    def joined(cls, parts: Sequence[Blend]) -> Blend:
        """As `Mixture.joined`."""
        whole = copy(parts[0])
        whole.whole = Mixture.joined([part.whole for part in parts])
        whole.alone = Mixture.joined([part.alone for part in parts])
        whole.share = np.concatenate([part.share for part in parts])
        whole.clients = len(whole.share)
        return whole

    def count(self, steps: int) -> None:
        """As `Mixture.count`."""
        self.whole.count(steps)
        self.alone.count(steps)

    def run(self, truth: NDArray[Any], forecasts: NDArray[Any]) -> Mixed:
        """As `Mixture.run`; learners and trust are blended as well."""
        one, other = self.whole.run(truth, forecasts), self.alone.run(truth, forecasts[self.local])
        share = self.share[:, None]
        return Mixed(
            self._blended(one.combined, other.combined, share),
            self._weights(one.weights, other.weights),
            self._blended(one.learners, other.learners, share),
            self._blended(one.trust, other.trust, share),
        )

    def next(self, forecasts: NDArray[Any]) -> tuple[Floats, Floats]:
        """As `Mixture.next`."""
        value, weights = self.whole.next(forecasts)
        local, local_weights = self.alone.next(np.asarray(forecasts)[self.local])
        return self._blended(value, local, self.share), self._weights(weights, local_weights)

    def arrays(self, copy: bool = True) -> State:
        """As `Mixture.arrays`."""
        whole = {f"whole-{name}": array for name, array in self.whole.arrays(copy).items()}
        alone = {f"alone-{name}": array for name, array in self.alone.arrays(copy).items()}
        return {**whole, **alone, "share": self.share.copy()}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue from a saved state of the same clients, experts and delay."""
        for part, mixture in (("whole-", self.whole), ("alone-", self.alone)):
            own = {k.removeprefix(part): v for k, v in arrays.items() if k.startswith(part)}
            mixture.load(own)
        self.share = np.array(arrays["share"], dtype=np.float64)

    def _weights(self, whole: Floats, local: Floats) -> Floats:
        """Weights [.., client, expert] of the blend."""
        spread = np.zeros(whole.shape)
        spread[..., self.local] = local
        return self._blended(whole, spread, self.share[:, None])

    def _blended(self, whole: Floats, local: Floats, share: Floats) -> Floats:
        result: Floats = share * whole + (1 - share) * local
        return np.where(np.isnan(local), whole, result)  # no local expert has a forecast
