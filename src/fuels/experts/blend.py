"""The mixture with shared experts, limited by that of the local ones.

Shared experts can fail together: after a spike that only one client has, on holidays, or when the
live mean is wrong. Each client therefore also mixes its local experts alone, and moves from their
forecast towards the shared one:

    forecast = local + share * difference,   difference = shared - local, confined

- The shared forecast comes from the mixture of all experts; one step ahead, ONLY of it comes from a
  mixture of the shared experts alone, whose weights know more at the start than they can learn.
- The difference is confined to REACH usual errors of the local forecast. This is what protects a
  client with a few spikes: pooled coefficients would follow each of them.
- The share is the client's best one in hindsight, by least squares with slow forgetting, drawn
  towards its first value as if by PULL average steps. One step ahead it starts with NEAR and can
  become anything from 0 to 1. Several steps ahead, actual values arrive too late to learn when to
  trust shared experts: the first value falls with the client's own history and with the steps
  ahead, and is also the largest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats
from fuels.experts.history import History
from fuels.experts.mixture import Mixed, Mixture
from fuels.experts.state import COUNT, Learner, State, copied
from fuels.kernels import blend as kernels
from fuels.kernels.mixture import CLIP_FROM, SLOW
from fuels.kernels.tracking import TINY

ONLY = 0.3  # one step ahead: of the mixture of shared experts alone
NEAR = 0.8  # the first share one step ahead
AHEAD = 0.25  # the largest share several steps ahead, less for farther steps,
FAR = 0.075  # down to this one
REACH = 4.0  # usual errors of the local forecast
CLIP = 3.0  # a larger error counts as this many usual errors
PULL = 336.0  # average steps that the first share weighs


def shares(history: History, end: int, horizon: int) -> Floats:
    """The first share of the shared forecast, [client], by the values before step `end`."""
    known = (~np.isnan(history.observed[:, :end])).sum(axis=1)
    if horizon == 1:
        return np.full(len(known), NEAR)
    most = max(FAR, (1 - horizon / history.period) * AHEAD)
    result: Floats = np.minimum(history.week / (history.week + known), most)
    return result


def mixture_for(
    clients: int,
    names: Sequence[str],
    shared: Collection[str],
    delay: int,
    saved: Collection[str] | None = None,
) -> Mixture | Blend:
    """The mixture of experts of which some are shared; `saved` are the names of a saved state.

    Earlier versions had one mixture one step ahead, and a fixed share several steps ahead.
    """
    if not shared or (saved is not None and not any(n.startswith("alone-") for n in saved)):
        return Mixture(clients, names, delay)
    return Blend(clients, names, shared, delay, fixed=saved is not None and "learned" not in saved)


class Mixtures(Learner):
    """Mixtures of some experts each, by name, used like one `Mixture` of all of them."""

    def __init__(
        self, names: Sequence[str], state: State, inside: Mapping[str, Mixture | Blend]
    ) -> None:
        super().__init__(state, inside)
        self.names = tuple(names)
        place = {name: i for i, name in enumerate(names)}
        self.places = {
            part: [place[name] for name in mixture.names] for part, mixture in inside.items()
        }

    def spread(self, weights: Floats, part: str) -> Floats:
        """The weights of a mixture [.., client, expert] among those of all experts."""
        result = np.zeros((*weights.shape[:-1], len(self.names)))
        result[..., self.places[part]] = weights
        return result


class Blend(Mixtures):
    """Mixtures of all, of the local and of the shared experts."""

    inside: Mapping[str, Mixture]

    def __init__(
        self,
        clients: int,
        names: Sequence[str],
        shared: Collection[str],
        delay: int,
        fixed: bool = False,
    ) -> None:
        parts = {"whole": list(names), "alone": [name for name in names if name not in shared]}
        if delay == 1:
            parts["only"] = [name for name in names if name in shared]
        state: State = {"share": np.ones(clients)}  # the first one
        if not fixed:
            # Discounted: steps; difference times the local error, its square; squared local error.
            state["learned"] = np.zeros((clients, 4))
            # The last `delay` steps, not learned yet: difference, local forecast, actual value.
            state["pending"] = np.full((clients, delay, 3), np.nan)
            state[COUNT] = np.zeros(1)
        super().__init__(
            names, state, {part: Mixture(clients, own, delay) for part, own in parts.items()}
        )
        self.delay, self.fixed = delay, fixed

    @property
    def clients(self) -> int:
        return len(self.state["share"])

    def run(self, truth: NDArray[Any], forecasts: NDArray[Any], details: bool = True) -> Mixed:
        """As `Mixture.run`; learners and trust are blended as well."""
        f, y = np.asarray(forecasts), np.asarray(truth, dtype=np.float64)
        found = {
            part: mixture.run(y, f[self.places[part]], details)
            for part, mixture in self.inside.items()
        }
        whole, alone = found["whole"], found["alone"]
        said = {part: mixed.combined for part, mixed in found.items()}
        value, own = self._shared(said)
        share = self._shares(y, value, alone.combined)
        if not details:
            return Mixed(blended(value, alone.combined, share))
        weights = self._shared_weights({n: m.weights for n, m in found.items()}, own)
        by_step = share.T[:, :, None]
        return Mixed(
            blended(value, alone.combined, share),
            blended(weights, self.spread(alone.weights, "alone"), by_step),
            blended(whole.learners, alone.learners, share),
            blended(whole.trust, alone.trust, by_step),
        )

    def next(self, forecasts: NDArray[Any]) -> tuple[Floats, Floats]:
        """As `Mixture.next`."""
        f = np.asarray(forecasts)
        found = {part: one.next(f[self.places[part]]) for part, one in self.inside.items()}
        value, own = self._shared({n: v[:, None] for n, (v, _) in found.items()})
        weights = self._shared_weights({n: w[None] for n, (_, w) in found.items()}, own)
        local, local_weights = found["alone"]
        unknown = np.full(value.shape, np.nan)
        share = self._shares(unknown, value, local[:, None], ahead=True)[:, 0]
        spread = self.spread(local_weights, "alone")
        return blended(value[:, 0], local, share), blended(weights[0], spread, share[:, None])

    def _shared(self, found: Mapping[str, Floats]) -> tuple[Floats, Floats | None]:
        """The shared forecast [client, step], and the share of the shared experts alone in it."""
        value = found["whole"]
        if "only" not in found:
            return value, None
        only = found["only"]
        share = np.where(np.isnan(only), 0.0, ONLY)  # all of them may abstain
        return blended(only, value, share), share

    def _shared_weights(self, found: Mapping[str, Floats], share: Floats | None) -> Floats:
        """The weights of the shared forecast, [step, client, expert]."""
        if share is None:
            return found["whole"]
        return blended(self.spread(found["only"], "only"), found["whole"], share.T[:, :, None])

    def _shares(
        self, truth: Floats, shared: Floats, local: Floats, *, ahead: bool = False
    ) -> Floats:
        """The share of each shared forecast [client, step], before it is confined; learns them.

        `ahead`: of one step whose value is not known; changes nothing.
        """
        first = self.state["share"]
        if self.fixed:
            return np.where(np.isnan(shared - local), 1.0, first[:, None])
        most = np.ones(self.clients) if self.delay == 1 else first  # the largest shares
        found, state = np.empty(shared.shape), copied(self.state) if ahead else self.state
        kernels.run(
            np.ascontiguousarray(truth),
            np.ascontiguousarray(shared),
            np.ascontiguousarray(local),
            first,
            most,
            int(state[COUNT][0]),
            tuple(kernels.Constants(REACH, CLIP, PULL, CLIP_FROM, SLOW, TINY)),
            state["learned"],
            state["pending"],
            found,
            ahead,
        )
        if not ahead:
            self.state[COUNT] += shared.shape[1]
        return found


def blended(one: Floats, other: Floats, share: Floats) -> Floats:
    """`share` of the first; what has no share may be missing."""
    first = np.where(share > 0, share * one, 0.0)
    return first + np.where(share < 1, (1 - share) * other, 0)
