"""Small federations for the tests of experiments that look inside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fuels.config import Engine, Settings, merge
from fuels.data.panel import Panel
from fuels.data.writers import write_panel
from fuels.research.experiments.base import Context, Experiment
from fuels.research.study.store import Store
from fuels.runs.build import Job, build
from helpers.panels import make_panel

PERIOD = 6
ENGINE = Engine(threads=1)


def small_panel(clients: int = 6, places: bool = True) -> Panel:
    panel = make_panel(clients=clients, days=16, period=PERIOD)
    grid = np.array([[9.0 + 0.01 * (i % 3), 45.0 + 0.01 * (i // 3)] for i in range(clients)])
    return replace(panel, coordinates=grid) if places else panel


def context_of(
    experiment: Experiment,
    folder: Path,
    panel: Panel,
    rounds: int = 3,
    options: dict[str, str] | None = None,
    method_options: dict[str, str] | None = None,
    **training: Any,
) -> Context:
    source = folder / "panel.parquet"
    if not source.exists():
        write_panel(panel, source)
    return Context(
        sources=(str(source),),
        clients=0,
        rounds=rounds,
        out=folder / "out",
        changes={
            "windows": {"period": PERIOD, "split": "12/0/4"},
            "model": {"hidden": 2},
            "training": training,
        },
        method_options=method_options or {},
        engine=ENGINE,
        store=Store(folder / "store"),
        options=experiment.own_options(options or {}),
    )


def job_of(method: str, rounds: int = 2, clients: int = 5, **changes: Any) -> Job:
    base = {
        "method": method,
        "windows": {"period": PERIOD, "split": "12/0/4"},
        "model": {"hidden": 2},
        "training": {"rounds": rounds},
    }
    settings = merge(merge(Settings(), base, "test"), changes, "test")
    return build(settings, ENGINE, small_panel(clients))
