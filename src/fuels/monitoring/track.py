"""What a run forecast and what happened: its past forecasts next to the values that came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import cached_property
from pathlib import Path

import numpy as np

from fuels.arrays import Floats
from fuels.config import Settings
from fuels.data.clock import format_moment
from fuels.data.inputs import values_at
from fuels.data.panel import Panel
from fuels.errors import FuelsError
from fuels.evaluation.series import read_series
from fuels.experts.history import WEEK_SECONDS
from fuels.forecasting.folder import CONFIG, located
from fuels.forecasting.issued import Issued, read_issued
from fuels.forecasting.memory import Memory
from fuels.methods.registry import find_method
from fuels.storage.config_file import read_config
from fuels.storage.models import PersonalModels, load_models
from fuels.storage.panels import read_panel_file
from fuels.storage.run_folder import HISTORY, RunFolder


@dataclass(frozen=True)
class Part:
    """Some steps: what happened, and the forecasts of these steps, in the data's unit."""

    times: np.ndarray  # [step]
    actual: Floats  # [client, step]; NaN where missing
    bounds: Floats  # [bound, client, step]: one step ahead, and its intervals
    references: dict[str, Floats]  # by name, like `actual`; empty if nothing before is known
    phase: int  # of the first step

    def last(self, steps: int) -> Part:
        """The newest steps."""
        cut = slice(max(len(self.times) - steps, 0), None)
        references = {name: values[:, cut] for name, values in self.references.items()}
        parts = (self.times[cut], self.actual[:, cut], self.bounds[:, :, cut])
        return Part(*parts, references, self.phase)


