"""Compiled kernels of the optimisers: one pass over parameters, gradients and moments.

These updates are bound by memory, so each number is read and written once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fuels.kernels.jit import compiled
from fuels.kernels.simd import LANES, get, load, put, root, store
from fuels.kernels.stage_tables import STAGE, flag, reals, wholes


@compiled()
def _adam(p: Any, g: Any, m: Any, v: Any, f: Any) -> Any:
    """New (p, m, v), for registers and single numbers alike; f holds the factors."""
    keep2, take1, take2, size, scale, eps = f
    m = m + (g - m) * take1
    v = v * keep2 + g * g * take2
    return p - m * size / (root(v) * scale + eps), m, v


@compiled(STAGE)
def adam(table: int, client: int) -> None:
    """Adam on a client that is active, at its own step count, which already counts this step.

    The gradient has room for one client, who is the one at hand, if it is shared.
    """
    param, grad, m, v, size, shared, step, active = wholes(table, 0, 8)
    lr, beta1, beta2, eps = reals(table, 8, 4)
    if not flag(active, client):
        return
    count = wholes(step + 8 * client, 0, 1)[0]
    factors = (
        np.float32(beta2),
        np.float32(1.0 - beta1),
        np.float32(1.0 - beta2),
        np.float32(lr / (1.0 - beta1**count)),
        np.float32(1.0 / np.sqrt(1.0 - beta2**count)),
        np.float32(eps),
    )
    row = 4 * client * size
    pp, mm, vv = param + row, m + row, v + row
    gg = grad if shared else grad + row
    whole = size - size % LANES
    for i in range(0, whole, LANES):
        new = _adam(load(pp, i), load(gg, i), load(mm, i), load(vv, i), factors)
        store(pp, i, new[0])
        store(mm, i, new[1])
        store(vv, i, new[2])
    for i in range(whole, size):
        one = _adam(get(pp, i), get(gg, i), get(mm, i), get(vv, i), factors)
        put(pp, i, one[0])
        put(mm, i, one[1])
        put(vv, i, one[2])


@compiled(STAGE)
def sgd(table: int, client: int) -> None:
    """SGD with momentum on a client that is active; the gradient may be shared as above."""
    param, grad, buffer, size, shared, active = wholes(table, 0, 6)
    lr, momentum = reals(table, 6, 2)
    if not flag(active, client):
        return
    rate, hold = np.float32(lr), np.float32(momentum)
    row = 4 * client * size
    pp, bb, gg = param + row, buffer + row, grad if shared else grad + row
    whole = size - size % LANES
    for i in range(0, whole, LANES):
        kept = load(bb, i) * hold + load(gg, i)
        store(bb, i, kept)
        store(pp, i, load(pp, i) - kept * rate)
    for i in range(whole, size):
        one = get(bb, i) * hold + get(gg, i)
        put(bb, i, one)
        put(pp, i, get(pp, i) - one * rate)


@compiled(STAGE)
def pull(table: int, client: int) -> None:
    """Adds weight (p - anchor) to a client's gradient; the anchor is its own or everybody's."""
    param, grad, anchor, size, shared, own = wholes(table, 0, 6)
    weight = np.float32(reals(table, 6, 1)[0])
    row = 4 * client * size
    pp, gg = param + row, grad if shared else grad + row
    if own:
        anchor += row
    whole = size - size % LANES
    for i in range(0, whole, LANES):
        store(gg, i, load(gg, i) + (load(pp, i) - load(anchor, i)) * weight)
    for i in range(whole, size):
        put(gg, i, get(gg, i) + (get(pp, i) - get(anchor, i)) * weight)
