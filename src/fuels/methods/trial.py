"""Trials of L_inter: a client leaves it out while its own error is lower without. Not in the paper.

In a trial round a client trains twice from the same start, with L_inter and without, and keeps the
model with the lower error on its validation part (without one, on its last training days). It goes
on with or without L_inter until its next trial, so whatever the server sends can harm a client only
between two trials. The first trial is in the first round with PR_n and NR_n. The later rounds are
drawn, in a federation with the site's secret, so that no attacker can behave well in just those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fuels.arrays import Floats32
from fuels.methods.base import MODEL
from fuels.randomness import TRIAL, generator
from fuels.training.groups import Group, Slots

if TYPE_CHECKING:
    from fuels.methods.fuels import Alignment
    from fuels.model.network import Parts

TRUST = "trust"  # a part of every client, [1]: UNTRIED, or whether it uses L_inter
UNTRIED, WITHOUT, WITH = -1.0, 0.0, 1.0


def train_with_trial(
    group: Group,
    alignment: Alignment,
    train: Callable[[Group, Alignment | None], Floats32],
    every: int,
    secret: bytes = b"",
) -> Floats32:
    """One round of local training, with a trial where one is due; returns the prototypes."""
    trust = group.parts[TRUST][:, 0]
    key = (secret.hex(),) if secret else ()
    drawn = generator(group.seed, TRIAL, group.round, *key).random() < 1 / every
    due = alignment.has & (torch.full_like(alignment.has, drawn) | (trust == UNTRIED))
    alignment.restrict_to(due | (trust != WITHOUT))
    if not due.any():
        return train(group, alignment)

    start = _copy(group)
    with_inter = train(group, alignment)
    trained, losses = _copy(group), group.losses
    error = _own_error(group)
    group.parts, group.slots = start
    group.losses = {}
    without = train(group, None)
    worse = due & (error > _own_error(group))  # a client without any error keeps L_inter
    _keep(group, worse, *trained)
    group.losses = losses
    group.parts[TRUST] = torch.where(due, torch.where(worse, WITHOUT, WITH), trust).unsqueeze(1)
    return np.where(worse.cpu().numpy()[:, None, None], without, with_inter)


def _copy(group: Group) -> tuple[Parts, Slots]:
    parts = {name: part.clone() for name, part in group.parts.items()}
    return parts, {
        name: {key: value.clone() for key, value in slot.items()}
        for name, slot in group.slots.items()
    }


def _own_error(group: Group) -> Tensor:
    error = group.own_error({name: group.parts[name] for name in MODEL})
    return torch.from_numpy(error).to(group.device)


def _keep(group: Group, rows: Tensor, parts: Parts, slots: Slots) -> None:
    """Keep the group's state in these rows, and take the other state in all others."""
    for name, part in parts.items():
        group.parts[name] = torch.where(rows.unsqueeze(1), group.parts[name], part)
        for key, value in slots[name].items():
            here = rows.view(-1, *[1] * (value.dim() - 1))
            group.slots[name][key] = torch.where(here, group.slots[name][key], value)
