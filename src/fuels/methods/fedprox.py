"""FedProx: FedAvg with a penalty on the distance of the clients' models from the global model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020. Client n minimises
(Eq. 2 there) L_pred(w) + (mu / 2) ||w - w_t||^2, where w_t is the global model it received. The
rest is FedAvg; with mu = 0 it is exactly FedAvg.

Travels: the whole model, up and down, and |D_n| up. Stays: nothing. Evaluated: the global model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuels.methods.base import Options, at_least
from fuels.methods.fedavg import FedAvg
from fuels.model.optimiser import Update, proximal
from fuels.training.groups import Batch, Group


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
        at_least(0, self.options, "mu")

    def updates(self, group: Group, batch: Batch, names: Sequence[str]) -> dict[str, list[Update]]:
        """The gradient of (mu / 2) ||w - w_t||^2 is mu (w - w_t)."""
        return {
            name: [
                Update(proximal, group.parts[name], (group.installed[name], self.options.mu)),
                *steps,
            ]
            for name, steps in super().updates(group, batch, names).items()
        }
