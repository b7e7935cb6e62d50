"""Steps of stacked clients down the gradient of L: what a batch asks for, and what is done for it.

With compiled kernels, one client goes through encoder, losses, gradient and optimiser of all steps
before the next client starts, so that its data stay in the cache (kernels/stages.py); the clients
share the memory of one gradient. Elsewhere autograd finds the gradient of all
clients together, step after step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fuels.kernels.stages import Stage, run
from fuels.model.network import Network, Parts, Target
from fuels.model.optimiser import Update
from fuels.paper.losses import Inter, Intra, begin_losses, local_losses
from fuels.training.groups import Batch, gradients, leaves

if TYPE_CHECKING:
    from fuels.kernels.encoding import Encoding

Terms = tuple[Intra | None, Inter | None]
Contrast = Callable[[Parts, Batch], Terms]  # the contrastive terms of a batch at given parts
Updates = Mapping[str, Sequence[Update]]  # what is done for the gradient of a part, in this order


def nothing(parts: Parts, batch: Batch) -> Terms:
    """No contrastive terms: the loss is the prediction loss alone."""
    return None, None


@dataclass(frozen=True)
class Step:
    """Find the gradient of L (Eq. 15) in the parts that `updates` names, and do the updates.

    L_intra belongs to the part "filter".
    """

    batch: Batch
    updates: Updates
    contrast: Contrast = nothing


@dataclass(frozen=True)
class Found:
    """What a step finds on its way."""

    encoded: Tensor  # rows [client, row, d_r]; of steps in turn on one batch, those of the last
    terms: dict[str, Tensor]  # of L, by name, [client]


def descend(network: Network, parts: Parts, steps: Sequence[Step]) -> list[Found]:
    """Take the steps, one after another."""
    course = _Course(network, parts, shared=True)
    found = [course.add(step) for step in steps]
    if None not in found:
        course.run()
        return [each.found for each in found if each is not None]
    return [_together(network, parts, step) for step in steps]


def differentiate(
    network: Network, parts: Parts, names: Sequence[str], batch: Batch
) -> tuple[Tensor, Parts]:
    """L_pred of a batch [client], and its gradient in the named parts."""
    step = Step(batch, dict.fromkeys(names, ()))
    course = _Course(network, parts, shared=False)
    found = course.add(step)
    if found is None:
        _, terms, gradient = _by_autograd(network, parts, step)
        return terms["prediction"], gradient
    course.run()
    return found.found.terms["prediction"], {name: found.gradient[name] for name in names}


def _together(network: Network, parts: Parts, step: Step) -> Found:
    """A step of all clients at once."""
    encoded, terms, gradient = _by_autograd(network, parts, step)
    for name, several in step.updates.items():
        whole = gradient[name].contiguous()  # one memory for all: an update may change it
        for update in several:
            update(whole)
    return Found(encoded, terms)


def _by_autograd(
    network: Network, parts: Parts, step: Step
) -> tuple[Tensor, dict[str, Tensor], Parts]:
    """Encoded rows, terms of L and gradient."""
    batch, names = step.batch, list(step.updates)
    moving = leaves(parts, names)
    encoded = network.encode(moving, batch.views, batch.clock)
    terms = step.contrast(moving, batch)
    loss, told = local_losses(moving["decoder"], encoded, batch_target(network, batch), *terms)
    return encoded.detach(), told, gradients(loss, names, moving)


@dataclass(frozen=True)
class _Added:
    found: Found
    gradient: Parts  # [client, P], or [1, P] where the clients share it


class _Course:
    """Steps as stages of compiled kernels; nothing is computed before `run`.

    Where the memory of a gradient is shared, none is left to be used.
    """

    def __init__(self, network: Network, parts: Parts, shared: bool) -> None:
        self.network, self.parts, self.shared = network, parts, shared
        self.stages: list[Stage] = []
        self.encodings: list[Encoding] = []  # held until they have run
        self.batch: Batch | None = None  # of the newest
        # One of each for all steps: by the next one a client has gone back.
        self.tape: Tensor | None = None
        self.d_encoder: Tensor | None = None

    def add(self, step: Step) -> _Added | None:
        """What the step will find; None where there are no kernels for it."""
        updates = [update for several in step.updates.values() for update in several]
        stages = [update.stage for update in updates]
        encoding = None if None in stages else self._encoding(step.batch)
        if encoding is None:
            return None
        deep = "encoder" in step.updates
        losses = begin_losses(
            self.parts["decoder"],
            encoding.encoded,
            batch_target(self.network, step.batch),
            *step.contrast(self.parts, step.batch),
            deep=deep,
            shared=self.shared,
        )
        if losses is None:
            return None
        gradient = {"decoder": losses.d_decoder}
        if losses.d_W is not None:
            gradient["filter"] = losses.d_W.flatten(1)
        tape = self._tape(encoding) if deep else None
        self.stages += [encoding.forward(tape, self.shared), losses.stage()]
        if tape is not None and losses.d_encoded is not None:
            if self.d_encoder is None:
                clients = 1 if self.shared else encoding.clients
                self.d_encoder = torch.empty(clients, self.network.sizes["encoder"])
            gradient["encoder"] = self.d_encoder
            self.stages.append(
                encoding.backward(tape, losses.d_encoded, self.d_encoder, self.shared)
            )
        self.stages += [
            update.stage(gradient[name], self.shared)
            for name, several in step.updates.items()
            for update in several
            if update.stage is not None
        ]
        return _Added(Found(encoding.encoded, losses.terms()), gradient)

    def _encoding(self, batch: Batch) -> Encoding | None:
        """Steps in turn on one batch go through the same."""
        if batch is not self.batch:
            begun = self.network.begin(self.parts, batch.views, batch.clock)
            if begun is None:
                return None
            self.encodings.append(begun)
            self.batch = batch
        return self.encodings[-1]

    def _tape(self, encoding: Encoding) -> Tensor:
        size = encoding.tape_size * (1 if self.shared else encoding.clients)
        if self.tape is None or self.tape.numel() != size:
            self.tape = encoding.take_tape(self.shared)
        return self.tape

    def run(self) -> None:
        """All steps of each client, client after client."""
        if self.encodings:
            run(self.stages, self.encodings[0].clients)
            if self.tape is not None:
                self.encodings[0].give_tape(self.tape)


def batch_target(network: Network, batch: Batch) -> Target:
    return network.target(batch.y, batch.weight, batch.x, batch.clock)
