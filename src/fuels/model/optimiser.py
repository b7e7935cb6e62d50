"""Adam and SGD for a group of stacked clients, each client on its own clock.

The update of one client equals torch.optim's; an inactive client is left as it is and its step
count does not advance, so a client that sat out a batch has the same state as if the batch had
never been. Everything is updated in place, by a compiled kernel where there is one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fuels.errors import FuelsError
from fuels.model.backend import kernels

_KERNELS = "fuels.model.updates"


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
    """One Adam step of param [G, P]: moments m, v [G, P], step [G] int64, active [G] bool."""
    _check("Adam", param, (grad, m, v), active)
    if step.shape != active.shape or step.dtype != torch.int64:
        raise FuelsError(
            f"Adam: step counts of shape {tuple(step.shape)} and type {step.dtype} do not fit; "
            f"one int64 for each of the {param.shape[0]} clients is needed"
        )
    step += active
    compiled = kernels(_KERNELS, param, grad, m, v)
    if compiled is None:
        _plain_adam(param, grad, m, v, step, active, lr, beta1, beta2, eps)
        return
    arrays = [t.detach().numpy() for t in (param, grad.contiguous(), m, v, step, active)]
    compiled.adam(*arrays, lr, beta1, beta2, eps)


def _plain_adam(
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
    """The same in torch operators; step already counts this step."""
    on = active.unsqueeze(1)
    count = step.to(torch.float64).clamp(min=1.0)  # an inactive client may still be at step 0
    size = (lr / (1.0 - beta1**count)).to(param.dtype).unsqueeze(1)
    scale = (1.0 - beta2**count).rsqrt().to(param.dtype).unsqueeze(1)
    m.copy_(torch.where(on, m + (1.0 - beta1) * (grad - m), m))
    v.copy_(torch.where(on, beta2 * v + (1.0 - beta2) * grad * grad, v))
    param.copy_(torch.where(on, param - size * m / (v.sqrt() * scale + eps), param))


@torch.no_grad()
def sgd_step(
    param: Tensor, grad: Tensor, buffer: Tensor, active: Tensor, lr: float, momentum: float = 0.0
) -> None:
    """One SGD step of param [G, P]; buffer [G, P] holds the momentum and starts at zero."""
    _check("SGD", param, (grad, buffer), active)
    compiled = kernels(_KERNELS, param, grad, buffer)
    if compiled is not None:
        arrays = [t.detach().numpy() for t in (param, grad.contiguous(), buffer, active)]
        compiled.sgd(*arrays, lr, momentum)
        return
    on = active.unsqueeze(1)
    buffer.copy_(torch.where(on, momentum * buffer + grad, buffer))
    param.copy_(torch.where(on, param - lr * buffer, param))


def _check(name: str, param: Tensor, others: tuple[Tensor, ...], active: Tensor) -> None:
    """In place means in place: a tensor that had to be copied first would be lost."""
    if param.dim() != 2 or any(other.shape != param.shape for other in others):
        raise FuelsError(
            f"{name}: parameters {tuple(param.shape)} and {[tuple(o.shape) for o in others]} "
            "(gradient, state) do not fit; all must be [clients, numbers]"
        )
    if active.shape != param.shape[:1] or active.dtype != torch.bool:
        raise FuelsError(f"{name}: active must hold one bool for each of {param.shape[0]} clients")
    if not all(t.is_contiguous() for t in (param, *others[1:])):
        raise FuelsError(f"{name}: parameters and state must be contiguous to be updated in place")
