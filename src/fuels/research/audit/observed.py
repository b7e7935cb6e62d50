"""What a server sees of a run: every upload, and those of the attacker's own clients beside them.

A run does not keep its uploads, so an audit trains it again, from its settings and its data. The
attacker trains its own clients in every round with what the server sends: models as they are, PR
and NR from its own clients' prototypes. It does not know the secret of privacy.secret.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fuels.arrays import Floats, Floats32
from fuels.config import Engine, Settings, merge
from fuels.data.panel import Panel
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.federation.site import Site
from fuels.federation.transport import Failure, LocalTransport, Reply
from fuels.methods.base import Method
from fuels.methods.messages import Arrays, Download
from fuels.privacy.noise import NONE
from fuels.research.audit.own_data import own_dataset
from fuels.runs.build import Job, build, method_for, train_periods
from fuels.runs.settings import resolve

Train = Callable[[Job], None]  # trains a job to its end
GUESS = b"what the attacker takes for the secret of the sites"


@dataclass(frozen=True)
class Seen:
    """The uploads of a run's clients and of the attacker's, and the days behind them."""

    ids: tuple[str, ...]
    days: Floats  # the clients' normalised mean training days, [client, phase]: the truth
    own_days: Floats  # the attacker's
    rounds: tuple[int, ...]  # that had uploads
    # Products of all pairs of uploads, the attacker's clients last, each group around its own mean:
    # [round, client, client]. Linear attacks need no more.
    grams: Floats
    prototypes: Floats32 | None  # [round, client, row, width]
    numbers: float  # that a client sent in the whole run
    job: Job | None = None

    @property
    def count(self) -> int:
        return len(self.ids)


def mean_days(dataset: Dataset) -> Floats:
    """The mean of each client's training periods that have samples, [client, phase]."""
    first = dataset.sample.reach_periods * dataset.period
    part = dataset.series[:, first : dataset.split.train].astype(np.float64)
    return np.asarray(part.reshape(len(dataset.ids), -1, dataset.period).mean(axis=1))


class ObservedTransport(LocalTransport):
    """One site; keeps what it sends, and trains the attacker's clients alongside."""

    def __init__(self, site: Site, own: Site) -> None:
        super().__init__(site)
        self.own = own
        self.own_server: Any = own.method.server(own.ids)
        self.rounds: list[int] = []
        self.grams: list[Floats] = []
        self.prototypes: list[Floats32] = []
        self.numbers = 0.0

    def train(
        self, round_number: int, clients: Sequence[str], download: Download
    ) -> tuple[list[Reply], list[Failure]]:
        replies, failures = super().train(round_number, clients, download)
        upload = replies[0].upload
        if upload.clients != self.site.ids:
            raise FuelsError(
                f"round {round_number}: an audit needs the uploads of all clients, and only"
                f" {len(upload.clients)} of {len(self.site.ids)} trained; set training.selection"
                " to 1 and clear training.late"
            )
        own = self.own.method.download(self.own_server, self.own.ids)
        own = replace(own, shared=download.shared)
        attackers, _ = self.own.train(round_number, self.own.ids, own)
        if attackers.arrays and not download.shared:
            self.own.method.aggregate(self.own_server, attackers)
        if upload.arrays:
            self.rounds.append(round_number)
            self.grams.append(products(upload.arrays, attackers.arrays))
            self.numbers += upload.numbers
            if "prototype" in upload.arrays:
                self.prototypes.append(upload.arrays["prototype"].copy())
        return replies, failures


def products(uploads: Arrays, own: Arrays) -> Floats:
    """Products of all pairs of uploads, each group around its own mean."""
    rows = []
    for arrays in (uploads, own):
        parts = [arrays[name].reshape(len(arrays[name]), -1) for name in sorted(arrays)]
        flat = np.concatenate(parts, axis=1).astype(np.float64)
        rows.append(flat - flat.mean(axis=0))
    every = np.concatenate(rows)
    return np.asarray(every @ every.T)


def own_method(settings: Settings, dataset: Dataset) -> Method:
    """The attacker's method: the run's, but without noise on its own uploads."""
    quiet = {"options": {"noise": NONE}} if "noise" in settings.options else {}
    chosen = resolve(merge(settings, quiet, "audit"))
    return method_for(chosen, train_periods(dataset), shared=GUESS)


def run_rounds(job: Job) -> None:
    job.loop.run()


def observe(
    settings: Settings, engine: Engine, panel: Panel | None = None, train: Train = run_rounds
) -> Seen:
    """Train these settings and return what the server sees; `train` may display the rounds."""
    settings = resolve(settings)
    job = build(settings, replace(engine, transport="local", sites=1, address=""), panel)
    dataset = job.dataset
    own = own_dataset(settings, dataset.panel, len(dataset.ids))
    keep = settings.training.keep
    site = Site(own, own_method(settings, own), keep=keep, threads=job.site.threads)
    transport = ObservedTransport(job.site, site)
    job.loop.transport = transport
    train(job)
    if not transport.rounds:
        raise FuelsError(f"{job.method.title} with these settings sends nothing: nothing to audit")
    return Seen(
        ids=dataset.ids,
        days=mean_days(dataset),
        own_days=mean_days(own),
        rounds=tuple(transport.rounds),
        grams=np.stack(transport.grams),
        prototypes=np.stack(transport.prototypes) if transport.prototypes else None,
        numbers=transport.numbers,
        job=job,
    )
