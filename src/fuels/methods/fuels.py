"""FUELS: prototypes instead of models.

Liu et al., "Personalized Federated Learning for Spatio-Temporal Forecasting: A Dual Semantic
Alignment-Based Contrastive Approach" (Algorithm 1). Local loss (Eq. 15): L_pred (Eq. 14) + L_intra
(Eq. 3-6) + rho L_inter (Eq. 11-13). Algorithm 1 prints rho in front of L_pred, which contradicts
Eq. 15 and the notation table; it is treated as a misprint. The server compares prototypes by
Jensen-Shannon divergence and sends each client the mean prototype of the clients similar to it and
that of the dissimilar ones (Eq. 9-10).

Travels up: the prototype R_n [24, 256], averaged over the batches of the last local epoch (Eq. 8),
with the noise set by options.noise. Travels down: PR_n and NR_n of the same shape. Stays: the model
and W_n. L_inter is omitted while a client has no PR_n and NR_n: in round 1, in the round in which a
late client joins, and if no client is dissimilar to it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fuels.arrays import Flags, Floats32
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.methods.admission import FALSE, FEWEST, close, divergences, unit_rows
from fuels.methods.base import MODEL, Method, Options, Sent, one_of, positive, tensor
from fuels.methods.messages import Arrays, Download, Upload
from fuels.methods.trial import TRUST, UNTRIED, train_with_trial
from fuels.model.network import Parts
from fuels.paper.losses import Inter, Intra
from fuels.paper.prototypes import ConcatenationPrototype, PeriodicPrototype, Prototype
from fuels.paper.similarity import SimilarityTable
from fuels.privacy.hidden import Order, order_of
from fuels.privacy.noise import NONE, add_noise, check_noise, reach
from fuels.randomness import FILTER, generator
from fuels.training.groups import Batch, Group
from fuels.training.step import Terms


@dataclass(frozen=True)
class FuelsOptions(Options):
    """Defaults are the paper's (Appendix D.1; rho: Section 5.4), if it states them."""

    tau: float = 0.02  # temperature
    rho: float = 5.0  # weight of L_inter
    beta: float = 50.0  # percentile of all divergences up to which clients are similar
    shift: float = 0.8  # temporal shift: a ~ U(shift, 1); not stated in the paper
    detach: bool = False  # no gradient through the augmented view
    inter: bool = True  # ablation "w/o inter" when false
    intra: bool = True  # ablation "w/o intra" when false
    periodic: bool = True  # ablation "w/o p-aware" when false: concatenation prototype
    filter: bool = True  # ablation "w/o W" when false
    filter_start: str = "normal"  # W_n: normal, N(0, 1), or positive, its absolute value
    noise: str = NONE  # on the uploaded prototype: none, laplace, gaussian or exponential
    noise_scale: float = 1.0  # standard deviation of the noise


