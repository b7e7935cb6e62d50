"""Compiled twins of model/optimiser.py: one pass over parameters, gradients and moments.

These updates are bound by memory, so each number is read and written once. A stage updates one
client; a gradient that the clients share, [1, P], holds the gradient of the client at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from fuels.kernels.checks import check_adam, check_proximal, check_sgd
from fuels.kernels.jit import compiled
from fuels.kernels.simd import LANES, get, load, put, root, store
from fuels.kernels.stages import STAGE, Stage, flag, int_matrix, ints, reals, run


@compiled()
def _moved(p: Any, g: Any, m: Any, v: Any, f: Any) -> Any:
    """New (p, m, v), for registers and single numbers alike; f holds the factors."""
    keep2, take1, take2, size, scale, eps = f
    m = m + (g - m) * take1
    v = v * keep2 + g * g * take2
    return p - m * size / (root(v) * scale + eps), m, v


@compiled(STAGE)
def _adam(table: int, client: int) -> None:
    """Adam on a client, at its own step count, which this advances."""
    param, grad, m, v, size, shared, step, active = ints(table, 0, 8)
    lr, beta1, beta2, eps = reals(table, 8, 4)
    if not flag(active, client):
        return
    counts = int_matrix(step, client, 1, 1)
    count = counts[0, 0] + 1
    counts[0, 0] = count
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
        new = _moved(load(pp, i), load(gg, i), load(mm, i), load(vv, i), factors)
        store(pp, i, new[0])
        store(mm, i, new[1])
        store(vv, i, new[2])
    for i in range(whole, size):
        one = _moved(get(pp, i), get(gg, i), get(mm, i), get(vv, i), factors)
        put(pp, i, one[0])
        put(mm, i, one[1])
        put(vv, i, one[2])


@compiled(STAGE)
def _sgd(table: int, client: int) -> None:
    """SGD with momentum on a client."""
    param, grad, buffer, size, shared, active = ints(table, 0, 6)
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
def _proximal(table: int, client: int) -> None:
    """Adds weight (p - anchor) to a client's gradient; clients may have one anchor each."""
    param, grad, anchor, size, shared, own = ints(table, 0, 6)
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


def adam_stage(
    param: Tensor, gradient: Tensor, m: Tensor, v: Tensor, step: Tensor, active: Tensor,
    lr: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, shared: bool = False,
) -> Stage:  # fmt: skip
    check_adam(param, gradient, m, v, step, active, shared=shared)
    return Stage(
        _adam, param, gradient, m, v, param.shape[1], shared, step, active,
        float(lr), float(beta1), float(beta2), float(eps),
    )  # fmt: skip


def sgd_stage(
    param: Tensor, gradient: Tensor, buffer: Tensor, active: Tensor,
    lr: float, momentum: float = 0.0, shared: bool = False,
) -> Stage:  # fmt: skip
    check_sgd(param, gradient, buffer, active, shared=shared)
    size = param.shape[1]
    return Stage(
        _sgd, param, gradient, buffer, size, shared, active, float(lr), float(momentum)
    )  # fmt: skip


def proximal_stage(
    param: Tensor, gradient: Tensor, anchor: Tensor, weight: float, shared: bool = False
) -> Stage:
    check_proximal(param, gradient, anchor, weight, shared)
    own = len(anchor) > 1
    return Stage(
        _proximal, param, gradient, anchor, param.shape[1], shared, own, float(weight)
    )  # fmt: skip


STAGES: dict[str, Callable[..., Stage]] = {
    "adam": adam_stage,
    "sgd": sgd_stage,
    "proximal": proximal_stage,
}


def adam(param: Tensor, *settings: Any, **named: Any) -> None:
    run([adam_stage(param, *settings, **named)], len(param))


def sgd(param: Tensor, *settings: Any, **named: Any) -> None:
    run([sgd_stage(param, *settings, **named)], len(param))


def proximal(param: Tensor, *settings: Any, **named: Any) -> None:
    run([proximal_stage(param, *settings, **named)], len(param))
