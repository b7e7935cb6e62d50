"""What a run remembers between forecasts: the values of its clients, in its own folder.

history.safetensors       the run's own values since the start of training; never changes
live/values.safetensors   the newest values, those of later forecasts included

The second file goes back as far as the first one is long, and at least six weeks or periods; older
values are dropped by whole weeks, and a summary of them stays (`Past`), so that a forecast does not
depend on when they were dropped. `relearn` is the first step whose values have changed since they
were learned. It is stored with the values, before anything is learned from them.
"""

from __future__ import annotations

import fcntl
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.data.clock import format_moment
from fuels.data.inputs import Adding, digest, since
from fuels.data.merging import Merged, listed, merge_panels
from fuels.data.panel import Panel
from fuels.data.screening import Screen, Screened
from fuels.errors import FuelsError
from fuels.experts.ensemble import Ensemble
from fuels.experts.history import WEEK_SECONDS, History, Past, newest_values, steps_since_value
from fuels.experts.personal_model import history_for
from fuels.experts.smoothing import Smoothing
from fuels.storage.checkpoint import prefixed, unprefixed
from fuels.storage.models import PersonalModels
from fuels.storage.panels import read_panel_file, save_panel

LIVE, VALUES = "live", "values.safetensors"
LEAST = 6  # weeks and periods that are remembered
SMOOTHING = Smoothing()


