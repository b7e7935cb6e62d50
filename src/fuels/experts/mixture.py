"""Prediction with expert advice: a mixture per client that learns as values arrive.

    mixture = Mixture(clients=100, names=pool.names(), delay=1)
    mixed = mixture.run(truth, forecasts)      # steps whose values are known
    value, weights = mixture.next(forecasts)   # a future step; changes nothing

The weights for a target h steps ahead depend on errors up to h steps before it: `delay` is h, and
each horizon has its own mixture. `state` holds what is learned; `arrays` and `load` save and
restore it. docs/evidence/choices.md says why
these constants, and on which days they were chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats
from fuels.errors import FuelsError
from fuels.experts.state import COUNT, Learner, State, copied
from fuels.kernels.mixture import AHEAD, LEARNERS, Constants, first_learner_weights, run


def _nothing() -> Floats:
    return np.empty((0, 0, 0))


@dataclass(frozen=True)
class Mixed:
    """The combined forecasts of some steps."""

    combined: Floats  # [client, step]; NaN where every expert abstained
    # Details, empty if they were not asked for: the weights [step, client, expert]; of the three
    # learners, their forecasts [learner, client, step] and weights [step, client, learner].
    weights: Floats = field(default_factory=_nothing)
    learners: Floats = field(default_factory=_nothing)
    trust: Floats = field(default_factory=_nothing)


LEARNER_NAMES = ("steady (BOA)", "switching (fixed share)", "tracking (least squares)")


class Mixture(Learner):
    """The weights of every client over the experts, and the state to update them."""

    def __init__(
        self, clients: int, names: Sequence[str], delay: int = 1, constants: Constants | None = None
    ) -> None:
        if clients < 1 or not names or delay < 1:
            raise FuelsError(
                f"a mixture needs clients, experts and a delay of at least 1 step, not {clients},"
                f" {len(names)} and {delay}"
            )
        self.names, self.delay = tuple(names), delay
        chosen = constants or (Constants() if delay == 1 else AHEAD)
        self.constants = tuple(chosen)
        experts = len(self.names)
        state: State = {
            "weights": np.full((clients, LEARNERS, experts), 1.0 / experts),
            "trust": np.tile(first_learner_weights(chosen.prior), (clients, 1)),
            "steady": np.zeros((clients, 3, experts)),  # regret, sum of squares, peak
            "switching": np.zeros((clients, 2)),  # sum of squared errors, count
            "moments": np.zeros((clients, experts, experts)),  # of the tracking learner
            "count": np.zeros((clients, 1)),  # discounted steps behind the moments
            "top": np.zeros((clients, 3, LEARNERS)),  # regret, sum of squares, peak
            "scale": np.zeros((clients, 2)),  # squares of typical errors, count
            "echo": np.zeros((clients, experts)),  # gain from limiting each expert
            # The last `delay` steps, not learned yet; a ring buffer.
            "queue": np.full((clients, delay, 2 * experts + LEARNERS + 3), np.nan),
            COUNT: np.zeros(1),
        }
        super().__init__(state)

    @property
    def clients(self) -> int:
        return len(self.state["trust"])

    def run(self, truth: NDArray[Any], forecasts: NDArray[Any], details: bool = True) -> Mixed:
        """Combine and learn, step by step.

        `truth` is [client, step], NaN where it is missing (nothing is learned there); `forecasts`
        is [expert, client, step], NaN where an expert abstains. Without `details`, only the
        combined forecasts are kept, which takes less time and memory.
        """
        f = self._by_client(forecasts)  # [client, step, expert]
        y = np.ascontiguousarray(truth, dtype=np.float64)
        if y.shape != f.shape[:2]:
            raise FuelsError(f"truth of shape {y.shape} does not fit forecasts {forecasts.shape}")
        combined, weights, learners, trust = self._run(y, f, self.state, details)
        self.count(f.shape[1])
        if not details:
            return Mixed(combined)
        return Mixed(
            combined,
            weights.transpose(1, 0, 2),
            learners.transpose(2, 0, 1),
            trust.transpose(1, 0, 2),
        )

    def next(self, forecasts: NDArray[Any]) -> tuple[Floats, Floats]:
        """Combine forecasts [expert, client] made now, `delay` steps ahead of their target.

        Uses all values passed so far. Returns [client] and the weights [client, expert].
        """
        f = self._by_client(np.asarray(forecasts)[:, :, None])
        unknown = np.full(f.shape[:2], np.nan)
        combined, weights, _, _ = self._run(unknown, f, copied(self.state), ahead=True)
        return combined[:, 0], weights[:, 0]

    def _run(
        self, y: Floats, f: Floats, state: State, details: bool = True, ahead: bool = False
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """As `Mixed`, the client first; only the last step of the details, if they are not kept."""
        clients, steps, experts = f.shape
        kept = steps if details else min(steps, 1)
        out = np.empty((clients, steps)), np.empty((clients, kept, experts))
        said = np.empty((clients, kept, LEARNERS)), np.empty((clients, kept, LEARNERS))
        run(y, f, self.delay, self.constants, tuple(state.values()), *out, *said, ahead)
        return *out, *said

    def _by_client(self, forecasts: NDArray[Any]) -> Floats:
        f = np.asarray(forecasts, dtype=np.float64)
        if f.ndim != 3 or f.shape[:2] != (len(self.names), self.clients):
            raise FuelsError(
                f"forecasts of shape {f.shape} do not fit {len(self.names)} experts and"
                f" {self.clients} clients"
            )
        return np.ascontiguousarray(f.transpose(1, 2, 0))
