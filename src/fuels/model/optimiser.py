"""Adam and SGD for a group of stacked clients, each client on its own clock.

The update of one client equals torch.optim's; an inactive client is left as it is and its step
count does not advance, so a client that sat out a batch has the same state as if the batch had
never been. Everything is updated in place.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def adam_step(
    param: Tensor,
    grad: Tensor,
    m: Tensor,
    v: Tensor,
    step: Tensor,
    active: Tensor,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
) -> None:
    """One Adam step of param [G, P] with moments m, v [G, P], step counts [G], active [G] bool."""
    step += active.to(step.dtype)
    plain_adam_step(param, grad, m, v, step, active, lr, beta1, beta2, eps)


def plain_adam_step(
    param: Tensor,
    grad: Tensor,
    m: Tensor,
    v: Tensor,
    step: Tensor,
    active: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """The update in torch operators; step already counts this step."""
    on = active.unsqueeze(1)
    count = step.to(torch.float64).clamp(min=1.0)  # an inactive client may still be at step 0
    correction1 = (1.0 - beta1**count).unsqueeze(1)
    correction2 = (1.0 - beta2**count).sqrt().unsqueeze(1).to(param.dtype)
    size = (lr / correction1).to(param.dtype)
    torch.where(on, m + (1.0 - beta1) * (grad - m), m, out=m)
    torch.where(on, beta2 * v + (1.0 - beta2) * grad * grad, v, out=v)
    torch.where(on, param - size * m / (v.sqrt() / correction2 + eps), param, out=param)


@torch.no_grad()
def sgd_step(
    param: Tensor, grad: Tensor, buffer: Tensor, active: Tensor, lr: float, momentum: float = 0.0
) -> None:
    """One SGD step of param [G, P]; buffer [G, P] holds the momentum and starts at zero."""
    on = active.unsqueeze(1)
    torch.where(on, momentum * buffer + grad, buffer, out=buffer)
    torch.where(on, param - lr * buffer, param, out=param)