@dataclass
class Memory:
    """The newest values of all clients, from a start of a period on."""

    folder: Path
    models: PersonalModels
    panel: Panel  # the models' clients and any others
    length: int  # steps to remember
    past: Past | None = None  # of the values dropped before the panel
    relearn: np.datetime64 | None = None  # time of a step; None: all that was learned still holds
    outdated: bool = False  # whether the mixture of the run itself has learned other values
    screen: Screen | None = None  # of the values dropped before the panel, one row for each client
    plausible: Panel | None = None  # the panel without implausible values; None: all count

    @classmethod
    def begin(cls, folder: Path, models: PersonalModels, own: Panel) -> Memory:
        """Only the run's own values."""
        week = max(WEEK_SECONDS // own.step_seconds, 1)
        length = max(own.length, LEAST * max(week, models.period), models.sample.reach)
        return cls(folder, models, without_empty_end(own), length)

    @classmethod
    def load(cls, folder: Path, models: PersonalModels) -> Memory | None:
        """What earlier forecasts stored; None if there were none."""
        path = folder / LIVE / VALUES
        if not path.is_file():
            return None
        try:
            panel, arrays, facts = read_panel_file(path)
        except FuelsError as error:
            raise FuelsError(
                f"{error}; restore it from a backup, or start again from the values of the run"
                " with fuels forecast --forget"
            ) from None
        past = screen = None
        if arrays:
            screen = Screen.load(unprefixed("screen", arrays))
            states = unprefixed("smoothing", arrays)
            smoothing = {int(horizon): state for horizon, state in states.items()}
            past = Past(arrays["newest"], arrays["silent"], smoothing)
        relearn = np.datetime64(facts["relearn"], "s") if facts["relearn"] else None
        length, outdated = facts["length"], facts["outdated"]
        return cls(folder, models, panel, length, past, relearn, outdated, screen)

    def store(self) -> None:
        """Write everything, atomically; raises OSError."""
        arrays: dict[str, NDArray[Any]] = {}
        if self.past is not None:
            states = {str(h): state for h, state in self.past.smoothing.items()}
            arrays = {"newest": self.past.newest, "silent": self.past.silent}
            arrays |= prefixed("smoothing", states)
            arrays |= prefixed("screen", self._screen().arrays())
        relearn = None if self.relearn is None else str(self.relearn)
        (self.folder / LIVE).mkdir(exist_ok=True)
        path = self.folder / LIVE / VALUES
        facts = {"length": self.length, "relearn": relearn, "outdated": self.outdated}
        save_panel(path, self.panel, arrays, facts)

    def add(self, new: Panel, run: Ensemble | None = None) -> Merged:
        """Take in new values; those that change a step after training are to be learned again.

        `run` is the ensemble as the run left it.
        """
        merged = merge_panels(self.panel, new)
        self.panel = without_empty_end(merged.panel)
        own = [i for i, client in enumerate(merged.panel.ids) if client in set(self.models.ids)]
        again = merged.changed[:, own].any(axis=1) & merged.young
        times = merged.panel.times + self.panel.standard_offset
        if run is not None and (again := again & (times >= run.trained)).any():
            first = merged.panel.times[int(np.argmax(again))]
            self.relearn = first if self.relearn is None else min(first, self.relearn)
            learned = run.learned_until.values()
            self.outdated |= any(until > times[int(np.argmax(again))] for until in learned)
        return merged

    def take_inputs(self, add: Adding) -> bool:
        """Take in the external inputs that `add` adds to a panel; whether any are new."""
        before = digest(self.panel.inputs)
        self.panel = self.panel if add is None else add(self.panel)
        return digest(self.panel.inputs) != before

    @property
    def used(self) -> Panel:
        """The values that forecasts use."""
        return self.panel if self.plausible is None else self.plausible

    def screened(self, since: np.datetime64 | None, *, drop: bool) -> tuple[Screened, list[str]]:
        """What is said of all values since a time, by default of the last period; `drop` leaves the
        implausible values of the panel out, and returns notes about the new ones.

        A value is checked against all earlier ones, including dropped ones, and no later ones: the
        result is the same whenever it is checked.
        """
        newest = self.panel.times[-min(self.models.period, self.panel.length)]
        since = newest if since is None else since
        first = max(int((since - self.panel.start) // self.panel.step), 0)
        screened = self._screen().check(self.panel, whole_from=first)
        new, said = screened.since(since), list[str]()
        if drop:
            self.plausible = screened.removed(self.panel)
            if sentence := new.sentence():
                said.append(f"{sentence}; counted as missing (--implausible keep uses all)")
            if sentence := new.accepted():
                said.append(sentence)
        return new, said

    def _screen(self) -> Screen:
        """The screen at the start of the panel; clients that came later are new to it."""
        screen = Screen.begin(len(self.panel.ids), self.models.period)
        if self.screen is not None:
            known = len(self.screen.numbers)
            screen.profile[:known] = self.screen.profile
            screen.numbers[:known] = self.screen.numbers
        return screen

    def history(self) -> History:
        """The inputs of the experts."""
        return history_for(self.models, self.used, self.past)

    def trim(self, ensemble: Ensemble | None) -> bool:
        """Drop old values by whole weeks of whole periods; whether there were any."""
        week = max(WEEK_SECONDS // self.panel.step_seconds, 1)
        unit = math.lcm(week, self.models.period)
        offset = int(self.panel.phases(self.models.period)[0])
        drop = (self.panel.length + offset - self.length) // unit * unit - offset
        if drop <= 0:
            return False
        self.past = past_before(self.history(), drop + offset, ensemble)
        screen = self._screen()
        screen.check(replace(self.panel, values=self.panel.values[:drop]))
        values, start = self.panel.values[drop:], self.panel.times[drop]
        silent = np.isnan(values).all(axis=0) & (np.arange(values.shape[1]) >= len(self.models.ids))
        kept = [client for client, gone in zip(self.panel.ids, silent, strict=True) if not gone]
        self.screen = screen.take(~silent)
        inputs = since(self.panel.inputs, start)
        self.panel = replace(self.panel, values=values, start=start, inputs=inputs).select(kept)
        self.plausible = None
        return True


def past_before(history: History, end: int, ensemble: Ensemble | None) -> Past:
    """A summary of the steps before `end`, the start of a period."""
    observed, period = history.observed[:, :end], history.period
    before = np.full(history.clients, float(end)) if history.past is None else history.past.silent
    silent = steps_since_value(observed, before + 1)[:, -1]
    newest = newest_values(observed, period, history.past)[:, -period:]
    states = {}
    for horizon, fitted in ({} if ensemble is None else ensemble.horizons).items():
        pace = fitted.pool.learned[SMOOTHING.name]
        states[horizon] = SMOOTHING.state(pace, history, end, horizon)
    return Past(newest, silent, states)


def without_empty_end(panel: Panel) -> Panel:
    """The panel up to the last step with a value, if there is one."""
    steps = np.flatnonzero(~np.isnan(panel.values).all(axis=1))
    if not len(steps) or steps[-1] + 1 == panel.length:
        return panel
    return replace(panel, values=panel.values[: int(steps[-1]) + 1])


def up_to_last_value(new: Panel) -> tuple[Panel | None, list[str]]:
    """New data up to the last value, None without any, and a note if something was cut off."""
    cut = without_empty_end(new)
    if np.isnan(cut.values).all():
        return None, [f"{new.name}: there is no value"]
    if not (blank := new.length - cut.length):
        return cut, []
    end = format_moment(cut.times[-1], cut.timezone)
    steps = f"the last {blank} step{'s have' if blank > 1 else ' has'}"
    return cut, [f"{new.name}: {steps} no value; the data end at {end}"]


def missing_newest(models: PersonalModels, history: History) -> list[str]:
    """A note that names the clients whose newest value is missing."""
    missing = np.isnan(history.observed[:, -1])
    named = [client for client, gone in zip(models.ids, missing, strict=True) if gone]
    if not named:
        return []
    return [
        f"the newest value of {listed(named)} is missing; it is learned if it arrives within seven"
        " days"
    ]


@contextmanager
def held(models: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Let one forecast at a time use the folder of some models; the next ones wait.

    Without the file, or on a file system without locks, nothing is held.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            file = stack.enter_context(models.open("rb"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"another forecast of {models.parent} is running: waiting until it ends")
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
