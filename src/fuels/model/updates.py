"""Compiled kernels of the optimisers: one pass over parameters, gradients and moments.

These updates are bound by memory, so each number is read and written once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import boolean, float32, float64, int64, void

from fuels.compiling import compiled
from fuels.model.lanes import LANES, address, get, load, put, root, store

_MATRIX = float32[:, ::1]


@compiled()
def _adam(p: Any, g: Any, m: Any, v: Any, f: Any) -> Any:
    """New (p, m, v), for registers and single numbers alike; f holds the factors."""
    keep2, take1, take2, size, scale, eps = f
    m = m + (g - m) * take1
    v = v * keep2 + g * g * take2
    return p - m * size / (root(v) * scale + eps), m, v


@compiled(
    void(
        _MATRIX, _MATRIX, _MATRIX, _MATRIX, int64[::1], boolean[::1],
        float64, float64, float64, float64,
    )
)  # fmt: skip
def adam(
    param: np.ndarray,
    grad: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    step: np.ndarray,
    active: np.ndarray,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """Adam on every active client, at its own step count (which already counts this step)."""
    clients, size = param.shape
    whole = size - size % LANES
    for c in range(clients):
        if not active[c]:
            continue
        factors = (
            np.float32(beta2),
            np.float32(1.0 - beta1),
            np.float32(1.0 - beta2),
            np.float32(lr / (1.0 - beta1 ** step[c])),
            np.float32(1.0 / np.sqrt(1.0 - beta2 ** step[c])),
            np.float32(eps),
        )
        row = 4 * c * size
        pp, gg, mm, vv = address(param), address(grad), address(m), address(v)
        pp, gg, mm, vv = pp + row, gg + row, mm + row, vv + row
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


@compiled(void(_MATRIX, _MATRIX, _MATRIX, boolean[::1], float64, float64))
def sgd(
    param: np.ndarray,
    grad: np.ndarray,
    buffer: np.ndarray,
    active: np.ndarray,
    lr: float,
    momentum: float,
) -> None:
    """SGD with momentum on every active client."""
    clients, size = param.shape
    rate, hold = np.float32(lr), np.float32(momentum)
    for c in range(clients):
        if not active[c]:
            continue
        for i in range(size):
            buffer[c, i] = buffer[c, i] * hold + grad[c, i]
            param[c, i] -= rate * buffer[c, i]