@dataclass(frozen=True)
class Track:
    """The record of a run: its test part, and what it has forecast since."""

    folder: Path
    models: PersonalModels
    settings: Settings
    own: Panel | None  # the run's own values
    known: Panel  # the newest values, those of the run included as far back as they are kept
    issued: Issued

    @classmethod
    def read(cls, path: Path) -> Track:
        """From a run folder; refuses one that has not forecast anything."""
        folder, found = located(path)
        models, issued = load_models(found), read_issued(folder)
        if issued is None:
            raise FuelsError(
                f"{folder}: no past forecasts to compare with what happened; fuels forecast and"
                " fuels serve keep those that they make from now on"
            )
        if not set(issued.ids) & set(models.ids):
            raise FuelsError(f"{folder}: the past forecasts belong to other clients")
        config, history = folder / CONFIG, folder / HISTORY
        settings = read_config(config)[0] if config.is_file() else Settings()
        own = read_panel_file(history)[0] if history.is_file() else None
        memory = Memory.load(folder, models)
        known = own if memory is None else memory.panel
        if known is None:
            raise FuelsError(f"{folder}: no values to compare the past forecasts with")
        return cls(folder, models, settings, own, known, issued)

    @property
    def title(self) -> str:
        return find_method(self.settings.method).title

    @property
    def levels(self) -> list[str]:
        """The levels of the intervals, as in the names of columns."""
        return [f"{level:g}" for level in self.issued.levels]

    def moment(self, time: np.datetime64) -> str:
        """A time as people read it."""
        return format_moment(time, self.known.timezone)

    @property
    def day(self) -> int:
        """Steps of a day."""
        return max(86400 // self.models.step_seconds, 1)

    @property
    def week(self) -> int:
        """Steps of a week, in whole periods."""
        period = self.models.period
        return max(round(WEEK_SECONDS / self.models.step_seconds / period), 1) * period

    @cached_property
    def live(self) -> Part:
        """The steps since the first forecast that is kept, up to the newest value."""
        known, first = self.known, self.first
        bounds = np.stack([self.ahead(1, bound) for bound in range(self.issued.made.shape[1])])
        references = self._references(known, first, known.length)
        phase = int(known.phases(self.models.period)[first]) if first < known.length else 0
        actual = _rows(known, self.models.ids)[:, first:]
        return Part(known.times[first:], actual, bounds, references, phase)

    @property
    def first(self) -> int:
        """The first live step, counted from the start of the known values."""
        first = int((self.issued.cutoffs[0] - self.known.start) // self.known.step) + 1
        return min(max(first, 0), self.known.length)

    def ahead(self, steps: int, bound: int = 0) -> Floats:
        """The forecasts of the live steps made `steps` ahead, [client, step]."""
        issued, known, first = self.issued, self.known, self.first
        found = np.full((len(self.models.ids), known.length - first), np.nan)
        at = ((issued.cutoffs - known.start) // known.step).astype(np.int64) + steps - first
        inside = (at >= 0) & (at < found.shape[1])
        position = {client: i for i, client in enumerate(issued.ids)}
        rows = [i for i, client in enumerate(self.models.ids) if client in position]
        columns = [position[self.models.ids[i]] for i in rows]
        made = issued.made[inside, bound][:, columns, steps - 1]
        found[np.array(rows, dtype=np.int64)[:, None], at[inside]] = made.T
        return found

    @cached_property
    def test(self) -> Part | None:
        """The test part of the run; None if it had none."""
        series, ids = read_series(RunFolder(self.folder).forecasts), self.models.ids
        if series is None or {*series.ids} != {*ids} or not {*self.levels} <= {*series.levels}:
            return None
        rows = [series.ids.index(client) for client in ids]
        places = [series.levels.index(level) for level in self.levels]
        bounds = [series.forecast[None], series.lower[places], series.upper[places]]
        moments = [
            time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time
            for time in series.times
        ]
        times, steps = np.array(moments, dtype="datetime64[s]"), len(moments)
        references: dict[str, Floats] = {}
        if self.own is not None:
            first = int((times[0] - self.own.start) // self.own.step)
            if 0 < first <= self.own.length - steps:
                references = self._references(self.own, first, first + steps)
        return Part(times, series.actual[rows], np.concatenate(bounds)[:, rows], references, 0)

    def _references(self, panel: Panel, first: int, last: int) -> dict[str, Floats]:
        """Naive forecasts of the steps first..last-1 of a panel, as evaluation/references.py."""
        values, found = _rows(panel, self.models.ids), dict[str, Floats]()
        period, week = self.models.period, self.week
        lags = {"last value": 1, "one period ago": period}
        lags |= {"one week ago": week} if week != period else {}
        newest = lagged(values, 1)
        for name, lag in lags.items():
            if lag <= first:
                earlier = lagged(values, lag)
                found[name] = np.where(np.isnan(earlier), newest, earlier)[:, first:last]
        return found

    def changes(self) -> tuple[Floats, Floats] | None:
        """How much values differ from those one week before, [client, step]: in the run's own
        data, and since the first forecast; of one period before if the run has few weeks.

        None if the run does not hold its own data.
        """
        if self.own is None:
            return None
        lag = self.lag
        known, own = _rows(self.known, self.models.ids), _rows(self.own, self.models.ids)
        begin = -int(self.own.phases(self.models.period)[0]) % self.models.period
        usual = np.abs(own - lagged(own, lag))[:, begin + lag :]
        now = np.abs(known - lagged(known, lag))
        return usual, now[:, known.shape[1] - len(self.live.times) :]

    @property
    def lag(self) -> int:
        """One week, or one period if the run has less than three weeks of data."""
        length = 0 if self.own is None else self.own.length
        return self.week if length >= 3 * self.week else self.models.period


def _rows(panel: Panel, ids: Sequence[str]) -> Floats:
    """The values of these clients, [client, step]."""
    return values_at(panel, ids, panel.start, panel.length)


def lagged(values: Floats, lag: int) -> Floats:
    """The values `lag` steps earlier, NaN before the first."""
    found = np.full(values.shape, np.nan)
    found[:, lag:] = values[:, :-lag]
    return found
