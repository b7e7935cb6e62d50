"""From settings to a federation ready to train on this machine."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from fuels.config import Engine, Settings, check, check_engine
from fuels.data.loading import load_dataset
from fuels.data.panel import Panel
from fuels.data.sample import sample_of
from fuels.data.windows import Dataset
from fuels.federation.loop import Loop
from fuels.federation.ray import RayTransport
from fuels.federation.site import Site
from fuels.federation.transport import LocalTransport, OwnSites
from fuels.methods.base import Facts, Method
from fuels.methods.registry import build_method, complete
from fuels.model.network import build_network
from fuels.training.groups import Optimiser
from fuels.training.runtime import set_up


def make_method(settings: Settings, dataset: Dataset, secret: bytes = b"") -> Method:
    method = method_for(settings, train_periods(dataset), secret)
    method.check_data(dataset)
    return method


def train_periods(dataset: Dataset) -> int:
    """Periods of the training part that have samples: the first ones only feed the windows."""
    return dataset.split.train // dataset.period - dataset.sample.reach_periods


def method_for(settings: Settings, periods: int, secret: bytes = b"") -> Method:
    """The settings' method; a server, which has no data, knows `periods` from its sites."""
    training, model = complete(settings).training, settings.model
    sample = sample_of(settings.windows)
    facts = Facts(
        network=build_network(model.encoder, model.hidden, sample),
        sample=sample,
        train_periods=periods,
        local_epochs=training.local_epochs,
        optimiser=Optimiser(training.optimiser, training.learning_rate, training.momentum),
        seed=settings.seed,
        secret=secret,
    )
    return build_method(settings.method, settings.options, facts)


@dataclass(frozen=True)
class Job:
    """A federation on this machine, built and not yet trained."""

    settings: Settings
    dataset: Dataset
    method: Method
    sites: OwnSites
    loop: Loop

    @property
    def site(self) -> Site:
        """All clients and their models, in this process, wherever they are trained."""
        return self.sites.whole()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.sites.close()


def build(
    settings: Settings, engine: Engine, panel: Panel | None = None, secret: bytes = b""
) -> Job:
    """Check the settings, read the data and set everything up.

    `secret`: of a site of a federation, so that nobody else can draw its noise; see privacy/noise.
    """
    check(settings)
    check_engine(engine)
    settings = complete(settings)
    threads = set_up(engine)
    dataset = load_dataset(settings, panel)
    method = make_method(settings, dataset, secret)
    sites = open_sites(dataset, method, engine, threads, settings.training.keep)
    loop = Loop(method, sites, settings.training, settings.seed)
    return Job(settings, dataset, method, sites, loop)


def open_sites(
    dataset: Dataset, method: Method, engine: Engine, threads: int, keep: str
) -> OwnSites:
    """The sites of an engine, ready to train."""
    if engine.transport == "ray":
        return RayTransport(dataset, method, engine, threads=threads, keep=keep)
    return LocalTransport(Site(dataset, method, keep=keep, threads=threads, device=engine.device))


def fingerprint(dataset: Dataset) -> str:
    """Short digest of the values trained on: a resumed run must see the same."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update("\n".join(dataset.ids).encode())
    digest.update(dataset.panel.values.tobytes())
    digest.update(str((dataset.panel.start, dataset.panel.step, dataset.split)).encode())
    return digest.hexdigest()
