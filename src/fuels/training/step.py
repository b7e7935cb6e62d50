"""The gradient step of stacked clients: the gradient of L (Eq. 15), then the updates.

Here autograd computes the gradient of all clients together, step after step. The compiled twin
(kernels/step.py) takes one client through all steps before the next client starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from fuels.kernels.dispatch import has_twin
from fuels.model.network import Network, Parts
from fuels.model.optimiser import Update
from fuels.paper.losses import Inter, Intra, local_losses
from fuels.training.groups import Batch, gradients, leaves

Terms = tuple[Intra | None, Inter | None]
Contrast = Callable[[Parts, Batch], Terms]  # the contrastive terms of a batch at given parts
Result = tuple[Tensor, dict[str, Tensor]]  # encoded rows [client, row, d_r]; terms of L [client]


def nothing(parts: Parts, batch: Batch) -> Terms:
    """No contrastive terms: the loss is the prediction loss."""
    return None, None


@dataclass(frozen=True)
class Step:
    """One step on a batch: `updates` lists, in order, what happens to the gradient of each part.

    L_intra belongs to the part "filter".
    """

    batch: Batch
    updates: Mapping[str, Sequence[Update]]
    contrast: Contrast = nothing


@has_twin("fuels.kernels.step")
def descend(network: Network, parts: Parts, steps: Sequence[Step]) -> list[Result]:
    """Take the steps in order.

    After consecutive steps on one batch, the encoded rows of each may be those of the last.
    """
    results = []
    for step in steps:
        encoded, terms, gradient = _gradient(network, parts, list(step.updates), step)
        for name, updates in step.updates.items():
            whole = gradient[name].contiguous()  # an update may change it for the next one
            for update in updates:
                update(whole)
        results.append((encoded, terms))
    return results


@has_twin("fuels.kernels.step")
def differentiate(
    network: Network, parts: Parts, names: Sequence[str], batch: Batch
) -> tuple[Tensor, Parts]:
    """L_pred of a batch [client], and its gradient in the named parts."""
    _, terms, gradient = _gradient(network, parts, names, Step(batch, {}))
    return terms["prediction"], gradient


def _gradient(
    network: Network, parts: Parts, names: Sequence[str], step: Step
) -> tuple[Tensor, dict[str, Tensor], Parts]:
    """Encoded rows, terms of L, and the gradient of each client's L in its named parts."""
    batch = step.batch
    moving = leaves(parts, names)
    encoded = network.encode(moving, batch.views, batch.clock)
    target = network.target(batch.y, batch.weight, batch.x, batch.clock)
    decoder = network.on_r(moving["decoder"])
    loss, terms = local_losses(decoder, encoded, target, *step.contrast(moving, batch))
    return encoded.detach(), terms, gradients(loss, names, moving)
