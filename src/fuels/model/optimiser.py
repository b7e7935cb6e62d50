"""Adam and SGD for a group of stacked clients, each client on its own clock.

The update of one client equals torch.optim's; an inactive client is left as it is and its step
count does not advance, so a client that sat out a batch has the same state as if the batch had
never been. Everything is updated in place, by a compiled kernel where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from fuels.errors import FuelsError
from fuels.kernels.dispatch import kernels
from fuels.kernels.stages import Stage, run

_KERNELS = "fuels.kernels.optimiser"


@dataclass(frozen=True)
class Update:
    """What is to be done for the gradient of a part, [client, P], contiguous.

    As a stage, with kernels, it takes the clients one by one. A gradient that they share has room
    for one client, [1, P].
    """

    param: Tensor
    plain: Callable[[Tensor], None]
    stage: Callable[[Tensor, bool], Stage] | None  # (gradient, shared)

    def __call__(self, gradient: Tensor) -> None:
        """For all clients."""
        if self.stage is None:
            with torch.no_grad():
                self.plain(gradient)
        else:
            run([self.stage(gradient, False)], len(self.param))


def adam(
    param: Tensor,
    m: Tensor,
    v: Tensor,
    step: Tensor,
    active: Tensor,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
) -> Update:
    """One Adam step of param [G, P]: moments m, v [G, P], step [G] int64, active [G] bool.

    The step counts from here on, the parameters move by the update; until then the next step may
    have begun.
    """
    _check("Adam", param, (m, v), active)
    if step.shape != active.shape or step.dtype != torch.int64:
        raise FuelsError(
            f"Adam: step counts of shape {tuple(step.shape)} and type {step.dtype} do not fit; "
            f"one int64 for each of the {param.shape[0]} clients is needed"
        )
    step += active
    count = step.clone()

    def plain(grad: Tensor) -> None:
        _plain_adam(param, grad, m, v, count, active, lr, beta1, beta2, eps)

    def stage(compiled: ModuleType, grad: Tensor, shared: bool) -> Stage:
        return Stage(
            compiled.adam, param, grad, m, v, param.shape[1], shared, count, active,
            float(lr), beta1, beta2, eps,
        )  # fmt: skip

    return _update("Adam", plain, stage, param, m, v)


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


def sgd(param: Tensor, buffer: Tensor, active: Tensor, lr: float, momentum: float = 0.0) -> Update:
    """One SGD step of param [G, P]; buffer [G, P] holds the momentum and starts at zero."""
    _check("SGD", param, (buffer,), active)

    def plain(grad: Tensor) -> None:
        on = active.unsqueeze(1)
        buffer.copy_(torch.where(on, momentum * buffer + grad, buffer))
        param.copy_(torch.where(on, param - lr * buffer, param))

    def stage(compiled: ModuleType, grad: Tensor, shared: bool) -> Stage:
        return Stage(
            compiled.sgd,
            param,
            grad,
            buffer,
            param.shape[1],
            shared,
            active,
            float(lr),
            float(momentum),
        )

    return _update("SGD", plain, stage, param, buffer)


def pull(param: Tensor, anchor: Tensor, weight: float) -> Update:
    """Adds weight (param - anchor) to the gradient of param [G, P]; anchor [G, P] or [1, P]."""
    own = len(anchor) > 1
    fitting = anchor.shape == (len(param) if own else 1, param.shape[1])
    if not fitting or not (anchor.is_contiguous() and param.is_contiguous()):
        raise FuelsError(
            f"pull: an anchor {tuple(anchor.shape)} does not fit parameters {tuple(param.shape)}"
        )

    def plain(grad: Tensor) -> None:
        grad.add_(param - anchor, alpha=weight)

    def stage(compiled: ModuleType, grad: Tensor, shared: bool) -> Stage:
        size = param.shape[1]
        return Stage(compiled.pull, param, grad, anchor, size, shared, own, float(weight))

    return _update("pull", plain, stage, param, anchor)


def _update(
    name: str,
    plain: Callable[[Tensor], None],
    stage: Callable[[ModuleType, Tensor, bool], Stage],
    param: Tensor,
    *state: Tensor,
) -> Update:
    """plain, or stage where there are kernels for tensors like these."""
    compiled = kernels(_KERNELS, param, *state)
    if compiled is None:
        return Update(param, plain, None)

    def fitting(grad: Tensor, shared: bool) -> Stage:
        """The kernel goes by addresses, so that sizes must be right."""
        clients, size = param.shape
        wanted = (1 if shared else clients, size)
        if grad.shape != wanted or grad.dtype != param.dtype or not grad.is_contiguous():
            raise FuelsError(
                f"{name}: a gradient {tuple(grad.shape)} of type {grad.dtype} does not fit; "
                f"{wanted} of {param.dtype}, one row after another, is needed"
            )
        return stage(compiled, grad, shared)

    return Update(param, plain, fitting)


def _check(name: str, param: Tensor, others: tuple[Tensor, ...], active: Tensor) -> None:
    """In place means in place: a tensor that had to be copied first would be lost."""
    if param.dim() != 2 or any(other.shape != param.shape for other in others):
        raise FuelsError(
            f"{name}: parameters {tuple(param.shape)} and {[tuple(o.shape) for o in others]} "
            "(state) do not fit; all must be [clients, numbers]"
        )
    if active.shape != param.shape[:1] or active.dtype != torch.bool:
        raise FuelsError(f"{name}: active must hold one bool for each of {param.shape[0]} clients")
    if not all(t.is_contiguous() for t in (param, *others, active)):
        raise FuelsError(f"{name}: parameters and state must be contiguous to be updated in place")
