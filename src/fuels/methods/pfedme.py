"""pFedMe: personal models tied to the global model by a proximal term.

T Dinh et al., "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020 (Algorithm 1).
Client n has a personal model theta_n in addition to its copy w of the global one. For every batch D
it takes K steps down the gradient of

    f(theta, D) + (lambda / 2) ||theta - w||^2,

then moves w <- w - eta lambda (w - theta). theta starts each round at w and continues from batch to
batch. With the mean of w_n over the clients of the round, the server sets
w <- (1 - beta) w + beta mean. The mean is weighted by sample counts and equals the paper's plain
mean if clients have equally many samples. The paper leaves open how theta is found. Here the K
steps are steps of the common optimiser, whose state is reset in each round, or, with
`personal_rate`, plain gradient steps of that size, as in the published code of T Dinh et al.

Travels: w, up and down, and |D_n| up. Stays: theta_n. Evaluated: theta_n at the end of the client's
last round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fuels.methods.base import MODEL, Options, at_least, positive, stacked
from fuels.methods.fedavg import FedAvg
from fuels.methods.messages import Arrays, Download, Upload
from fuels.model.optimiser import Update, proximal
from fuels.training.groups import Group, Optimiser
from fuels.training.step import Step, descend


@dataclass(frozen=True)
class PFedMeOptions(Options):
    """The FUELS paper gives no values; K and beta are from T Dinh et al. Their lambda = 15 and
    eta = 0.005 suit a classifier's loss: on the squared error of normalised traffic, theta hardly
    leaves w and w hardly moves, and training takes several times the rounds of FedAvg. lambda = 0.1
    and eta = 5 are ours, the best of six pairs on days before any test day: 20 Milan cells, 40
    rounds on November, evaluated on 1-10 December (MSE 0.0988; 0.1000 with 1 and 1, 0.1038 with 1
    and 0.5,
    0.1047 with 0.1 and 1, 0.1159 with 15 and 0.05, 0.1755 with 15 and 0.005)."""

    inner_steps: int = 5  # K
    lam: float = 0.1  # lambda: weight of the distance between theta and w
    personal_rate: float = 0.0  # size of plain gradient steps on theta; 0: the common optimiser
    eta: float = 5.0  # learning rate of w
    beta: float = 1.0  # share of the clients' mean in the new global model


class PFedMe(FedAvg):
    name = "pfedme"
    title = "pFedMe"
    Options = PFedMeOptions
    options: PFedMeOptions
    stays = MODEL  # theta: the model a client keeps is its personal one
    evaluate_after_aggregation = False
    one_model = False
    remark = (
        "pFedMe takes {inner_steps} gradient steps on a batch, the others one or two; the"
        " defaults of its lambda and eta were tuned on days before any test day of Milan."
    )

    def check(self) -> None:
        at_least(1, self.options, "inner_steps")
        at_least(0, self.options, "personal_rate")
        positive(self.options, "lam", "eta", "beta")

    def local(self, group: Group, download: Download) -> Arrays:
        options, rate = self.options, self.options.personal_rate
        group.install(download.shared)
        theta = group.parts
        w = {name: theta[name].clone() for name in MODEL}
        inner = Optimiser("sgd", rate) if rate else self.facts.optimiser
        slots = {name: inner.fresh(theta[name]) for name in MODEL}
        for batch in group.batches(self.facts.local_epochs):
            updates = {
                n: [
                    Update(proximal, theta[n], (w[n], options.lam)),
                    inner.update(theta[n], slots[n], batch.active),
                ]
                for n in MODEL
            }
            steps = [Step(batch, updates)] * options.inner_steps
            (_, terms), *_ = descend(group.network, theta, steps)
            group.record(batch, **terms)
            on = batch.active.unsqueeze(1).to(batch.x.dtype)  # 0: nothing to learn from here
            for n in MODEL:
                w[n].lerp_(theta[n], on * options.eta * options.lam)
        return stacked(w, self.shares)

    def aggregate(self, server: Any, upload: Upload) -> None:
        before, beta = server.parts, self.options.beta
        super().aggregate(server, upload)
        server.parts = {n: (1 - beta) * before[n] + beta * server.parts[n] for n in self.shares}