class Fuels(Method):
    name = "fuels"
    title = "FUELS"
    sends = "a prototype: the mean inner representation of its values at each time of the period"
    receives = "the mean prototypes of similar and of dissimilar clients"
    Options = FuelsOptions
    stays = (*MODEL, "filter")
    losses = ("prediction", "intra", "inter")
    options: FuelsOptions
    warned = False  # warn once, not in every round

    def check(self) -> None:
        options = self.options
        positive(options, "tau", "rho")
        if not 0 <= options.beta <= 100:
            raise FuelsError(f"options.beta must be between 0 and 100; it is {options.beta}")
        if not 0 <= options.shift <= 1:
            raise FuelsError(f"options.shift must be between 0 and 1; it is {options.shift}")
        one_of(options, "filter_start", "normal", "positive")
        check_noise(options.noise, options.noise_scale)

    def check_data(self, dataset: Dataset) -> None:
        if self.options.periodic:
            return
        periods = dataset.window[:, : dataset.split.train].reshape(
            len(dataset.ids), -1, dataset.period
        )
        # Incomplete periods at the ends of the data are the same for all; others are not.
        inside = periods[:, dataset.sample.reach_periods :][:, 1:-1]
        for client, own in zip(dataset.ids, inside, strict=True):
            if not own.all():
                raise FuelsError(
                    f"client {client} has training periods without values: the concatenation"
                    " prototype (options.periodic = false) needs the same training span for all"
                )

    # -- client --------------------------------------------------------------------------------

    @property
    def shift(self) -> float:
        return self.options.shift

    def initial_parts(self, client: str) -> dict[str, Floats32]:
        """W_n ~ N(0, 1): ReLU gives no gradient where W <= 0, so the sign of the start matters."""
        draw = generator(self.facts.seed, FILTER, client).standard_normal(self.facts.period**2)
        if self.options.filter_start == "positive":
            draw = np.abs(draw)
        parts = {"filter": draw.astype(np.float32)}
        if self.facts.defence.trials:
            parts[TRUST] = np.full(1, UNTRIED, dtype=np.float32)
        return parts

    def local(self, group: Group, download: Download) -> Arrays:
        """ClientExecute of Algorithm 1."""
        options, trials = self.options, self.facts.defence.trials
        if self.order is not None:
            restored = {n: self.order.restore(each) for n, each in download.personal.items()}
            download = replace(download, personal=restored)
        alignment = Alignment(group, download) if download.clients else None
        if alignment is not None and trials:
            secret = self.facts.secret
            value = train_with_trial(group, alignment, self.train, trials, secret)
        else:
            value = self.train(group, alignment)
        if not self.sends_prototypes(group.round):
            return {}
        noised = add_noise(
            value,
            group.ids,
            options.noise,
            options.noise_scale,
            seed=group.seed,
            round_number=group.round,
            secret=self.facts.secret,
        )
        return {"prototype": noised if self.order is None else self.order.apply(noised)}

    def train(self, group: Group, alignment: Alignment | None) -> Floats32:
        """The local epochs on Eq. 15; returns the prototypes."""
        options, B = self.options, self.facts.period
        names = self.stays if options.intra and options.filter else MODEL
        prototype = self.prototype(group)

        def contrast(parts: Parts, batch: Batch) -> Terms:
            """Eq. 15: L = L_pred + L_intra + rho L_inter."""
            intra = inter = None
            if options.intra:
                W = parts["filter"].view(-1, B, B) if options.filter else None
                intra = Intra(W, options.tau, batch.row_weight, options.detach)
            if alignment is not None:
                inter = alignment.term(batch, options.tau, options.rho)
            return intra, inter

        def average(batch: Batch, encoded: Tensor) -> None:
            if batch.last_epoch:
                prototype.add(encoded[:, :B], batch.index, batch.complete)

        batches = group.batches(self.facts.local_epochs, augment=options.intra)
        self.descend(group, batches, names, contrast, average)
        return prototype.value().cpu().numpy()

    def prototype(self, group: Group) -> Prototype:
        clients, width = len(group.ids), self.facts.network.width
        if self.options.periodic:
            return PeriodicPrototype(clients, self.facts.period, width, group.device)
        periods = self.facts.train_periods
        return ConcatenationPrototype(clients, periods, self.facts.period, width, group.device)

    # -- what travels --------------------------------------------------------------------------

    def sends_prototypes(self, round_number: int) -> bool:
        """Whether prototypes are sent in a round."""
        since = round_number - self.facts.privacy.first
        return since >= 0 and since % self.facts.privacy.every == 0

    @cached_property
    def order(self) -> Order | None:
        """The order of a prototype's numbers that hides them from the server; None: as they are."""
        facts = self.facts
        if not facts.privacy.secret:
            return None
        return order_of(facts.seed, facts.shared_secret, *self.sent_prototype().shape)

    def uploads(self, round_number: int) -> dict[str, Sent]:
        return {"prototype": self.sent_prototype()} if self.sends_prototypes(round_number) else {}

    def sent_prototype(self) -> Sent:
        periods = 1 if self.options.periodic else self.facts.train_periods
        bound = None
        if self.facts.network.encoder.bounded:
            bound = 1.0 + reach(self.options.noise, self.options.noise_scale)
        return Sent((periods * self.facts.period, self.facts.network.width), bound)

    def downloads(self) -> dict[str, Sent]:
        prototype = self.sent_prototype()
        return {"positive": prototype, "negative": prototype}

    # -- server --------------------------------------------------------------------------------

    def server(self, clients: Sequence[str]) -> SimilarityTable:
        return SimilarityTable(clients, self.sent_prototype().shape)

    def aggregate(self, server: SimilarityTable, upload: Upload) -> None:
        if "prototype" in upload.arrays:
            server.update(upload.clients, upload.arrays["prototype"], upload.sites)

    def admitted(self, server: SimilarityTable) -> Flags:
        """The clients whose prototypes others may get, [client]."""
        if server.used is None:
            k, used = self.facts.defence.admission, server.known.copy()
            server.apart[:] = 0.0
            if k and used.sum() >= FEWEST:
                votes = server.votes(used)
                server.apart[used] = divergences(server.prototypes[used], votes)
                used[used] = close(server.apart[used], k, votes)
            server.used = used
        return server.used

    def left_out(self, server: SimilarityTable) -> tuple[str, ...]:
        if not self.facts.defence.admission:
            return ()
        out = server.known & ~self.admitted(server)
        return tuple(server.clients[i] for i in np.flatnonzero(out))

    def useless(self, server: SimilarityTable) -> tuple[str, ...]:
        """Prototypes of honest clients may be unusual in every round."""
        out = Fuels.left_out(self, server)
        return tuple(c for c in out if server.apart[server.position[c]] > FALSE)

    def download(self, server: SimilarityTable, clients: Sequence[str]) -> Download:
        if not self.options.inter:
            return Download()
        defence = self.facts.defence
        having, positive, negative = server.prototypes_for(
            clients,
            self.options.beta,
            used=self.admitted(server) if defence.admission else None,
            farthest=defence.farthest,
            rows_as=unit_rows if defence.directions else None,
        )
        alone = server.known_among(clients) - len(having)
        if alone and not self.warned:
            self.warned = True
            warnings.warn(nothing_to_share(alone, len(clients)), stacklevel=2)
        if not having:
            return Download()
        return Download(personal={"positive": positive, "negative": negative}, clients=having)


