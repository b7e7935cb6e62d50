"""States of an ensemble at earlier times, from which late values can be learned.

An ensemble learns step by step, and a value that arrives late changes all that was learned after
it. States are therefore kept at fixed times: the newest two starts of a day and two or three starts
of a week, so that there is always one from before the last seven days. `learn_up_to` passes these
times in order, with all horizons, so a state does not depend on how the steps were divided into
calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from fuels.data.merging import LATE
from fuels.errors import FuelsError
from fuels.experts.ensemble import Ensemble
from fuels.experts.history import History
from fuels.storage.checkpoint import facts_of, replace_state
from fuels.storage.models import PersonalModels

DAY, WEEK = np.timedelta64(1, "D"), np.timedelta64(7, "D")
EPOCH = np.datetime64(0, "s")
Time = np.datetime64


class States:
    """The states in one folder, each in a file named after the first step it has not learned."""

    def __init__(self, folder: Path, models: PersonalModels) -> None:
        self.folder, self.models = folder, models
        self.damaged: list[str] = []

    def times(self) -> list[Time]:
        names = (path.name for path in self.folder.glob("state-*.safetensors"))
        return sorted(Time(name[6:25].replace("_", ":"), "s") for name in names)

    def path(self, time: Time) -> Path:
        return self.folder / f"state-{str(time).replace(':', '_')}.safetensors"

    def newest(self, before: Time | None = None) -> Ensemble | None:
        """The newest readable state that has learned nothing from `before` on."""
        for time in reversed(self.times()):
            if before is None or time <= before:
                try:
                    return Ensemble.load(self.path(time), self.models)
                except FuelsError as error:
                    self.damaged.append(str(error))
        return None

    def keep(self, ensemble: Ensemble, time: Time, as_left: Ensemble | None) -> None:
        """Store the horizons that have learned exactly the steps before `time`.

        Those that the file, or the run itself, holds already stay. Raises OSError.
        """
        have = {h: (ensemble, f) for h, f in ensemble.horizons.items()}
        have = {h: pair for h, pair in have.items() if ensemble.learned_until[h] == time}
        path = self.path(time)
        known = self._horizons(path) if path.is_file() else set()
        known |= set() if as_left is None else set(as_left.horizons)
        if set(have) <= known:
            return
        stored = Ensemble.load(path, self.models) if path.is_file() else as_left
        if stored is not None:
            at = {h for h, until in stored.learned_until.items() if until == time}
            have = {h: (stored, stored.horizons[h]) for h in at} | have
        horizons = {h: fitted for h, (_, fitted) in have.items()}
        state = replace(ensemble, horizons=horizons, learned_until=dict.fromkeys(horizons, time))
        self.folder.mkdir(exist_ok=True)
        replace_state(path, *state.state())

    def drop(self, times: Iterable[Time]) -> None:
        for time in times:
            with suppress(OSError):
                self.path(time).unlink(missing_ok=True)

    @staticmethod
    def _horizons(path: Path) -> set[int]:
        try:
            return {int(horizon) for horizon in facts_of(path)["seen"]}
        except FuelsError:
            path.unlink(missing_ok=True)  # damaged: it is written again
            return set()


def begins(time: Time, step: np.timedelta64, span: np.timedelta64) -> bool:
    """Whether a step is the first of a day or week, counted from 1970."""
    return bool((time - EPOCH) // span != (time - step - EPOCH) // span)


def kept_times(end: Time, step: np.timedelta64) -> list[Time]:
    """The times of the states to keep when all steps before `end` are learned, in order.

    Starts of days and of weeks: all since the newest one that is older than a day or a week.
    """
    found: set[Time] = set()
    for span, age in ((DAY, DAY), (WEEK, LATE)):
        time = end
        while not (begins(time, step, span) and time <= end - age):
            if begins(time, step, span):
                found.add(time)
            time = time - step
        found.add(time)
    return sorted(found)


def learn_up_to(ensemble: Ensemble, history: History, time: Time) -> None:
    """Let every horizon learn the steps before a time."""
    last = int((time - history.start) // history.step)
    if not 0 < last <= history.length:
        return
    behind = [h for h, until in ensemble.learned_until.items() if until < time]
    if behind:
        for h, model in ensemble.model_forecasts(history, max(behind), last):
            if h in behind:
                ensemble.run(history, last, h, model, keep=False)
