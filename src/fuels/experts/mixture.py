"""Prediction with expert advice: each client's own mixture, learning as truth arrives.

    mixture = Mixture(clients=100, names=pool.names, delay=1)
    past = mixture.run(truth, forecasts)       # steps whose truth is known
    value, weights = mixture.next(forecasts)   # the step ahead; changes nothing

A target h steps ahead is combined with weights that know errors up to h steps before it and no
later: `delay` is h, and there is one mixture per horizon. What is learned stays in `state`, is
saved with `arrays` and comes back with `load`. docs/forecasts.md says why these rules, and on
which days they were chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.experts.mixture_kernel import (
    LEARNERS,
    STEADY,
    SWITCHING,
    TRACKING,
    Floats,
    awake_weights,
    best_lately,
    boa,
    clipped,
    fixed_share,
    ml_poly,
)
from fuels.experts.state import State, copied, restored


@dataclass(frozen=True)
class Mixed:
    """What came out of a stretch of steps."""

    combined: Floats  # [client, step]; NaN where every expert slept
    weights: Floats  # [step, client, expert]: who was trusted when
    learners: Floats  # [learner, client, step]: what each of the three learners would have said
    trust: Floats  # [step, client, learner]: how they were mixed


LEARNER_NAMES = ("steady (BOA)", "switching (fixed share)", "tracking (least squares)")


class Mixture:
    """Weights of every client over the experts, and all that is needed to renew them."""

    def __init__(self, clients: int, names: Sequence[str], delay: int = 1) -> None:
        if clients < 1 or not names or delay < 1:
            raise FuelsError(
                f"a mixture needs clients, experts and a delay of at least 1 step, not {clients},"
                f" {len(names)} and {delay}"
            )
        self.names, self.delay = tuple(names), delay
        experts = len(self.names)
        self.state: State = {
            "weights": np.full((clients, LEARNERS, experts), 1.0 / experts),
            "trust": np.full((clients, LEARNERS), 1.0 / LEARNERS),
            "steady": np.zeros((clients, 3, experts)),  # regret, sum of squares, peak
            "switching": np.zeros((clients, 2)),  # sum of squared errors, count
            "moments": np.zeros((clients, experts, experts)),  # of the tracking learner
            "count": np.zeros((clients, 1)),  # discounted steps behind the moments
            "top": np.zeros((clients, 3, LEARNERS)),  # regret, sum of squares, peak
            "scale": np.zeros((clients, 2)),  # squares of usual errors, count
            # The last `delay` steps, which are not learned yet; slots are used in a circle.
            "queue": np.full((clients, delay, experts + LEARNERS + 2), np.nan),
            "steps": np.zeros(1),  # steps seen so far
        }

    @property
    def clients(self) -> int:
        return len(self.state["trust"])

    def run(self, truth: NDArray[Any], forecasts: NDArray[Any]) -> Mixed:
        """Combine and learn, step by step.

        `truth` is [client, step] with NaN where it is missing (nothing is learned there),
        `forecasts` is [expert, client, step] with NaN where an expert sleeps.
        """
        f = self._by_client(forecasts)  # [client, step, expert]
        y = np.ascontiguousarray(truth, dtype=np.float64)
        if y.shape != f.shape[:2]:
            raise FuelsError(f"truth of shape {y.shape} does not fit forecasts {forecasts.shape}")
        clients, steps, experts = f.shape
        combined = np.empty((clients, steps))
        weights = np.empty((clients, steps, experts))
        learners = np.empty((clients, steps, LEARNERS))
        trust = np.empty((clients, steps, LEARNERS))
        _run(y, f, self.delay, tuple(self.state.values()), combined, weights, learners, trust)
        self.state["steps"] += steps
        return Mixed(
            combined,
            weights.transpose(1, 0, 2),
            learners.transpose(2, 0, 1),
            trust.transpose(1, 0, 2),
        )

    def next(self, forecasts: NDArray[Any]) -> tuple[Floats, Floats]:
        """Combine forecasts [expert, client] made now, `delay` steps ahead of their target.

        All truth given so far counts. Returns [client] and the weights [client, expert].
        """
        f = self._by_client(np.asarray(forecasts)[:, :, None])
        combined = np.empty(self.clients)
        weights = np.empty((self.clients, f.shape[2]))
        scratch = tuple(copied(self.state).values())
        _next(np.ascontiguousarray(f[:, 0]), self.delay, scratch, combined, weights)
        return combined, weights

    def arrays(self) -> State:
        """The state, to be saved."""
        return copied(self.state)

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a saved state of the same clients, experts and delay."""
        self.state = restored(self.state, arrays, "mixture")

    def _by_client(self, forecasts: NDArray[Any]) -> Floats:
        f = np.asarray(forecasts, dtype=np.float64)
        if f.ndim != 3 or f.shape[:2] != (len(self.names), self.clients):
            raise FuelsError(
                f"forecasts of shape {f.shape} do not fit {len(self.names)} experts and"
                f" {self.clients} clients"
            )
        return np.ascontiguousarray(f.transpose(1, 2, 0))