def nothing_to_share(alone: int, clients: int) -> str:
    """The warning about clients that get no PR_n and NR_n."""
    if clients == 1:
        return "a single client has nothing to share: it trains without the inter-client term"
    who = "any client" if alone == clients else f"{alone} of {clients} clients"
    train = "it trains" if alone == 1 else "they train"
    return f"no dissimilar client was found for {who}, so {train} without the inter-client term"


class Alignment:
    """PR_n and NR_n of the clients of a group that have them, for every batch of the round."""

    def __init__(self, group: Group, download: Download) -> None:
        row = {client: i for i, client in enumerate(download.clients)}
        index = [row.get(client, 0) for client in group.ids]
        has = torch.tensor([client in row for client in group.ids], device=group.device)
        self.has, data = has, group.data
        self.weights = (data.row_weight[data.first :] * has.unsqueeze(1)).unbind()
        # The concatenation prototype has rows for every batch, the periodic one the same for all.
        positive, negative = (
            torch.split(tensor(download.personal[name][index], group.device), data.period, dim=1)
            for name in ("positive", "negative")
        )
        self.sides = list(zip(positive, negative, strict=True))

    def restrict_to(self, clients: Tensor) -> None:
        """Leave L_inter to these clients, [client]."""
        self.weights = tuple(weight * clients.unsqueeze(1) for weight in self.weights)

    def term(self, batch: Batch, tau: float, rho: float) -> Inter:
        """The inputs of L_inter for a batch; it is 0 for a client without PR_n and NR_n."""
        positive, negative = self.sides[batch.index % len(self.sides)]
        return Inter(positive, negative, tau, self.weights[batch.index], rho)
