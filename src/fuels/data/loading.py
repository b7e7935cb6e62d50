"""From settings to data: the panel that they name, and the dataset prepared from it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

from fuels.config import Settings
from fuels.data.newcomers import LEAST as NEW_LEAST
from fuels.data.newcomers import shortened
from fuels.data.panel import Panel
from fuels.data.periodicity import find_cycle
from fuels.data.readers import read_panel
from fuels.data.sample import sample_of
from fuels.data.synthetic import synthesise
from fuels.data.windows import Dataset, prepare

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
