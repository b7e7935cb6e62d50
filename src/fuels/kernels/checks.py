"""Shapes and types that the compiled kernels rely on.

Kernels read and write memory by address, so a shape that does not fit must be refused before they
run. The references refuse the same arguments, with the same messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fuels.errors import FuelsError

if TYPE_CHECKING:
    from fuels.model.gru import GruShape
    from fuels.model.network import Target
    from fuels.paper.losses import Inter, Intra


def check_encoder(params: Tensor, inputs: Sequence[Tensor], shape: GruShape) -> None:
    if params.dim() != 2 or params.shape[1] != shape.size:
        raise FuelsError(
            f"encoder: parameters of shape {tuple(params.shape)} do not fit; "
            f"hidden {shape.hidden} with branches {shape.branches} needs [clients, {shape.size}]"
        )
    rows = inputs[0].shape[1] if inputs and inputs[0].dim() == 4 else 0
    wanted = [(params.shape[0], rows, length, width) for length, width in shape.branches]
    found = [tuple(x.shape) for x in inputs]
    if found != wanted:
        raise FuelsError(
            f"encoder: inputs of shapes {found} do not fit; one [clients, rows, length, inputs] "
            f"per branch is needed, with {params.shape[0]} clients and branches {shape.branches}"
        )


def check_losses(
    decoder: Tensor,
    encoded: Tensor,
    target: Target,
    intra: Intra | None = None,
    inter: Inter | None = None,
) -> list[Tensor | None]:
    """The tensors of the losses, in the order in which the kernel reads them."""
    (clients, B, H), width = target.y.shape, encoded.shape[2]
    columns = target.clock.shape[2]
    given: list[tuple[str, Tensor | None, tuple[int, ...]]] = [
        ("encoded", encoded, (clients, B if intra is None else 2 * B, width)),
        ("decoder", decoder, (clients, H * (width + columns + 1))),
        ("target.y", target.y, (clients, B, H)),
        ("target.weight", target.weight, (clients, B, H)),
        ("target.clock", target.clock, (B, H, columns)),
        ("intra.W", intra.W if intra else None, (clients, B, B)),
        ("intra.weight", intra.weight if intra else None, (clients, B)),
        ("inter.positive", inter.positive if inter else None, (clients, B, width)),
        ("inter.negative", inter.negative if inter else None, (clients, B, width)),
        ("inter.weight", inter.weight if inter else None, (clients, B)),
    ]
    for name, tensor, shape in given:
        if tensor is not None and tensor.shape != shape:
            raise FuelsError(
                f"losses: {name} of shape {tuple(tensor.shape)} does not fit {clients} clients with"
                f" {B} rows of width {width}; it must be {shape}"
            )
    return [tensor for _, tensor, _ in given]


def check_adam(
    param: Tensor, gradient: Tensor, m: Tensor, v: Tensor, step: Tensor, active: Tensor,
    *constants: float, shared: bool = False, **named: float,
) -> None:  # fmt: skip
    _check_update("Adam", param, gradient, (m, v), shared, active)
    if step.shape != active.shape or step.dtype != torch.int64:
        raise FuelsError(
            f"Adam: step counts of shape {tuple(step.shape)} and type {step.dtype} do not fit; "
            f"one int64 for each of the {param.shape[0]} clients is needed"
        )


def check_sgd(
    param: Tensor, gradient: Tensor, buffer: Tensor, active: Tensor,
    *constants: float, shared: bool = False, **named: float,
) -> None:  # fmt: skip
    _check_update("SGD", param, gradient, (buffer,), shared, active)


def check_proximal(
    param: Tensor, gradient: Tensor, anchor: Tensor, weight: float, shared: bool = False
) -> None:
    rows = len(param) if len(anchor) > 1 else 1
    if anchor.shape != (rows, *param.shape[1:]) or not anchor.is_contiguous():
        raise FuelsError(
            f"proximal term: an anchor of shape {tuple(anchor.shape)} does not fit parameters "
            f"{tuple(param.shape)}; it must be contiguous, with one row or one for each client"
        )
    _check_update("proximal term", param, gradient, (), shared)


def _check_update(
    name: str,
    param: Tensor,
    gradient: Tensor,
    state: tuple[Tensor, ...],
    shared: bool,
    active: Tensor | None = None,
) -> None:
    """Updates work in place, so a tensor that had to be copied first would be lost."""
    if param.dim() != 2 or any(each.shape != param.shape for each in state):
        raise FuelsError(
            f"{name}: parameters {tuple(param.shape)} and {[tuple(s.shape) for s in state]} "
            "(state) do not fit; all must be [clients, numbers]"
        )
    clients, size = param.shape
    if active is not None and (active.shape != (clients,) or active.dtype != torch.bool):
        raise FuelsError(f"{name}: active must hold one bool for each of {clients} clients")
    in_place = (param, *state) if active is None else (param, *state, active)
    if not all(tensor.is_contiguous() for tensor in in_place):
        raise FuelsError(f"{name}: parameters and state must be contiguous to be updated in place")
    wanted = (1 if shared else clients, size)
    if gradient.shape != wanted or gradient.dtype != param.dtype or not gradient.is_contiguous():
        raise FuelsError(
            f"{name}: a gradient of shape {tuple(gradient.shape)} and type {gradient.dtype} does "
            f"not fit; a contiguous one of shape {wanted} and type {param.dtype} is needed"
        )


def check_divergence(
    P: NDArray[Any], fresh: NDArray[Any], out: NDArray[Any], threads: int = 1
) -> None:
    if P.ndim != 3 or P.dtype != np.float32 or min(P.shape) < 1:
        raise FuelsError(
            f"JSD: distributions of shape {P.shape} and type {P.dtype} do not fit; "
            "float32 [members, rows, width] is needed"
        )
    count = len(P)
    if out.shape != (count, count) or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise FuelsError(f"JSD: the result must be contiguous float32 [{count}, {count}]")
    if fresh.size and (fresh.min() < 0 or fresh.max() >= count):
        raise FuelsError(f"JSD: fresh members must lie in 0..{count - 1}")
