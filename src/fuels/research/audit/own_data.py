"""The series that an attacker trains on to learn what an upload says about a day: its own.

Hourly runs are attacked with cells of the embedded synthetic city, other runs with invented daily
profiles. Neither holds any of the clients' data.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fuels.arrays import Floats
from fuels.data.calendar import weekday
from fuels.data.panel import Panel
from fuels.data.synthetic import synthesise
from fuels.data.windows import Dataset, prepare
from fuels.runs.settings import ResolvedSettings

SEED = 1001  # no run reads this synthetic city
HARMONICS, NOISE, MEMORY = 4, 0.15, 0.8  # of invented profiles, and of what varies around them


def own_dataset(settings: ResolvedSettings, panel: Panel, clients: int) -> Dataset:
    """The attacker's clients, prepared as the run's are, at the same times."""
    period = settings.windows.period
    hourly = period == 24 and panel.step == np.timedelta64(3600, "s")
    values = synthetic_city(panel, clients) if hourly else invented(panel, clients, period)
    own = replace(
        panel,
        values=values,
        ids=tuple(f"own-{number:03d}" for number in range(clients)),
        coordinates=None,
        name="the attacker's own data",
    )
    return prepare(
        own,
        settings.sample,
        holidays=settings.windows.holidays,
        split=settings.windows.split,
        seed=settings.seed,
        max_gap=settings.windows.max_gap,
    )


def first_weekday(panel: Panel) -> int:
    return int(weekday(panel.times[:1] + panel.standard_offset)[0])


def synthetic_city(panel: Panel, clients: int) -> Floats:
    """Cells of the synthetic city, with the hours and the weekdays of the panel."""
    days = -(-panel.length // 24) + 8
    city = synthesise("net", clients=clients, days=days, seed=SEED)
    first = 24 * ((first_weekday(panel) - first_weekday(city)) % 7) + int(panel.phases(24)[0])
    return city.values[first : first + panel.length]


def invented(panel: Panel, clients: int, period: int) -> Floats:
    """Smooth random profiles whose level changes from period to period, with noise."""
    rng = np.random.default_rng(SEED)
    phases, steps = panel.phases(period), np.arange(period)
    values = np.empty((panel.length, clients))
    for client in range(clients):
        profile = np.zeros(period)
        for h in range(1, HARMONICS + 1):
            turn = 2 * np.pi * (h * steps / period + rng.uniform())
            profile += rng.normal() / h * np.cos(turn)
        level = np.exp(0.2 * rng.normal(size=panel.length // period + 2)).repeat(period)
        drift, noise = 0.0, NOISE * rng.normal(size=panel.length)
        for t in range(panel.length):
            drift = MEMORY * drift + noise[t]
            noise[t] = drift
        values[:, client] = 10 + level[: panel.length] * profile[phases] / profile.std() + noise
    return values
