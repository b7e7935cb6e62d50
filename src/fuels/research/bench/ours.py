"""(a) Ours: rounds of a site with all clients, stacked and compiled.

Only the site's part of a round is timed: setting up the groups, training, putting the uploads
together. Round 1 warms up; from its uploads the server makes what the clients of FUELS get in all
later rounds, and what the rivals get too.
"""

from __future__ import annotations

import time

import numpy as np

from fuels.arrays import Floats32
from fuels.federation.site import Site
from fuels.methods.messages import Upload
from fuels.research.bench.work import METHODS, Given, Sizes, make_dataset, make_method


class Ours:
    def __init__(self, sizes: Sizes, threads: int) -> None:
        self.sizes, self.clients = sizes, sizes.clients
        dataset = make_dataset(sizes)
        self.methods = {name: make_method(name, sizes, dataset) for name in METHODS}
        self.sites = {
            name: Site(dataset, method, keep="last", threads=threads)
            for name, method in self.methods.items()
        }
        self.downloads = {
            name: method.download(method.server(dataset.ids), dataset.ids)
            for name, method in self.methods.items()
        }

    def turn(self, method: str, round_number: int) -> tuple[float, Floats32]:
        """Seconds of a round, and what the sampled clients uploaded."""
        site, download = self.sites[method], self.downloads[method]
        start = time.perf_counter()
        upload, _ = site.train(round_number, site.ids, download)
        seconds = time.perf_counter() - start
        if method == "fuels" and round_number == 1:
            self._aggregate(upload)
        return seconds, outcome(method, upload.take(range(self.sizes.sample)))

    def given(self) -> Given:
        """PR_n and NR_n of the sampled clients after round 1."""
        mine = self.downloads["fuels"].take(self.sites["fuels"].ids[: self.sizes.sample])
        if not mine.clients:
            return {}
        sides = zip(mine.personal["positive"], mine.personal["negative"], strict=True)
        return dict(zip(mine.clients, sides, strict=True))

    def _aggregate(self, upload: Upload) -> None:
        method = self.methods["fuels"]
        server = method.server(upload.clients)
        method.aggregate(server, upload)
        self.downloads["fuels"] = method.download(server, upload.clients)


def outcome(method: str, upload: Upload) -> Floats32:
    """What the work is compared by: the prototypes, or the mean model of FedAvg in one row."""
    if method == "fuels":
        return upload.arrays["prototype"]
    means = [upload.arrays[part].mean(axis=0) for part in ("encoder", "decoder")]
    return np.concatenate(means)
