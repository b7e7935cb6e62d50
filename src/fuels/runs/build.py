"""From settings to a federation that is ready to train on this machine."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass, replace
from functools import partial

from fuels.config import Engine, Settings
from fuels.data.loading import load_panel
from fuels.data.newcomers import LEAST as NEW_LEAST
from fuels.data.newcomers import shorten_histories
from fuels.data.panel import Panel
from fuels.data.periodicity import find_cycle
from fuels.data.screening import Screened, drops_implausible, screen_panel
from fuels.data.windows import Dataset, prepare
from fuels.experts.history import history_of
from fuels.experts.personal_model import with_input_weights
from fuels.federation.loop import Loop
from fuels.federation.ray import RayTransport
from fuels.federation.site import Site
from fuels.federation.transport import LocalTransport, OwnSites
from fuels.methods.base import MODEL, Facts, Method
from fuels.methods.messages import Download
from fuels.methods.registry import find_method
from fuels.model.network import build_network
from fuels.runs.settings import ResolvedSettings, refuse_masked, resolve
from fuels.storage.models import PersonalModels, personal_models
from fuels.training.groups import Optimiser
from fuels.training.runtime import set_up


def load_dataset(settings: Settings, panel: Panel | None = None) -> Dataset:
    """The prepared data of a run, from `panel` or from the file that the settings name.

    Implausible values count as missing if the settings say so: no input, target or error uses them.
    """
    settings = resolve(settings)
    windows = settings.windows
    panel = load_panel(settings) if panel is None else panel
    screened = None
    if drops_implausible(settings.data.implausible, settings.mixture.on):
        panel, screened = screen_panel(panel, windows.period)
    cycle = find_cycle(panel)
    if cycle is not None and cycle.period != windows.period:
        warnings.warn(
            f"the data repeat every {cycle.period} steps, but the period is set to"
            f" {windows.period}; --period {cycle.period} may work better",
            stacklevel=2,
        )
    prepared = partial(
        prepare,
        sample=settings.sample,
        holidays=windows.holidays,
        split=windows.split,
        seed=settings.seed,
        max_gap=windows.max_gap,
    )
    dataset = prepared(panel, clients=settings.data.clients)
    if screened is not None:
        dataset = replace(dataset, screened=screened.of(dataset.ids))
        warn_implausible(screened.of(dataset.ids))
    if not settings.data.newcomers:
        return dataset
    shorter = shorten_histories(dataset, settings.data.newcomers, settings.seed)
    found = prepared(shorter, least=NEW_LEAST)
    return replace(found, left_out=dataset.left_out | found.left_out, screened=dataset.screened)


def warn_implausible(screened: Screened) -> None:
    """Warn about the implausible values of a run's data."""
    if said := screened.sentence():
        warnings.warn(f"{said}; counted as missing (--implausible keep uses all)", stacklevel=3)


def make_method(
    settings: ResolvedSettings, dataset: Dataset, secret: bytes = b"", shared: bytes = b""
) -> Method:
    method = method_for(settings, train_periods(dataset), secret, shared)
    method.check_data(dataset)
    return method


def train_periods(dataset: Dataset) -> int:
    """Periods of the training part that have samples: the first ones only feed the windows."""
    return dataset.split.train // dataset.period - dataset.sample.reach_periods


def method_for(
    settings: ResolvedSettings, periods: int, secret: bytes = b"", shared: bytes = b""
) -> Method:
    """The settings' method; a server without data learns `periods` from its sites."""
    training, model, sample = settings.training, settings.model, settings.sample
    facts = Facts(
        network=build_network(model.encoder, model.hidden, sample, model.head),
        sample=sample,
        train_periods=periods,
        local_epochs=training.local_epochs,
        optimiser=Optimiser(training.optimiser, training.learning_rate, training.momentum),
        seed=settings.seed,
        defence=settings.defence,
        privacy=settings.privacy,
        secret=secret,
        shared_secret=shared,
    )
    return find_method(settings.method)(settings.method_options, facts)


@dataclass(frozen=True)
class Job:
    """A federation on this machine, ready to train."""

    settings: ResolvedSettings
    dataset: Dataset
    method: Method
    sites: OwnSites
    loop: Loop

    @property
    def site(self) -> Site:
        """All clients and their models, merged into this process if they train elsewhere."""
        return self.sites.whole()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.sites.close()


def build(
    settings: Settings,
    engine: Engine,
    panel: Panel | None = None,
    secret: bytes = b"",
    shared: bytes = b"",
    *,
    federated: bool = False,
) -> Job:
    """Resolve the settings, read the data and set everything up.

    `secret` seeds the noise of a federation's site, so that nobody else can reproduce it; see
    privacy/noise.py. `shared` is the secret of all its sites; see privacy/hidden.py. `federated`:
    whether this is one site of a federation.
    """
    settings = resolve(settings)
    if not federated:
        refuse_masked(settings)
    threads = set_up(engine)
    dataset = load_dataset(settings, panel)
    method = make_method(settings, dataset, secret, shared)
    sites = open_sites(dataset, method, engine, threads, settings.training.keep)
    loop = Loop(method, sites, settings.training, settings.seed)
    return Job(settings, dataset, method, sites, loop)


def open_sites(
    dataset: Dataset, method: Method, engine: Engine, threads: int, keep: str
) -> OwnSites:
    """The transport of an engine, ready to train."""
    if engine.transport == "ray":
        return RayTransport(dataset, method, engine, threads=threads, keep=keep)
    return LocalTransport(Site(dataset, method, keep=keep, threads=threads, device=engine.device))


def kept_parameters(job: Job, download: Download) -> PersonalModels:
    """The models that a job's clients keep, given what the server sends at the end."""
    own = {n: p.cpu().numpy() for n, p in job.site.parts.items() if n not in MODEL}
    dataset = job.dataset
    models = personal_models(dataset, job.site.models(download), own, job.settings)
    if not dataset.panel.inputs:
        return models
    return with_input_weights(models, history_of(dataset), dataset.split.train)


def fingerprint(dataset: Dataset) -> str:
    """Short digest of the training data: a resumed run must use the same."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update("\n".join(dataset.ids).encode())
    digest.update(dataset.panel.values.tobytes())
    digest.update(str((dataset.panel.start, dataset.panel.step, dataset.split)).encode())
    return digest.hexdigest()
