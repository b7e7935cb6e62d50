"""FedAvg: one model for all, the average of the clients' models.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017. Each selected client starts from the global model w, runs its local epochs and sends
its model w_n; the server sets w = sum_n (|D_n| / sum_m |D_m|) w_n over the clients of the round.

Travels: the whole model, up and down, and |D_n| up. Stays: nothing. Evaluated: the global model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fuels.methods.admission import shares_of_votes
from fuels.methods.aggregation import admitted_models, aggregated, weights_by_site
from fuels.methods.base import MODEL, GlobalModel, Method, Sent, stacked
from fuels.methods.messages import Arrays, Download, Upload
from fuels.training.groups import Group


class FedAvg(Method):
    name = "fedavg"
    title = "FedAvg"
    sends = "the weights of its model and the number of its training samples"
    receives = "the average of all models"
    stays: ClassVar[tuple[str, ...]] = ()
    evaluate_after_aggregation = True
    one_model = True
    only_mean = True
    shares: ClassVar[tuple[str, ...]] = MODEL  # the parts that travel

    def local(self, group: Group, download: Download) -> Arrays:
        group.install(download.shared)
        self.fit(group)
        return stacked(group.parts, self.shares)

    def uploads(self, round_number: int) -> dict[str, Sent]:
        return self.downloads()

    def counts(self, round_number: int) -> bool:
        return True

    def downloads(self) -> dict[str, Sent]:
        return self.sent_parts(self.shares)

    def server(self, clients: Sequence[str]) -> GlobalModel:
        start = self.facts.network.initial(self.facts.seed)
        return GlobalModel({name: start[name] for name in self.shares})

    def aggregate(self, server: Any, upload: Upload) -> None:
        defence = self.facts.defence
        server.left_out = ()
        if defence.admission:
            votes = shares_of_votes(upload.sites) if upload.sites else None
            used = admitted_models(upload.arrays, server.parts, defence.admission, votes)
            server.left_out = tuple(upload.clients[i] for i in np.flatnonzero(~used))
            upload = upload.take(np.flatnonzero(used).tolist())
        weights: NDArray[Any] = upload.weights
        votes = None
        if upload.sites:
            votes = shares_of_votes(upload.sites)
            weights = weights_by_site(upload.weights, upload.sites)
        server.parts = aggregated(upload.arrays, weights, server.parts, defence, votes)

    def left_out(self, server: Any) -> Sequence[str]:
        found: Sequence[str] = server.left_out
        return found

    def download(self, server: Any, clients: Sequence[str]) -> Download:
        return Download(shared=dict(server.parts))
