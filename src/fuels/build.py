"""From settings to a federation ready to train on this machine."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fuels.config import Engine, Settings, check, check_engine
from fuels.data.cycle import find_cycle
from fuels.data.newcomers import LEAST as NEW_LEAST
from fuels.data.newcomers import shortened
from fuels.data.panel import Panel
from fuels.data.readers import read_panel
from fuels.data.sample import sample_of
from fuels.data.synthetic import synthesise
from fuels.data.windows import Dataset, prepare
from fuels.federation.loop import Loop
from fuels.federation.ray_transport import RayTransport
from fuels.federation.site import Site
from fuels.federation.transport import LocalTransport, OwnSites
from fuels.methods import build_method, complete
from fuels.methods.base import Facts, Method
from fuels.model.network import build_network
from fuels.runtime import set_up
from fuels.training import Optimiser

SYNTHETIC = "synthetic:"
SYNTHETIC_CLIENTS = 100  # the embedded federation, of which data.clients draws some


def load_panel(settings: Settings) -> Panel:
    """The panel the settings name, from a file or from the generator."""
    data = settings.data
    if data.source.startswith(SYNTHETIC):
        clients = max(SYNTHETIC_CLIENTS, data.clients)
        panel = synthesise(data.source.removeprefix(SYNTHETIC), clients=clients)
        return panel.select(data.ids) if data.ids else panel
    return read_panel(
        Path(data.source),
        client=data.client_column or None,
        time=data.time_column or None,
        value=data.value_column or None,
        ids=data.ids or None,
        resample=data.resample or None,
        how=data.how or None,
        start=data.start or None,
        end=data.end or None,
        timezone=data.timezone or None,
        missing=data.missing or None,
        activity=data.activity or None,
        coordinates=Path(data.coordinates) if data.coordinates else None,
    )


def load_dataset(settings: Settings, panel: Panel | None = None) -> Dataset:
    windows = settings.windows
    panel = load_panel(settings) if panel is None else panel
    cycle = find_cycle(panel)
    if cycle is not None and cycle.period != windows.period:
        warnings.warn(
            f"the data repeat every {cycle.period} steps, the period is set to {windows.period};"
            f" --period {cycle.period} may fit better",
            stacklevel=2,
        )
    prepared = partial(
        prepare,
        sample=sample_of(windows),
        holidays=windows.holidays,
        split=windows.split,
        seed=settings.seed,
        max_gap=windows.max_gap,
    )
    dataset = prepared(panel, clients=settings.data.clients)
    if not settings.data.newcomers:
        return dataset
    shorter = shortened(dataset, settings.data.newcomers, settings.seed)
    found = prepared(shorter, least=NEW_LEAST)
    return replace(found, left_out=dataset.left_out | found.left_out)


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
