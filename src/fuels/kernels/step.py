"""Compiled twins of training/step.py: many steps of stacked clients, without autograd.

Every step becomes a list of stages: encoder forward, losses with their gradients, encoder backward,
updates. A client goes through the stages of all steps before the next client starts, so its data
stay in the cache. The clients share the memory of one tape and one gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fuels.kernels import optimiser
from fuels.kernels.checks import check_encoder, check_losses
from fuels.kernels.gru import Encoding
from fuels.kernels.losses import Losses
from fuels.kernels.stages import Stage, run

if TYPE_CHECKING:
    from fuels.model.network import Network, Parts
    from fuels.model.optimiser import Update
    from fuels.paper.losses import Inter, Intra
    from fuels.training.groups import Batch
    from fuels.training.step import Step


def descend(network: Network, parts: Parts, steps: Sequence[Step]) -> Any:
    updates = [u for step in steps for several in step.updates.values() for u in several]
    if not _covered(network) or not all(_has_stage(update) for update in updates):
        return NotImplemented
    plan = _Plan(network, parts, shared=True)
    found = []
    for step in steps:
        encoded, terms, _ = plan.add(step.batch, step.updates, *step.contrast(parts, step.batch))
        found.append((encoded, terms))
    plan.run()
    return found


def differentiate(network: Network, parts: Parts, names: Sequence[str], batch: Batch) -> Any:
    if not _covered(network):
        return NotImplemented
    plan = _Plan(network, parts, shared=False)
    _, terms, gradient = plan.add(batch, dict.fromkeys(names, ()), None, None)
    plan.run()
    return terms["prediction"], {name: gradient[name] for name in names}


def _covered(network: Network) -> bool:
    """Whether there are stages for the network: GRUs, and heads that read r."""
    return network.encoder.gru is not None and not network.summed


def _has_stage(update: Update) -> bool:
    """Whether the rule of an update is one of those with a compiled twin."""
    return bool(getattr(update.rule, "twin", "").startswith(optimiser.__name__))


class _Plan:
    """The stages of some steps; nothing is computed before `run`."""

    def __init__(self, network: Network, parts: Parts, shared: bool) -> None:
        self.network, self.parts, self.shared = network, parts, shared
        self.stages: list[Stage] = []
        self.encodings: list[Encoding] = []  # held until they have run
        self.batch: Any = None  # the newest
        # One of each for all steps: a client has gone back before its next step starts.
        self.tape: Tensor | None = None
        self.d_encoder: Tensor | None = None

    def add(
        self,
        batch: Batch,
        updates: Mapping[str, Sequence[Update]],
        intra: Intra | None,
        inter: Inter | None,
    ) -> tuple[Tensor, dict[str, Tensor], Parts]:
        """Where a step will leave encoded rows, terms of L and gradients [client or 1, P]."""
        encoding = self._encoding(batch)
        decoder, deep = self.parts["decoder"], "encoder" in updates
        target = self.network.target(batch.y, batch.weight, batch.x, batch.clock)
        check_losses(decoder, encoding.encoded, target, intra, inter)
        losses = Losses(decoder, encoding.encoded, target, intra, inter, deep, self.shared)
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
        for name, several in updates.items():
            for update in several:
                stage = optimiser.STAGES[update.rule.__name__]
                self.stages.append(
                    stage(update.param, gradient[name], *update.settings, shared=self.shared)
                )
        return encoding.encoded, losses.terms(), gradient

    def _encoding(self, batch: Batch) -> Encoding:
        """Consecutive steps on one batch use the same."""
        if batch is not self.batch:
            network, shape = self.network, self.network.encoder.gru
            assert shape is not None  # asked before
            inputs = network.encoder.inputs(*network.encoder_view(batch.views, batch.clock))
            check_encoder(self.parts["encoder"], inputs, shape)
            self.encodings.append(Encoding(self.parts["encoder"], inputs, shape))
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