# The state in the order of Mixture.state: compiled code takes it as a tuple.
Parts = tuple[Floats, ...]


@njit(cache=True, nogil=True)
def _learn(entry: Floats, c: int, parts: Parts) -> None:
    """Renew the state of client c by one past step, if its truth is known.

    The entry holds what the experts, the learners and the mixture said, and the truth.
    """
    weights, trust, steady, switching, moments, count, top, scale, _, _ = parts
    experts = weights.shape[2]
    forecasts = entry[:experts]
    said = entry[experts : experts + LEARNERS]
    mixed, truth = entry[-2], entry[-1]
    if np.isnan(truth) or np.isnan(mixed):
        return
    tame = clipped(forecasts, truth, scale[c])
    boa(forecasts, said[STEADY], truth, steady[c], weights[c, STEADY])
    fixed_share(forecasts, said[SWITCHING], tame, switching[c], weights[c, SWITCHING])
    best_lately(forecasts, said[TRACKING], tame, moments[c], count[c], weights[c, TRACKING])
    ml_poly(said, mixed, truth, top[c], trust[c])


@njit(cache=True, nogil=True)
def _combine(
    forecasts: Floats, weights: Floats, trust: Floats, entry: Floats, mixed_weights: Floats
) -> None:
    """What one client's learners and mixture say, in `entry`; the weights of the mixture."""
    experts = weights.shape[1]
    own = np.empty(experts)
    mixed_weights[:] = 0.0
    entry[:experts] = forecasts
    mixed = 0.0
    for learner in range(LEARNERS):
        said = awake_weights(weights[learner], forecasts, own)  # NaN if every expert sleeps
        entry[experts + learner] = said
        mixed += trust[learner] * said
        for i in range(experts):
            mixed_weights[i] += trust[learner] * own[i]
    entry[-2] = mixed


@njit(cache=True, nogil=True)
def _run(
    truth: Floats,
    forecasts: Floats,
    delay: int,
    parts: Parts,
    out: Floats,
    out_weights: Floats,
    out_learners: Floats,
    out_trust: Floats,
) -> None:
    """All clients over all steps; a step is learned just before the forecast `delay` later."""
    weights, trust, _, _, _, _, _, _, queue, steps = parts
    experts = weights.shape[2]
    for c in range(len(truth)):
        for k in range(truth.shape[1]):
            entry = queue[c, (int(steps[0]) + k) % delay]  # holds step k - delay
            _learn(entry, c, parts)
            _combine(forecasts[c, k], weights[c], trust[c], entry, out_weights[c, k])
            entry[-1] = truth[c, k]
            out[c, k] = entry[-2]
            out_learners[c, k] = entry[experts : experts + LEARNERS]
            out_trust[c, k] = trust[c]


@njit(cache=True, nogil=True)
def _next(forecasts: Floats, delay: int, parts: Parts, out: Floats, out_weights: Floats) -> None:
    """Learn all that waits, oldest first, then combine one more step; the state is a copy."""
    weights, trust, _, _, _, _, _, _, queue, steps = parts
    for c in range(len(forecasts)):
        for k in range(delay):
            _learn(queue[c, (int(steps[0]) + k) % delay], c, parts)
        entry = queue[c, int(steps[0]) % delay]
        _combine(forecasts[c], weights[c], trust[c], entry, out_weights[c])
        out[c] = entry[-2]
