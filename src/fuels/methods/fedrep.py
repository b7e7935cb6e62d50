"""FedRep: one representation for all, a head for each.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021
(Algorithm 1). The encoder delta is shared, the decoder phi_n is personal. In a round a client first
trains phi_n with delta as received (the head phase), then delta with the new phi_n (the body
phase), both on L_pred; the server averages the encoders. The average is weighted by sample counts,
as in FedAvg, and equals the paper's plain mean if clients have equally many samples. Without
personal parts there is no head phase, and FedRep is exactly FedAvg.

Travels: the encoder, up and down, and |D_n| up. Stays: the decoder. Evaluated: the averaged encoder
with the client's own decoder.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuels.methods.base import Options, at_least, stacked
from fuels.methods.fedavg import FedAvg
from fuels.methods.messages import Arrays, Download
from fuels.training.groups import Group


@dataclass(frozen=True)
class FedRepOptions(Options):
    """The FUELS paper gives every method one local epoch and counts one pass for FedRep in its
    complexity table, so the head phase is one epoch; Collins et al. use ten."""

    head_epochs: int = 1


class FedRep(FedAvg):
    name = "fedrep"
    title = "FedRep"
    sends = "the weights of its encoder and the number of its training samples"
    receives = "the average of all encoders"
    Options = FedRepOptions
    options: FedRepOptions
    stays = ("decoder",)
    shares = ("encoder",)
    one_model = False
    remark = "FedRep passes over the data twice in a round: for the head, then for the body."

    def check(self) -> None:
        at_least(1, self.options, "head_epochs")

    def local(self, group: Group, download: Download) -> Arrays:
        group.install(download.shared)
        if self.stays:
            self.fit(group, self.stays, self.options.head_epochs)
        self.fit(group, self.shares)
        return stacked(group.parts, self.shares)
