"""Three clients in a small federation, built once for fuels and once for the textbook."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuels.config import Engine, Settings, merge
from fuels.data.panel import Panel
from fuels.methods.base import MODEL
from fuels.model.network import Parts
from fuels.runs.build import Job, build
from helpers import oracle

PERIOD, TRAIN, TEST = 6, 12, 3  # steps in a period, periods of the parts
PLACES = np.array([[9.10, 45.40], [9.11, 45.41], [9.30, 45.60]])


def small_panel(clients: int = 3, holes: bool = True) -> Panel:
    """Periodic series with noise; with holes, one client starts late and one has a long gap."""
    rng = np.random.default_rng(7)
    steps = np.arange(PERIOD * (TRAIN + TEST))
    phase = 2 * np.pi * steps / PERIOD
    values = np.stack(
        [
            50 + 10 * n + (8 + n) * np.sin(phase + n) + 3 * rng.standard_normal(len(steps))
            for n in range(clients)
        ],
        axis=1,
    )
    if holes:
        values[: 2 * PERIOD, 1] = np.nan
        values[5 * PERIOD + 2 : 6 * PERIOD + 5, 2] = np.nan
    return Panel(
        values=values,
        ids=tuple(f"c{n}" for n in range(clients)),
        start=np.datetime64("2024-01-01T00:00:00", "s"),
        step=np.timedelta64(3600, "s"),
        coordinates=PLACES if clients == 3 else None,
    )


def job_of(method: str, panel: Panel, rounds: int = 2, **changes: Any) -> Job:
    base = {
        "method": method,
        "windows": {"period": PERIOD, "split": f"{TRAIN}/0/{TEST}"},
        "model": {"hidden": 8},
        "training": {"rounds": rounds},
    }
    settings = merge(merge(Settings(), base, "test"), changes, "test")
    return build(settings, Engine(threads=1), panel)


def trained(method: str, panel: Panel, rounds: int = 2, **changes: Any) -> Job:
    job = job_of(method, panel, rounds, **changes)
    job.loop.run()
    return job


def federation(job: Job, panel: Panel) -> oracle.Federation:
    """The same clients, start and choice of clients for the textbook."""
    network = job.method.facts.network
    first = {n: torch.from_numpy(v)[None] for n, v in network.initial(job.settings.seed).items()}
    places = panel.coordinates
    clients = [
        oracle.Client(
            id=client,
            values=panel.values[:, i],
            period=PERIOD,
            train=TRAIN,
            place=None if places is None else tuple(places[i]),
        )
        for i, client in enumerate(panel.ids)
    ]
    rounds = range(1, job.settings.training.rounds + 1)
    return oracle.Federation(
        clients=clients,
        start=network.tensors(first, 0),
        chosen=[[panel.ids.index(c) for c in job.loop.select(number)] for number in rounds],
        epochs=job.settings.training.local_epochs,
    )


def evaluated_models(job: Job) -> Parts:
    return job.site.models(job.loop.final_download())


def assert_same_models(job: Job, textbook: list[oracle.Model], fed: oracle.Federation) -> None:
    """Parameters and test forecasts of every client agree to 1e-5."""
    models = evaluated_models(job)
    forecast = job.site.forecast(models, "test")
    first, last = job.dataset.split.part("test")
    for i, (client, model) in enumerate(zip(fed.clients, textbook, strict=True)):
        named = job.method.facts.network.tensors(models, i)
        for name, value in model.named().items():
            close = torch.allclose(named[name].double(), value, rtol=0, atol=1e-5)
            assert close, (client.id, name, (named[name] - value).abs().max())
        np.testing.assert_allclose(forecast[i], client.predict(model, first, last), atol=1e-5)


def far_from_start(job: Job) -> float:
    start = job.method.facts.network.initial(job.settings.seed)
    models = evaluated_models(job)
    return max(float((models[n] - torch.from_numpy(start[n])).abs().max()) for n in MODEL)
