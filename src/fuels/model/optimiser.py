"""Adam and SGD for stacked clients, each client with its own step count.

One client's update equals torch.optim's. An inactive client keeps its parameters, its state and its
step count, as if the batch had not been there. Everything is updated in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuels.kernels.checks import check_adam, check_proximal, check_sgd
from fuels.kernels.dispatch import has_twin

_KERNELS = "fuels.kernels.optimiser"


@dataclass(frozen=True)
class Update:
    """What to do with the gradient of a part; calling it does it.

    `rule` is one of the functions below, or any other of (param, gradient, *settings).
    """

    rule: Callable[..., None]
    param: Tensor  # [client, P]
    settings: tuple[Any, ...] = ()  # the rule's further arguments

    def __call__(self, gradient: Tensor) -> None:
        self.rule(self.param, gradient, *self.settings)


@has_twin(_KERNELS, check_adam)
@torch.no_grad()
def adam(
    param: Tensor,
    gradient: Tensor,
    m: Tensor,
    v: Tensor,
    step: Tensor,
    active: Tensor,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
) -> None:
    """One Adam step of param [G, P]: moments m, v [G, P], step [G] int64, active [G] bool."""
    step += active
    on = active.unsqueeze(1)
    count = step.to(torch.float64).clamp(min=1.0)  # an inactive client may still be at step 0
    size = (lr / (1.0 - beta1**count)).to(param.dtype).unsqueeze(1)
    scale = (1.0 - beta2**count).rsqrt().to(param.dtype).unsqueeze(1)
    m.copy_(torch.where(on, m + (1.0 - beta1) * (gradient - m), m))
    v.copy_(torch.where(on, beta2 * v + (1.0 - beta2) * gradient * gradient, v))
    param.copy_(torch.where(on, param - size * m / (v.sqrt() * scale + eps), param))


@has_twin(_KERNELS, check_sgd)
@torch.no_grad()
def sgd(
    param: Tensor,
    gradient: Tensor,
    buffer: Tensor,
    active: Tensor,
    lr: float,
    momentum: float = 0.0,
) -> None:
    """One SGD step of param [G, P]; buffer [G, P] holds the momentum and starts at zero."""
    on = active.unsqueeze(1)
    buffer.copy_(torch.where(on, momentum * buffer + gradient, buffer))
    param.copy_(torch.where(on, param - lr * buffer, param))


@has_twin(_KERNELS, check_proximal)
@torch.no_grad()
def proximal(param: Tensor, gradient: Tensor, anchor: Tensor, weight: float) -> None:
    """Add the gradient of (weight / 2) ||param - anchor||^2; anchor is [G, P] or [1, P]."""
    gradient.add_(param - anchor, alpha=weight)
