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

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.data.panel import Panel
from fuels.errors import FuelsError
from fuels.experts.history import Floats, History, make_history
from fuels.experts.intervals import Bands
from fuels.experts.online import Online, Past, first_honest, fresh, start
from fuels.experts.personal_model import (
    Forecast,
    ahead,
    check_horizon,
    fitting,
    in_unit,
    matching,
    one_after_another,
)
from fuels.experts.pool import Pool
from fuels.storage.checkpoint import load_state, prefixed, save_state, unprefixed
from fuels.storage.models import PersonalModels

FORMAT = 4
LEVELS = (80.0, 95.0)

Own = Callable[[int, int], Floats]  # the model's forecasts of steps first..last-1, [client, step]


@dataclass
class Mixing:
    """Mixtures of some clients, one for each horizon."""

    models: PersonalModels
    title: str  # of the model among the experts
    since: np.datetime64  # local standard time of the first step of the training part
    trained: np.datetime64  # and of the first one after it
    levels: tuple[float, ...] = LEVELS
    online: dict[int, Online] = field(default_factory=dict)  # by horizon
    seen: dict[int, np.datetime64] = field(default_factory=dict)  # time of the first step not seen

    @property
    def pool(self) -> Pool:
        return Pool(calendar=self.models.calendar)

    def run(
        self,
        history: History,
        last: int | None = None,
        horizon: int = 1,
        own: Own | None = None,
    ) -> Past | None:
        """Forecast and learn the steps not seen yet, up to `last`; None where there are none.

        `own` tells the model's forecasts where they are known already.
        """
        online = self._online(history, horizon)
        last = history.length if last is None else last
        first = self._step(history, self.seen[horizon])
        if first < 0:  # the data begin later: what lies between was never seen
            online.skip(-first)
            first = 0
        if first >= last:
            return None
        own = own or self._own(history, horizon)
        past = online.run(history, first, last, {self.title: own(first, last)})
        self.seen[horizon] = history.times(last, last + 1)[0]
        return past

    def next(
        self, history: History, horizon: int = 1, own: Own | None = None
    ) -> tuple[Floats, Floats, Bands]:
        """The value `horizon` steps after the history's last one: [client], weights, intervals."""
        newest = history.times(history.length - 1, history.length)[0]
        if self.untrained(history):
            raise FuelsError(
                f"the data end with {newest} (standard time), before the end of the training at"
                f" {self.trained}: the experts have seen what is to come"
            )
        if self.knows_beyond(history, horizon):
            raise FuelsError(
                f"the data end with {newest} (standard time), and the experts have learned from"
                " later ones: what they would say knows its future"
            )
        own = own or self._own(history, horizon)
        self.run(history, horizon=horizon, own=own)
        target = history.length + horizon - 1
        return self.online[horizon].next(history, {self.title: own(target, target + 1)})

    def each(self, history: History, horizon: int, last: int) -> Iterator[tuple[int, Own]]:
        """The model's forecasts of steps before `last` and beyond, 1 to `horizon` steps ahead.

        They are one chain: each horizon goes on from the one before.
        """
        ahead = range(1, horizon + 1)
        seen = (self._step(history, self.seen.get(h, self._first(h, history.step))) for h in ahead)
        start = min(max(first, 0) - (h - 1) for h, first in zip(ahead, seen, strict=True))
        start = min(start, last - 1)
        chain = one_after_another(self.models, history, start, last)
        for h, said in zip(ahead, chain, strict=False):
            yield h, partial(_part, said, start + h - 1)

    def history(self, panel: Panel) -> History:
        """The history of a panel from the start of the training on: what lies before does not
        count, so that a forecast does not depend on how far back the data reach."""
        before = int((self.since - panel.start - panel.standard_offset) // panel.step)
        if 0 < before < panel.length:
            panel = replace(panel, values=panel.values[before:], start=panel.times[before])
        return history_for(self.models, panel)

    def knows_beyond(self, history: History, horizon: int) -> bool:
        """Whether a mixture up to this horizon has learned from steps after those of a history."""
        return any(
            self._step(history, time) > history.length and time > self._first(h, history.step)
            for h, time in self.seen.items()
            if h <= horizon
        )

    def anew(self) -> Mixing:
        """The same before it had learned anything."""
        return replace(self, online={}, seen={})

    def drop_unfit(self, history: History, horizons: Collection[int]) -> None:
        """Forget the experts just fitted for some horizons if of one client nothing was known.

        It would be without them for good: experts are fitted once.
        """
        training = history.observed[:, : max(self._step(history, self.trained), 0)]
        if np.isnan(training).all(axis=1).any():
            for horizon in horizons:
                del self.online[horizon], self.seen[horizon]

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
            "since": str(self.since),
            "trained": str(self.trained),
            "levels": list(self.levels),
            "seen": {str(horizon): str(time) for horizon, time in self.seen.items()},
        }
        save_state(path, arrays, facts)

    @classmethod
    def load(cls, path: Path, models: PersonalModels) -> Mixing:
        arrays, facts = load_state(path)
        if facts.get("format") != FORMAT:
            raise FuelsError(
                f"{path}: a mixture of format {facts.get('format')}, of another version of fuels"
                f" (this one reads {FORMAT}); train again: fuels run --config"
                f" {path.parent / 'config.toml'}"
            )
        if tuple(facts["ids"]) != models.ids:
            raise FuelsError(f"{path}: not the mixture of these models")
        since, trained = (np.datetime64(facts[name]) for name in ("since", "trained"))
        mixing = cls(models, facts["title"], since, trained, tuple(facts["levels"]))
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
            if history.start > self.since or end > history.length:
                raise FuelsError(
                    f"experts for {horizon} steps ahead have yet to be fitted, which needs the data"
                    f" of the training, from {self.since} to {self.trained}: give a file that holds"
                    " them too, or train with as many steps (--horizon) as are to be forecast"
                )
            self.online[horizon] = start(
                self.pool, history, end, horizon=horizon, levels=self.levels, guests=[self.title]
            )
            self.seen[horizon] = self._first(horizon, history.step)
        return self.online[horizon]

    def _own(self, history: History, horizon: int) -> Own:
        """The model's forecasts, each made `horizon` steps before."""
        before = horizon - 1

        def said(first: int, last: int) -> Floats:
            made = ahead(self.models, history, first - before, last - before, horizon)
            return made[:, :, before]

        return said

    def _first(self, horizon: int, step: np.timedelta64) -> np.datetime64:
        """The time of the first step after training that counts `horizon` steps ahead."""
        return self.trained + first_honest(0, horizon) * step

    def _step(self, history: History, time: np.datetime64) -> int:
        return int((time - history.start) // history.step)


def _part(said: Floats, start: int, first: int, last: int) -> Floats:
    """Steps first..last-1 of forecasts that begin with step `start`."""
    return said[:, first - start : last - start]


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
    return Mixing(models, title, history.start, trained, tuple(float(level) for level in levels))


def forecast_mixed(
    mixing: Mixing,
    panel: Panel,
    horizon: int = 1,
    done: Callable[[int], None] = lambda steps: None,
    history: History | None = None,
) -> Forecast:
    """The `horizon` values after the end of the panel with their intervals; learns on the way.

    `done` is told after each step ahead how many are made. Where more is known than the panel
    holds, `history` tells it, up to the same end; the panel's clients are those that are forecast.
    """
    check_horizon(horizon)
    panel = fitting(mixing.models, panel)
    known = matching(mixing.models, panel)
    history = mixing.history(panel) if history is None else history
    made = []
    for h, own in mixing.each(history, horizon, history.length + 1):
        made.append(mixing.next(history, h, own))
        done(len(made))
    warn_of_silence(mixing.models, history, known)
    rows = [i for i, client in enumerate(mixing.models.ids) if client in set(known)]
    values = np.stack([value[rows] for value, _, _ in made], axis=1)
    lower = np.concatenate([bands.lower[:, rows] for _, _, bands in made], axis=2)
    upper = np.concatenate([bands.upper[:, rows] for _, _, bands in made], axis=2)
    return in_unit(mixing.models.take(known), panel, values, mixing.levels, (lower, upper))


def warn_of_silence(models: PersonalModels, history: History, known: Sequence[str]) -> None:
    """One warning with the clients of whose last period no value is known."""
    last = history.observed[:, -models.period :]
    silent = [c for c, row in zip(models.ids, last, strict=True) if np.isnan(row).all()]
    named = [client for client in silent if client in set(known)]
    if named:
        warnings.warn(
            f"nothing is known of the last {models.period} steps of {len(named)} clients, whose"
            f" forecasts rest on what was before: {', '.join(named[:5])}",
            stacklevel=3,
        )


def history_for(models: PersonalModels, panel: Panel) -> History:
    """The history of the models' clients in a panel; those it does not have are unknown."""
    column = {client: i for i, client in enumerate(panel.ids)}
    values = np.full((panel.length, len(models.ids)), np.nan)
    for i, client in enumerate(models.ids):
        if client in column:
            values[:, i] = panel.values[:, column[client]]
    aligned = replace(panel, values=values, ids=models.ids, coordinates=None)
    return make_history(aligned, models.period, models.mean, models.std)
