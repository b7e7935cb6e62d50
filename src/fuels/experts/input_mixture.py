"""The mixture of experts with external inputs, next to that of all other experts.

An input may drive a series, or say nothing about it. Each client therefore mixes the experts
without inputs as if there were none, and a second time its local experts together with those that
use inputs, among them the personal model with its input weights. It moves from the first forecast
towards the second:

    forecast = without + share * (with - without)

The share is the best one in hindsight, between 0 and 1, by least squares with slow forgetting. With
P the sum of the products of difference and error, it is multiplied by 1 - DOUBT var(P) / P^2, or 0:
the less certain the gain, the smaller the share. An input that says nothing thus changes next to
nothing, and where all inputs are missing, the forecast is exactly the one without them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats
from fuels.experts.blend import Blend, Mixtures, blended, mixture_for
from fuels.experts.input_experts import uses_inputs
from fuels.experts.mixture import Mixed, Mixture
from fuels.experts.pool import FittedPool
from fuels.experts.state import COUNT, State, copied
from fuels.kernels.mixture import CLIP_FROM, SLOW
from fuels.kernels.tracking import TINY

DOUBT = 2.0
MOST_ALIKE = 0.98  # largest correlation of successive products
LEAST = 24  # steps before there is a share
# Discounted sums: steps; difference times the error without inputs; their squares; that of the
# product; the product times the one before; and the last product.
LEARNED = 7
CLIP = 3.0  # usual errors; a step with a larger error counts less
BASE, WITH = "without", "with"


class InputMixture(Mixtures):
    """Two mixtures and the share of the second."""

    inside: Mapping[str, Mixture | Blend]

    def __init__(
        self,
        base: Mixture | Blend,
        names: Sequence[str],
        local: Sequence[str],
        using: Sequence[str],
    ) -> None:
        state: State = {
            "learned": np.zeros((base.clients, LEARNED)),
            # The last `delay` steps, not learned yet: difference, forecast without, actual value.
            "pending": np.full((base.clients, base.delay, 3), np.nan),
            COUNT: np.zeros(1),
        }
        more = Mixture(base.clients, [*local, *using], base.delay)
        super().__init__(names, state, {BASE: base, WITH: more})
        self.delay, self.using = base.delay, [self.names.index(name) for name in using]

    @property
    def base(self) -> Mixture | Blend:
        """The mixture of the experts without inputs."""
        return self.inside[BASE]

    @property
    def clients(self) -> int:
        return self.base.clients

    def run(self, truth: NDArray[Any], forecasts: NDArray[Any], details: bool = True) -> Mixed:
        """As `Mixture.run`; learners and trust are blended as well."""
        f, y = np.asarray(forecasts), np.asarray(truth, dtype=np.float64)
        base = self.base.run(y, f[self.places[BASE]], details)
        more = self.inside[WITH].run(y, self._within(f), details)
        difference = more.combined - base.combined
        share = np.empty(difference.shape)
        for k in range(difference.shape[1]):
            entry = self.state["pending"][:, int(self.state[COUNT][0]) % self.delay]
            _learn(self.state["learned"], entry)
            share[:, k] = _share(self.state["learned"], difference[:, k])
            entry[:] = np.stack([difference[:, k], base.combined[:, k], y[:, k]], axis=1)
            self.state[COUNT] += 1
        if not details:
            return Mixed(blended(more.combined, base.combined, share))
        by_step = share.T[:, :, None]
        weights = self.spread(more.weights, WITH), self.spread(base.weights, BASE)
        return Mixed(
            blended(more.combined, base.combined, share),
            blended(*weights, by_step),
            blended(more.learners, base.learners, share),
            blended(more.trust, base.trust, by_step),
        )

    def next(self, forecasts: NDArray[Any]) -> tuple[Floats, Floats]:
        """As `Mixture.next`."""
        f = np.asarray(forecasts)
        base, base_weights = self.base.next(f[self.places[BASE]])
        more, weights = self.inside[WITH].next(self._within(f))
        state = copied(self.state)
        for k in range(self.delay):
            entry = state["pending"][:, (int(state[COUNT][0]) + k) % self.delay]
            _learn(state["learned"], entry)
        share = _share(state["learned"], more - base)
        both = self.spread(weights, WITH), self.spread(base_weights, BASE)
        return blended(more, base, share), blended(*both, share[:, None])

    def _within(self, forecasts: NDArray[Any]) -> NDArray[Any]:
        """The forecasts of the second mixture; none where no linear expert with inputs has one."""
        silent = np.isnan(forecasts[self.using]).all(axis=0)
        return np.where(silent, np.nan, forecasts[self.places[WITH]])


def _share(learned: Floats, difference: Floats) -> Floats:
    """The share of the forecast with inputs, [client]; 0 where there is none."""
    count, products, squares, _, own, lagged, _ = learned.T
    best = best_share(count, products, squares, own, lagged)
    return np.where(np.isnan(difference), 0.0, best)


def best_share(
    count: Floats, products: Floats, squares: Floats, own: Floats, lagged: Floats
) -> Floats:
    """The best share of a difference in hindsight, less as it is less certain, [client].

    From sums over `count` steps: of the products of difference and error, of the squared
    differences, of the squared products, and of each product times the one before.
    """
    steps = np.maximum(count, 1.0)
    mean = products / steps
    variance, covariance = (np.maximum(sum_ / steps - mean**2, 0.0) for sum_ in (own, lagged))
    alike = np.minimum(covariance / (variance + TINY), MOST_ALIKE)
    doubt = steps * variance * (1 + alike) / (1 - alike)  # the variance of the sum of products
    best = products / (squares + TINY) * (1 - DOUBT * doubt / (products**2 + TINY))
    best = np.where((products > 0) & (count >= LEAST), best, 0.0)
    return np.asarray(np.clip(best, 0.0, 1.0))


def _learn(learned: Floats, entry: Floats) -> None:
    """Update what is learned from a past step, if its value is known."""
    difference, without, truth = entry.T
    error = truth - without
    known = ~np.isnan(error) & ~np.isnan(difference)
    before, d, e = learned[known], difference[known], error[known]
    usual = np.full(len(d), np.inf)
    some = (before[:, 0] >= CLIP_FROM) & (before[:, 3] > 0)
    usual[some] = np.sqrt(before[some, 3] / before[some, 0])
    weight = np.minimum(1.0, CLIP * usual / (np.abs(e) + TINY))
    product = weight * d * e
    usual_square = np.clip(e, -CLIP * usual, CLIP * usual) ** 2
    more = [np.ones(len(d)), product, weight * d * d, usual_square, product**2]
    more += [product * before[:, 6]]
    learned[known, :6] = SLOW * before[:, :6] + np.stack(more, axis=1)
    learned[:, 6] = 0.0
    learned[known, 6] = product


def mixture_of(
    pool: FittedPool,
    names: Sequence[str],
    shared: Collection[str],
    saved: Collection[str] | None = None,
) -> Mixture | Blend | InputMixture:
    """The mixture of these experts: of a pool, of which some are shared, and external ones.

    `saved` are the names of a saved state.
    """
    using = pool.using_inputs
    if not using:
        return mixture_for(pool.clients, names, shared, pool.horizon, saved)
    others = [name for name in names if not uses_inputs(name)]
    state = None if saved is None else [n.removeprefix(f"{BASE}-") for n in saved]
    base = mixture_for(pool.clients, others, shared, pool.horizon, state)
    local = [name for name in names if name not in shared and name not in using]
    return InputMixture(base, names, local, using)


def base_of(mixture: Mixture | Blend | InputMixture) -> Mixture | Blend:
    """The mixture of the experts without inputs."""
    return mixture.base if isinstance(mixture, InputMixture) else mixture
