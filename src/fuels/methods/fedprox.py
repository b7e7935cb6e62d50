"""FedProx: FedAvg whose clients are held near the global model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020. Client n minimises
(Eq. 2 there) L_pred(w) + (mu / 2) ||w - w_t||^2, where w_t is the global model it received. All
else is FedAvg; mu = 0 is FedAvg exactly.

Travels: the whole model, up and down. Stays: nothing. Judged by: the global model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fuels.errors import FuelsError
from fuels.methods.base import Options
from fuels.methods.fedavg import FedAvg
from fuels.model.network import Parts
from fuels.training import Group


@dataclass(frozen=True)
class FedProxOptions(Options):
    """The FUELS paper gives no value. Li et al. tune mu over 0.001, 0.01, 0.1 and 1 and settle on
    0.001 and 0.01 for their two recurrent models; the larger of these is the default."""

    mu: float = 0.01  # weight of the distance to the global model


class FedProx(FedAvg):
    name = "fedprox"
    title = "FedProx"
    Options = FedProxOptions
    options: FedProxOptions

    def check(self) -> None:
        if not self.options.mu >= 0:
            raise FuelsError(f"options.mu must not be negative, it is {self.options.mu}")

    def penalty(self, group: Group, parts: Parts) -> Tensor:
        """(mu / 2) ||w - w_t||^2, [client]."""
        apart = [(parts[n] - group.installed[n]).square().sum(1) for n in self.shares]
        return 0.5 * self.options.mu * torch.stack(apart).sum(0)
