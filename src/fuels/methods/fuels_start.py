"""FUELS with a lent start: newcomers begin from the models of those alike. Not in the paper.

FUELS sends no models, so a client with a few days of history has little to learn from. Here it
borrows, once: in round options.lend every client sends its model beside its prototype. For each
newcomer, a client with less than options.new of the samples that a whole training part holds, the
server takes the mean of the models of the options.lenders clients that are the most alike to it by
the divergence of their prototypes, newcomers left out; in the next round the newcomer trains on
from that mean. Everything else is FUELS.

Travels up: the prototype and, in round options.lend alone, the whole model and the number of
samples. Travels down: PR_n and NR_n; in the round after lending the start of each newcomer instead
of them, and nothing to the others, so L_inter is left out in that round. A newcomer sees a mean of
its lenders' models, the server sees the models: it is a method of its own, so that a site takes
part in it only if its owner names it.
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
    lenders: int = 3  # clients whose models make a start
    new: float = 0.5  # a newcomer has less than this share of all samples there can be


class Relay:
    """The prototypes the server knows, and the starts that wait for their newcomers."""

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
    Options = FuelsStartOptions
    options: FuelsStartOptions

    def check(self) -> None:
        super().check()
        at_least(1, self.options, "lend", "lenders")
        if not 0 < self.options.new <= 1:
            raise FuelsError(f"options.new is a share from 0 to 1, it is {self.options.new}")

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
        return round_number == self.options.lend  # they tell who is new

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
        """The mean model of the lenders most alike to each newcomer."""
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

    def download(self, server: Any, clients: Sequence[str]) -> Download:
        waiting = tuple(client for client in clients if client in server.starts)
        if not waiting:
            return super().download(server.table, clients)
        rows = {name: np.stack([server.starts[c][name] for c in waiting]) for name in MODEL}
        return Download(personal=rows, clients=waiting)


def begin(group: Group, download: Download) -> None:
    """Give the newcomers of a group their start; their optimiser starts fresh."""
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
