"""What a FUELS client uploads: its representations over one local epoch, never its model.

The periodic prototype (Eq. 8) averages them over batches of one period: row b describes phase b,
and the size does not depend on the length of the series. The concatenation prototype (Eq. 7) keeps
every row.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Prototype(Protocol):
    """Collects r [client, B, d_r] batch by batch; `value` is the upload."""

    def add(self, r: Tensor, batch: int, complete: Tensor) -> None: ...

    def value(self) -> Tensor: ...


class PeriodicPrototype:
    """Eq. 8: the mean over the batches that are complete periods, [client, B, d_r]."""

    def __init__(self, clients: int, period: int, width: int, device: torch.device) -> None:
        self.total = torch.zeros(clients, period, width, device=device)
        self.count = torch.zeros(clients, device=device)

    def add(self, r: Tensor, batch: int, complete: Tensor) -> None:
        """`complete` [client]: whether the batch is a complete period of that client."""
        self.total.addcmul_(r, complete.view(-1, 1, 1).to(r.dtype))
        self.count += complete

    def value(self) -> Tensor:
        return self.total / self.count.clamp(min=1).view(-1, 1, 1)


class ConcatenationPrototype:
    """Eq. 7: the rows of all batches one after another, [client, batches x B, d_r].

    The rows of an incomplete period, at either end of the data, are 0.
    """

    def __init__(
        self, clients: int, batches: int, period: int, width: int, device: torch.device
    ) -> None:
        self.rows = torch.zeros(clients, batches, period, width, device=device)

    def add(self, r: Tensor, batch: int, complete: Tensor) -> None:
        self.rows[:, batch] = r * complete.view(-1, 1, 1)

    def value(self) -> Tensor:
        return self.rows.flatten(1, 2)
