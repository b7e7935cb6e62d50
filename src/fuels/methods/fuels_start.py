"""FUELS in which newcomers start from the mean model of similar clients. Not in the paper.

FUELS sends no models, so a client with a few days of history has little to learn from. Here it
receives a model once: in round options.lend, every client sends its model in addition to its
prototype. A newcomer is a client with less than the share options.new of the samples in a whole
training part. For each newcomer, the server averages the models of the options.lenders established
clients most similar to it by the divergence of their prototypes; in the next round the newcomer
continues from that mean. Everything else is FUELS.

Travels up: the prototype and, only in round options.lend, the whole model and the number of
samples. Travels down: PR_n and NR_n; in the following round, instead of them, the initial model of
each newcomer and nothing for the others, so L_inter is omitted in that round. A newcomer sees a
mean of its lenders' models, and the server sees the models themselves. It is therefore a separate
method: a site takes part only if its owner consents to it by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.methods.base import MODEL, Sent, at_least, stacked, tensor
from fuels.methods.fuels import Fuels, FuelsOptions
from fuels.methods.messages import Arrays, Download, Upload
from fuels.paper.similarity import SimilarityTable
from fuels.training.groups import Group


@dataclass(frozen=True)
class FuelsStartOptions(FuelsOptions):
    lend: int = 10  # the round in which models are sent
    lenders: int = 3  # number of models averaged for a newcomer
    new: float = 0.5  # a newcomer has less than this share of the samples of a full training part


class Relay:
    """The prototypes at the server, and the initial models that newcomers have not received yet."""

    def __init__(self, table: SimilarityTable) -> None:
        self.table = table
        self.starts: dict[str, Arrays] = {}  # client: part: [size]

    def state(self) -> dict[str, NDArray[Any]]:
        waiting = [self.table.position[client] for client in self.starts]
        found: dict[str, NDArray[Any]] = {**self.table.state(), "waiting": np.array(waiting, int)}
        for name in MODEL if waiting else ():
            found[f"start.{name}"] = np.stack([start[name] for start in self.starts.values()])
        return found

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.table.load(state)
        self.starts = {
            self.table.clients[position]: {name: state[f"start.{name}"][row] for name in MODEL}
            for row, position in enumerate(state["waiting"])
        }


class FuelsStart(Fuels):
    name = "fuels-start"
    title = "FUELS, lent start"
    sends = "a prototype in each round and, once, the weights of its model"
    Options = FuelsStartOptions
    options: FuelsStartOptions

    def check(self) -> None:
        super().check()
        at_least(1, self.options, "lend", "lenders")
        if not 0 < self.options.new <= 1:
            raise FuelsError(f"options.new must be above 0 and at most 1; it is {self.options.new}")

    # -- client --------------------------------------------------------------------------------

    def local(self, group: Group, download: Download) -> Arrays:
        if MODEL[0] in download.personal:
            begin(group, download)
            download = Download()
        sent = super().local(group, download)
        lent = stacked(group.parts, MODEL) if group.round == self.options.lend else {}
        return sent | lent

    # -- what travels --------------------------------------------------------------------------

    def uploads(self, round_number: int) -> dict[str, Sent]:
        lending = self.sent_parts(MODEL) if round_number == self.options.lend else {}
        return super().uploads(round_number) | lending

    def counts(self, round_number: int) -> bool:
        return round_number == self.options.lend  # they identify the newcomers

    def downloads(self) -> dict[str, Sent]:
        return super().downloads() | self.sent_parts(MODEL)

    # -- server --------------------------------------------------------------------------------

    def server(self, clients: Sequence[str]) -> Relay:  # type: ignore[override]
        return Relay(super().server(clients))

    def aggregate(self, server: Any, upload: Upload) -> None:
        super().aggregate(server.table, upload)
        for client in upload.clients:
            server.starts.pop(client, None)
        if MODEL[0] in upload.arrays:
            server.starts = self.starts(server.table, upload)

    def starts(self, table: SimilarityTable, upload: Upload) -> dict[str, Arrays]:
        """For each newcomer, the mean model of the most similar lenders."""
        most = self.facts.train_periods * self.facts.period
        is_new = upload.weights < self.options.new * most
        lenders = np.flatnonzero(~is_new)
        if not len(lenders):
            return {}
        place = np.array([table.position[client] for client in upload.clients])
        found: dict[str, Arrays] = {}
        for row in np.flatnonzero(is_new):
            apart = table.jsd[place[row], place[lenders]]
            nearest = lenders[np.argsort(apart, kind="stable")[: self.options.lenders]]
            found[upload.clients[row]] = {
                name: upload.arrays[name][nearest].mean(axis=0, dtype=np.float64).astype(np.float32)
                for name in MODEL
            }
        return found

    def left_out(self, server: Any) -> tuple[str, ...]:
        return super().left_out(server.table)

    def useless(self, server: Any) -> tuple[str, ...]:
        return super().useless(server.table)

    def download(self, server: Any, clients: Sequence[str]) -> Download:
        waiting = tuple(client for client in clients if client in server.starts)
        if not waiting:
            return super().download(server.table, clients)
        rows = {name: np.stack([server.starts[c][name] for c in waiting]) for name in MODEL}
        return Download(personal=rows, clients=waiting)


def begin(group: Group, download: Download) -> None:
    """Install the initial models of a group's newcomers and reset their optimiser."""
    row = {client: i for i, client in enumerate(download.clients)}
    here = [i for i, client in enumerate(group.ids) if client in row]
    if not here:
        return
    for name in MODEL:
        wanted = [row[group.ids[i]] for i in here]
        start = tensor(download.personal[name][wanted], group.device)
        group.parts[name][here] = start
        for key, memory in group.optimiser.fresh(start).items():
            group.slots[name][key][here] = memory
