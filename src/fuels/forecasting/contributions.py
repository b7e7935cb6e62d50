"""What the clients of a finished run contribute to the live mean: their newest plausible values.

    clients = LiveClients(folder)
    clients.newest()                      # time of the newest step with a value, UTC
    clients.at(time)                      # normalised and clipped [client], NaN where there is none

The values are those that the run remembers: its own, and those given to `fuels forecast`. A value
that screening calls implausible is not contributed, whatever the run's forecasts make of it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fuels.arrays import Floats
from fuels.data.panel import Panel
from fuels.forecasting.folder import located
from fuels.forecasting.memory import LIVE, VALUES, Memory
from fuels.forecasting.saved_run import SavedRun
from fuels.sharing.live_mean import CLIP
from fuels.storage.run_folder import HISTORY


class LiveClients:
    """The clients of a run folder; values are read again when the run has learned of new ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        located(folder)  # refuses a run that is not finished
        self.saved = SavedRun.load(folder)
        self.read: tuple[float, ...] = ()
        self._look()

    @property
    def ids(self) -> tuple[str, ...]:
        return self.saved.models.ids

    @property
    def shares_live_mean(self) -> bool:
        """Whether the run has experts that use a live mean."""
        ensemble = self.saved.ensemble
        return ensemble is not None and ensemble.sharing is not None and ensemble.sharing.live_mean

    @property
    def guaranteed(self) -> bool:
        """Whether the run promises noise on everything that it shares."""
        return self.saved.settings.privacy.epsilon > 0

    def newest(self) -> np.datetime64 | None:
        """The newest step with a plausible value of any client; None without any."""
        self._look()
        known = np.flatnonzero(~np.isnan(self.values).all(axis=1))
        return None if not len(known) else self.panel.times[known[-1]]

    def at(self, time: np.datetime64) -> Floats:
        """What each client contributes at a time, [client]; NaN: nothing."""
        self._look()
        step = int((time - self.panel.start) // self.panel.step)
        if not 0 <= step < self.panel.length or self.panel.times[step] != time:
            return np.full(len(self.ids), np.nan)
        result: Floats = np.clip(self.values[step], -CLIP, CLIP)
        return result

    def _look(self) -> None:
        files = (self.folder / LIVE / VALUES, self.folder / HISTORY)
        stamps = tuple(file.stat().st_mtime_ns if file.is_file() else 0.0 for file in files)
        if stamps == self.read:
            return
        self.read = stamps
        memory: Memory = self.saved.memory()
        # Whether a value is plausible depends on others, which a guarantee does not cover.
        memory.screened(None, drop=not self.guaranteed)
        self.panel: Panel = memory.used.select(self.ids)
        models = self.saved.models
        self.values: Floats = (self.panel.values - models.mean) / models.std  # [step, client]
