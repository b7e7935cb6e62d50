"""The gradient of a batch, and what is done for it at once: a step of stacked clients.

Where there are compiled kernels for it, a client goes through encoder, losses, gradient and
optimiser before the next one starts, all of it in the cache (model/stages.py), and the clients
share the memory of one gradient. Elsewhere autograd finds the gradient of all clients together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fuels.losses import Inter, Intra, begin_losses, local_losses
from fuels.model.network import Network, Parts, Target
from fuels.model.optimiser import Update
from fuels.model.stages import Stage
from fuels.training import Batch, gradients, leaves

Terms = tuple[Intra | None, Inter | None]
Contrast = Callable[[Parts], Terms]  # the contrastive terms of a batch at given parts
Updates = Mapping[str, Sequence[Update]]  # what is done for the gradient of a part, in this order
Found = tuple[Tensor, dict[str, Tensor]]


def nothing(parts: Parts) -> Terms:
    """No contrastive terms: the loss is the prediction loss alone."""
    return None, None


def descend(
    network: Network, parts: Parts, updates: Updates, batch: Batch, contrast: Contrast = nothing
) -> Found:
    """Find the gradient of L (Eq. 15) in the parts that `updates` names, and do the updates.

    Returns the rows encoded on the way, [client, row, d_r], and the terms of L by name, [client].
    L_intra belongs to the part "filter".
    """
    return descend_on([updates], network, parts, batch, contrast)


def descend_on(
    steps: Sequence[Updates],
    network: Network,
    parts: Parts,
    batch: Batch,
    contrast: Contrast = nothing,
) -> Found:
    """Several steps on one batch, all in the same parts; a client takes all of them in turn.

    Returns the rows as the last step encoded them, and the terms of L before the first.
    """
    updates = [update for step in steps for several in step.values() for update in several]
    if all(update.stage is not None for update in updates):
        found = _client_by_client(network, parts, list(steps[0]), batch, contrast, steps)
        if found is not None:
            return found[0], found[1]
    before: dict[str, Tensor] | None = None
    for step in steps:
        encoded, terms, gradient = _together(network, parts, list(step), batch, contrast)
        before = terms if before is None else before
        for name, several in step.items():
            whole = gradient[name].contiguous()  # one memory for all: an update may change it
            for update in several:
                update(whole)
    assert before is not None
    return encoded, before


def differentiate(
    network: Network, parts: Parts, names: Sequence[str], batch: Batch
) -> tuple[Tensor, Parts]:
    """L_pred of a batch [client], and its gradient in the named parts."""
    found = _client_by_client(network, parts, names, batch, nothing, [])
    _, terms, gradient = found or _together(network, parts, names, batch, nothing)
    return terms["prediction"], gradient


def _together(
    network: Network, parts: Parts, names: Sequence[str], batch: Batch, contrast: Contrast
) -> tuple[Tensor, dict[str, Tensor], Parts]:
    """Encoded rows, terms of L and gradient by autograd, for all clients at once."""
    moving = leaves(parts, names)
    encoded = network.encode(moving, batch.views, batch.clock)
    target = batch_target(network, batch)
    loss, terms = local_losses(moving["decoder"], encoded, target, *contrast(moving))
    return encoded.detach(), terms, gradients(loss, names, moving)


def _client_by_client(
    network: Network,
    parts: Parts,
    names: Sequence[str],
    batch: Batch,
    contrast: Contrast,
    steps: Sequence[Updates],
) -> tuple[Tensor, dict[str, Tensor], Parts] | None:
    """The same by compiled kernels, with the steps; None where there are none for this network.

    Where there are steps clients share the memory of one gradient, and none is left to be used.
    """
    encoding = network.begin(parts, batch.views, batch.clock)
    if encoding is None:
        return None
    shared, deep = bool(steps), "encoder" in names
    target, terms = batch_target(network, batch), contrast(parts)
    tape = encoding.take_tape(shared) if deep else None
    encoder = torch.empty(1 if shared else len(batch.y), network.sizes["encoder"] if deep else 0)
    stages: list[Stage] = []
    before: dict[str, Tensor] | None = None
    for updates in steps or [{}]:
        losses = begin_losses(
            parts["decoder"], encoding.encoded, target, *terms, deep=deep, shared=shared
        )
        if losses is None:
            return None
        before = losses.terms() if before is None else before  # views of what is not there yet
        gradient = {"decoder": losses.d_decoder}
        if losses.d_W is not None:
            gradient["filter"] = losses.d_W.flatten(1)
        stages += [encoding.forward(tape, shared), losses.stage()]
        if tape is not None and losses.d_encoded is not None:
            gradient["encoder"] = encoder
            stages.append(encoding.backward(tape, losses.d_encoded, encoder, shared))
        stages += [
            update.stage(gradient[name], shared)
            for name, several in updates.items()
            for update in several
            if update.stage is not None
        ]
    encoding.run(*stages)
    if tape is not None:
        encoding.give_tape(tape)
    assert before is not None
    return encoding.encoded, before, {name: gradient[name] for name in names}


def batch_target(network: Network, batch: Batch) -> Target:
    return network.target(batch.y, batch.weight, batch.x, batch.clock)
