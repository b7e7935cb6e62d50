"""A run that learns and forecasts as values arrive, without being loaded for every request.

All calls come from one thread, one after another, and hold the run's lock, so `fuels forecast` may
use the same run in between; the run is loaded again if it did. Values are on disk when `take`
returns. What they teach, and the new forecasts, follow with `refresh`; a kill in between loses
nothing, because the next start learns what is stored.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from fuels.config import Settings
from fuels.data.inputs import with_inputs
from fuels.data.merging import listed
from fuels.data.panel import Panel
from fuels.data.screening import drops_implausible
from fuels.errors import FuelsError
from fuels.experts.personal_model import Forecast, check_horizon
from fuels.forecasting.folder import LEARNED, located
from fuels.forecasting.issued import record
from fuels.forecasting.memory import LIVE, VALUES, held
from fuels.forecasting.saved_run import SavedRun
from fuels.monitoring.monitor import monitor
from fuels.storage.models import PersonalModels
from fuels.storage.run_folder import HISTORY


class NotStoredError(FuelsError):
    """Values could not be written to disk: they must be given again."""


class Accepted(BaseModel):
    """Values that are on disk now."""

    values: int
    clients: int
    notes: list[str] = Field(
        description="late, revised and implausible values, gaps, unknown clients"
    )


@dataclass
class Counts:
    """Since the start of this process."""

    posts: int = 0
    values: int = 0
    refused: int = 0
    forecasts: int = 0
    seconds: float = 0.0  # that the last forecast took


class LiveRun:
    """A run folder, its newest forecast, and the thread that may change them."""

    def __init__(
        self,
        path: Path,
        horizon: int,
        say: Callable[[str], None],
        adjust: Callable[[SavedRun], None] = lambda saved: None,
    ) -> None:
        """`adjust` changes how a run that was just loaded forecasts."""
        check_horizon(horizon)
        self.path, self.horizon, self.say, self.adjust = path, horizon, say, adjust
        self.folder, self.file = located(path)
        self.models: PersonalModels  # these two with the run
        self.settings: Settings
        self.latest: Forecast | None = None
        self.issued = 0.0  # when
        self.problem = ""  # why there is no newer forecast
        self.counts = Counts()
        self._saved: SavedRun | None = None
        self._seen: object = None  # the files that `_saved` was read from or wrote
        self._monitored: tuple[float, dict[str, Any] | None] = (-1.0, None)
        self._said: list[str] = []  # notes of the last forecast
        self._fresh = False
        self._lock = threading.Lock()  # for the promise that there is one call at a time
        with self._held():
            pass  # what cannot be loaded is refused now

    @property
    def fresh(self) -> bool:
        """Whether the newest forecast knows all values."""
        return self._fresh

    def take(self, new: Panel) -> Accepted:
        """Store new values; raises FuelsError if they cannot be used, and then changes nothing."""
        with self._lock, self._held() as saved:
            saved.notes, saved.unsaved, saved.stored = [], "", True
            count = int((new.values == new.values).sum())
            useful = saved.useful(new)
            known = new.inputs  # external inputs that came with the values
            memory = saved.take(useful, partial(with_inputs, found=known) if known else None)
            if not saved.stored:
                why = saved.unsaved or saved.notes[-1]
                raise NotStoredError(why.replace("with the next forecast", "later"))
            self._fresh = False
            if useful is not None:
                drop = drops_implausible(self.settings.data.implausible, saved.ensemble is not None)
                saved.notes += memory.screened(useful.start, drop=drop)[1]
            own = set(self.models.ids)
            if strangers := [client for client in new.ids if client not in own]:
                saved.notes.append(f"no model for {listed(strangers)}")
            self.counts.posts += 1
            self.counts.values += count
            return Accepted(values=count, clients=len(new.ids), notes=saved.notes)

    def refresh(self) -> None:
        """Learn what is stored and forecast again, if anything is new; a failure is kept as the
        problem of the run."""
        with self._lock:
            if self._fresh and self._stamp() == self._seen:
                return
            begun = time.perf_counter()
            try:
                with self._held() as saved:
                    saved.notes, saved.unsaved, saved.stored = [], "", True
                    made, notes = saved.forecast(None, self.horizon)
                    record(saved, made)
                    saved.fell_back = False  # what it learned now holds
            except FuelsError as error:
                self._saved, self.problem = None, str(error)
                self.say(f"no new forecast: {error}")
                return
            except Exception:  # the service goes on, and says so
                self._saved, self.problem = None, "an internal error: see the log of the server"
                self.say(traceback.format_exc())
                return
            for note in notes:
                if note not in self._said:
                    self.say(f"note: {note}")
            self._said = notes
            self.latest, self.issued, self._fresh = made, time.time(), True
            self.problem = saved.unsaved
            self.counts.forecasts += 1
            self.counts.seconds = time.perf_counter() - begun

    def monitored(self) -> dict[str, Any] | None:
        """What `fuels monitor` says, worked out once for each forecast; None if it cannot."""
        when, found = self._monitored
        if when != self.issued:
            try:
                found = monitor(self.path)
            except FuelsError:
                found = None
            self._monitored = self.issued, found
        return found

    @contextmanager
    def _held(self) -> Iterator[SavedRun]:
        """The run as it is on disk, while no other process changes it."""
        with held(self.file, self.say):
            if self._saved is None or self._stamp() != self._seen:
                self._saved, self._fresh = SavedRun.load(self.path), False
                self.adjust(self._saved)
                # A link to the newest run may lead to another one now.
                self.models, self.settings = self._saved.models, self._saved.settings
            try:
                yield self._saved
            except FuelsError:
                raise
            except BaseException:
                self._saved = None  # who knows in which state
                raise
            finally:
                self._seen = self._stamp()

    def _stamp(self) -> list[tuple[int, int] | None]:
        """Changes with every change of the files that matter."""
        found: list[tuple[int, int] | None] = []
        for name in (LEARNED, f"{LIVE}/{VALUES}", HISTORY, self.file.name):
            try:
                about = (self.folder / name).stat()
            except OSError:
                found.append(None)
            else:
                found.append((about.st_mtime_ns, about.st_ino))
        return found
