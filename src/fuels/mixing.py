"""The personal model among local experts: their online mixture, kept from call to call.

    mixing = begin(models, history, end, title="FUELS")   # experts learn from the steps before end
    past = mixing.run(history)                            # all steps since whose truth is known
    value, weights, bands = mixing.next(history, horizon) # after the end of the history

The model is one expert (a guest) beside those of experts/pool.py. It has seen the training part, so
it sleeps there and is awake from `end` on. There is one mixture for each horizon, made when it is
first asked for. Everything is local: nothing of it travels.

Steps are told apart by their time, so a mixture that was saved goes on with whatever data come
next, provided they reach back as far as the windows; steps it never saw are passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.data.panel import Panel
from fuels.errors import FuelsError
from fuels.experts.history import Floats, History, make_history
from fuels.experts.intervals import Bands
from fuels.experts.online import Online, Past, fresh, start
from fuels.experts.pool import Pool
from fuels.federation.checkpoint import load_state, prefixed, save_state, unprefixed
from fuels.forecast import Forecast, ahead, check_horizon, in_unit, matching
from fuels.models import PersonalModels

FORMAT = 1
LEVELS = (80.0, 95.0)


@dataclass
class Mixing:
    """Mixtures of some clients, one for each horizon."""

    models: PersonalModels
    title: str  # of the model among the experts
    trained: np.datetime64  # local standard time of the first step after the training part
    levels: tuple[float, ...] = LEVELS
    online: dict[int, Online] = field(default_factory=dict)  # by horizon
    seen: dict[int, np.datetime64] = field(default_factory=dict)  # time of the first step not seen

    @property
    def names(self) -> tuple[str, ...]:
        return (*(expert.name for expert in self.pool.experts), self.title)

    @property
    def pool(self) -> Pool:
        return Pool(calendar=self.models.calendar)

    def run(self, history: History, last: int | None = None, horizon: int = 1) -> Past | None:
        """Forecast and learn the steps not seen yet, up to `last`; None where there are none."""
        online = self._online(history, horizon)
        last = history.length if last is None else last
        first = self._step(history, self.seen[horizon])
        if first < 0:  # the data begin later: what lies between was never seen
            online.skip(-first)
            first = 0
        if first >= last:
            return None
        own = self._own(history, first, last, horizon)
        past = online.run(history, first, last, {self.title: own})
        self.seen[horizon] = history.times(last, last + 1)[0]
        return past

    def next(self, history: History, horizon: int = 1) -> tuple[Floats, Floats, Bands]:
        """The value `horizon` steps after the history's last one: [client], weights, intervals."""
        if self.untrained(history):
            raise FuelsError(
                f"the data end at {history.times(history.length, history.length + 1)[0]}, before"
                f" the end of the training at {self.trained}: the experts have seen what is to come"
            )
        self.run(history, horizon=horizon)
        target = history.length + horizon - 1
        own = self._own(history, target, target + 1, horizon)
        return self.online[horizon].next(history, {self.title: own})

    def untrained(self, history: History) -> bool:
        """Whether a history ends before the training did."""
        return self._step(history, self.trained) > history.length

    # -- on disk -------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Everything but the models, which have a file of their own."""
        arrays: dict[str, NDArray[Any]] = {}
        for horizon, online in self.online.items():
            arrays |= prefixed(f"{horizon}.online", online.arrays())
            arrays |= prefixed(f"{horizon}.pool", online.pool.arrays())
        facts = {
            "format": FORMAT,
            "ids": list(self.models.ids),
            "title": self.title,
            "trained": str(self.trained),
            "levels": list(self.levels),
            "seen": {str(horizon): str(time) for horizon, time in self.seen.items()},
        }
        save_state(path, arrays, facts)

    @classmethod
    def load(cls, path: Path, models: PersonalModels) -> Mixing:
        arrays, facts = load_state(path)
        if facts.get("format") != FORMAT or tuple(facts["ids"]) != models.ids:
            raise FuelsError(f"{path}: not the mixture of these models")
        trained = np.datetime64(facts["trained"])
        mixing = cls(models, facts["title"], trained, tuple(facts["levels"]))
        clients = len(models.ids)
        for text, time in facts["seen"].items():
            horizon = int(text)
            fitted = mixing.pool.load(unprefixed(f"{text}.pool", arrays), clients)
            online = fresh(fitted, models.period, horizon, mixing.levels, [mixing.title])
            online.load(unprefixed(f"{text}.online", arrays))
            mixing.online[horizon], mixing.seen[horizon] = online, np.datetime64(time)
        return mixing

    # -- inside --------------------------------------------------------------------------------

    def _online(self, history: History, horizon: int) -> Online:
        """The mixture of a horizon, which learns from the training part when first asked for."""
        if horizon not in self.online:
            end = self._step(history, self.trained)
            if not 0 < end <= history.length:
                raise FuelsError(
                    f"experts {horizon} steps ahead have yet to be fitted, which needs data from"
                    f" before {self.trained}, as the training had"
                )
            self.online[horizon] = start(
                self.pool, history, end, horizon=horizon, levels=self.levels, guests=[self.title]
            )
            self.seen[horizon] = self.trained
        return self.online[horizon]

    def _own(self, history: History, first: int, last: int, horizon: int) -> Floats:
        """The model's forecasts of steps first..last-1, each made `horizon` steps before."""
        before = horizon - 1
        return ahead(self.models, history, first - before, last - before, horizon)[:, :, before]

    def _step(self, history: History, time: np.datetime64) -> int:
        return int((time - history.start) // history.step)


def begin(
    models: PersonalModels,
    history: History,
    end: int,
    *,
    title: str,
    levels: Sequence[float] = LEVELS,
) -> Mixing:
    """A mixture whose experts learn from the steps of a history before `end`."""
    trained = history.times(end, end + 1)[0]
    return Mixing(models, title, trained, tuple(float(level) for level in levels))


def forecast_mixed(mixing: Mixing, panel: Panel, horizon: int = 1) -> Forecast:
    """The `horizon` values after the end of the panel with their intervals; learns on the way."""
    check_horizon(horizon)
    known = matching(mixing.models, panel)
    history = history_for(mixing.models, panel)
    made = [mixing.next(history, h) for h in range(1, horizon + 1)]
    rows = [i for i, client in enumerate(mixing.models.ids) if client in set(known)]
    values = np.stack([value[rows] for value, _, _ in made], axis=1)
    lower = np.concatenate([bands.lower[:, rows] for _, _, bands in made], axis=2)
    upper = np.concatenate([bands.upper[:, rows] for _, _, bands in made], axis=2)
    return in_unit(mixing.models.take(known), panel, values, mixing.levels, (lower, upper))


def history_for(models: PersonalModels, panel: Panel) -> History:
    """The history of the models' clients in a panel; those it does not have are unknown."""
    column = {client: i for i, client in enumerate(panel.ids)}
    values = np.full((panel.length, len(models.ids)), np.nan)
    for i, client in enumerate(models.ids):
        if client in column:
            values[:, i] = panel.values[:, column[client]]
    aligned = replace(panel, values=values, ids=models.ids, coordinates=None)
    return make_history(aligned, models.period, models.mean, models.std)
