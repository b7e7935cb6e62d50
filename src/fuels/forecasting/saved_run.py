"""Forecasts from a saved run: its models, its ensemble, its values, and what came since.

The files of the run never change. Later values, and what the mixtures learn from them, go into
live/ and learned.safetensors in its folder (memory.py, states.py). A killed forecast loses nothing:
values are stored before they are learned, and files are replaced as a whole. What is learned does
not depend on the calls that brought the values, unless one is more than seven days late.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fuels.config import Data, Mixture, Settings
from fuels.data.clock import format_moment
from fuels.data.inputs import Adding, missing_notes
from fuels.data.joining import add_unknown_clients, describe_gap
from fuels.data.loading import load_panel
from fuels.data.merging import listed
from fuels.data.panel import Panel
from fuels.data.screening import Screened, drops_implausible
from fuels.errors import FuelsError
from fuels.experts.ensemble import Ensemble, forecast_ensemble
from fuels.experts.history import History
from fuels.experts.personal_model import Forecast, clients_with_model, forecast, on_model_clock
from fuels.experts.unseen import can_be_forecast, forecast_unseen, together
from fuels.forecasting.anomalies import without_implausible
from fuels.forecasting.folder import CONFIG, LEARNED, MIXTURE, RECENT, clear, located
from fuels.forecasting.memory import LIVE, VALUES, Memory, missing_newest, up_to_last_value
from fuels.forecasting.states import States, Time, kept_times, learn_up_to
from fuels.forecasting.waiting import await_mean
from fuels.sharing.received import ReceivedMean
from fuels.storage.checkpoint import replace_state
from fuels.storage.config_file import read_config
from fuels.storage.models import PersonalModels, load_models
from fuels.storage.panels import read_panel_file, save_panel
from fuels.storage.run_folder import HISTORY

BLOCK = 8  # steps that the personal models forecast at once
Noted = tuple[Forecast, list[str]]  # with notes for the user
Progress = Callable[[int], None]  # steps ahead that are done
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass
class SavedRun:
    """Models and ensemble of a run folder, or of a folder of Forecaster.save."""

    folder: Path
    settings: Settings  # its data section says how to read new data
    data: Data  # of the run; the source is empty if unknown
    models: PersonalModels
    ensemble: Ensemble | None
    forget: bool = False  # the next forecast deletes what earlier ones have learned
    screened: Screened | None = None  # the new values of the last forecast
    notes: list[str] = field(default_factory=list)  # for the user
    unsaved: str = ""  # why something could not be stored
    stored: bool = True  # whether everything could be
    fell_back: bool = False  # whether the ensemble is the one that the run left
    refit: int = 0  # horizons that a rewound ensemble may lack
    received: ReceivedMean | None = None  # the live mean of a federation

    @classmethod
    def load(cls, path: Path, *, forget: bool = False) -> SavedRun:
        """From the folder or its models; `forget` ignores what earlier forecasts have learned."""
        folder, found = located(path)
        config, recent = folder / CONFIG, folder / RECENT
        models = load_models(found)
        settings = read_config(config)[0] if config.is_file() else Settings()
        # A folder of `save` holds its data; models without a config do not say where theirs are.
        known = settings.data if config.is_file() else Data(source="")
        data = Data(source=str(recent)) if recent.is_file() else known
        saved = cls(folder, settings, data, models, None, forget)
        # Without settings, a mixture file shows that the models are one expert of several.
        if settings.mixture.on if config.is_file() else (folder / MIXTURE).is_file():
            saved.ensemble = saved._load_ensemble()
        return saved

    def confine(self, chosen: Mixture) -> None:
        """Confine forecasts and intervals to other bounds, where given, from now on."""
        if self.ensemble is None:
            raise FuelsError(
                f"{self.folder}: --at-least and --at-most confine the forecasts of a mixture of"
                " experts, and this run has none: train with --preset best"
            )
        self.ensemble.confined_to(self.ensemble.limits.changed(chosen))

    # -- values --------------------------------------------------------------------------------

    def training_data(self) -> Panel:
        """The run's own values since the start of training, read from its data if necessary."""
        path = self.folder / HISTORY
        if path.is_file():
            try:
                return read_panel_file(path)[0]
            except FuelsError as error:
                again = " or delete it, so that the data of the run are read again"
                raise FuelsError(f"{error}; restore it from a backup{again}") from None
        if not self.data.source:
            raise FuelsError(f"{self.folder}: without {CONFIG}, the data of the run are unknown")
        own = on_model_clock(self.models, load_panel(replace(self.settings, data=self.data)))
        return own if self.ensemble is None else self.ensemble.since_training(own)

    @property
    def knows_values(self) -> bool:
        """Whether a forecast needs no new data."""
        stored = (self.folder / HISTORY, self.folder / LIVE / VALUES)
        return bool(self.data.source) or any(path.is_file() for path in stored)

    def memory(self, new: Panel | None = None) -> Memory:
        """The values that are known so far; without any, those of `new`."""
        found = None if self.forget else Memory.load(self.folder, self.models)
        if found is not None and (self.folder / HISTORY).is_file():
            return found
        try:
            own = self._own_values(new)
        except FuelsError as error:
            if found is not None:
                return found
            if new is None or (self.folder / HISTORY).is_file():
                raise
            self.notes.append(f"the forecasts use only the new data: {error}")
            own = new
        begun = Memory.begin(self.folder, self.models, self._with_all_clients(own))
        if found is not None:
            begun.add(found.panel)
        return begun

    def _own_values(self, new: Panel | None) -> Panel:
        """The run's own values, which its folder holds from now on; or `new` if it has them all."""
        try:
            own = self.training_data()
        except FuelsError:
            ensemble = self.ensemble
            if new is None or ensemble is None or not ensemble.covers_training(new):
                raise
            own = new
        if not (self.folder / HISTORY).is_file():
            with self.saving("the values of the run are read again for the next forecast"):
                save_panel(self.folder / HISTORY, self._with_all_clients(own))
        return own

    def _with_all_clients(self, own: Panel) -> Panel:
        """The values of the models' clients, missing ones included."""
        return add_unknown_clients(own, self.models.ids).select(self.models.ids)

    # -- forecasts -----------------------------------------------------------------------------

    def forecast(
        self,
        new: Panel | None = None,
        horizon: int = 1,
        *,
        progress: Progress = lambda steps: None,
        ids: Sequence[str] | None = None,
        until: str | None = None,
        wait: float = 0.0,
        inputs: Adding = None,
    ) -> Noted:
        """The next values of all clients, or of `ids`, and notes for the user.

        `new` values are remembered, and what they teach is saved. `until` leaves out what is known
        from later; nothing is then saved. `wait`: seconds to wait for a federation's live mean of
        the newest step, once the values are stored. `inputs` adds external inputs to the panel.
        """
        new = None if new is None else self.useful(new)
        memory = self.take(new, inputs)
        if self.ensemble is not None:
            self.received, said = await_mean(self.folder, memory.panel, wait)
            self.notes += said
            self._with_received(self.ensemble)
        if until:
            memory.panel = memory.panel.between(None, until)
        drop = drops_implausible(self.settings.data.implausible, self.ensemble is not None)
        self.screened, said = memory.screened(None if new is None else new.start, drop=drop)
        self.notes += said
        panel = memory.used if ids is None else memory.used.select(ids)
        clients_with_model(self.models, panel)
        if self.ensemble is None:
            return self._without_mixture(memory, panel, horizon)
        history = self.ensemble.with_live_mean(memory.history())
        ensemble = self._ready(memory, history, horizon, saved=not until)
        ensemble = self._fit(ensemble, memory, history, horizon, progress)
        saved = ensemble is self.ensemble
        if self.forget and saved:
            self._clear()
        times = self._learn(ensemble, history, outdated=memory.outdated) if saved else []
        try:
            result = forecast_ensemble(ensemble, panel, horizon, progress, history)
        except FuelsError as error:
            raise FuelsError("; ".join([str(error), *self.notes])) from None
        self.notes += missing_notes(panel, ensemble.inputs, result.ids, horizon, self.models.period)
        if saved:
            self.notes += missing_newest(self.models, history)
            self._save(memory, ensemble, times)
        return self._with_unseen(ensemble, memory, result, horizon), self.notes

    def take(self, new: Panel | None, inputs: Adding = None) -> Memory:
        """The values known so far and `new` ones, which are stored before anything else happens."""
        memory = self.memory(new)
        if memory.take_inputs(inputs):
            self._store(memory)
        if new is not None:
            self.notes += describe_gap(memory.panel, new)
            merged = memory.add(new, None if self.ensemble is None else self._as_left())
            self.notes += merged.notes()
            if merged.changed.any() or memory.panel.length > merged.known or self.forget:
                self._store(memory)
        return memory

    def useful(self, new: Panel) -> Panel | None:
        """New data on the clock of the models, up to the last value; None without any."""
        cut, notes = up_to_last_value(on_model_clock(self.models, new))
        self.notes += notes
        return cut if cut is None or self.ensemble is None else self.ensemble.since_training(cut)

    def _without_mixture(self, memory: Memory, panel: Panel, horizon: int) -> Noted:
        if not (self.folder / CONFIG).is_file():
            self.notes.append(
                f"{self.folder}: there is no {CONFIG} and no {MIXTURE}; these are forecasts of the"
                " personal models without the experts"
            )
        result = forecast(self.models, panel, horizon)
        if (read := self.models.inputs) is not None:
            self.notes += missing_notes(panel, read.names, result.ids, horizon, self.models.period)
        if memory.trim(None) or self.forget:
            self._store(memory)
        return result, self.notes

    def _with_unseen(
        self, ensemble: Ensemble, memory: Memory, result: Forecast, horizon: int
    ) -> Forecast:
        """The forecasts, and those of clients without a model that have enough values."""
        ids = can_be_forecast(ensemble, memory.used, result.unknown)
        if not ids:
            return result
        self.notes.append(
            f"{listed(ids)} without a model: the forecasts use their own values and what the run's"
            " clients share"
        )
        return together(result, forecast_unseen(ensemble, memory.used, ids, horizon))

    # -- learning ------------------------------------------------------------------------------

    def _ready(self, memory: Memory, history: History, horizon: int, *, saved: bool) -> Ensemble:
        """The ensemble in a state from which it can learn the history.

        That is an earlier one if values it has learned from have changed, and a copy if nothing is
        to be saved.
        """
        ensemble = self.ensemble
        assert ensemble is not None
        ensemble.block = BLOCK
        if ensemble.ends_in_training(history):
            return ensemble  # which refuses data that end in training
        if ensemble.has_learned_beyond(history, horizon):
            end = format_moment(memory.panel.times[-1], memory.panel.timezone)
            self.notes.append(
                f"the data end at {end}, before the newest data this run has learned from: the"
                " experts are fitted again for this forecast, and nothing is saved"
            )
            return ensemble.unfitted()
        if memory.relearn is not None:
            time = memory.relearn + memory.panel.standard_offset
            ensemble = self._rewound(ensemble, time, outdated=memory.outdated)
        elif memory.outdated and self.fell_back:
            ensemble = self._rewound(ensemble, ensemble.trained, outdated=True)
        if not saved:
            return ensemble.copy()
        self.ensemble = ensemble
        return ensemble

    def _rewound(self, ensemble: Ensemble, time: np.datetime64, *, outdated: bool) -> Ensemble:
        """The newest state that has learned nothing from `time` on.

        `outdated`: not even the one that the run left holds.
        """
        if all(until <= time for until in ensemble.learned_until.values()):
            return ensemble
        states = States(self.folder / LIVE, self.models)
        held = states.newest(time), None if outdated else self._as_left()
        found = [state for state in held if state is not None and state.learned_until]
        found = [state for state in found if max(state.learned_until.values()) <= time]
        found.sort(key=lambda state: min(state.learned_until.values()))
        self.notes += states.damaged
        earlier = self._with_received(found[-1] if found else ensemble.unfitted())
        earlier.block = BLOCK
        earlier.confined_to(ensemble.limits)
        self.refit = max(ensemble.horizons)
        states.drop(later for later in states.times() if later > time)
        return earlier

    def _fit(
        self, ensemble: Ensemble, memory: Memory, history: History, horizon: int, progress: Progress
    ) -> Ensemble:
        """The ensemble with experts for all horizons; a copy if they are not to be saved."""
        ahead = range(1, max(horizon, self.refit) + 1)
        missing = [h for h in ahead if h not in ensemble.horizons]
        if not missing:
            return ensemble
        try:
            data = without_implausible(self.training_data(), self.settings, ensemble)
            own = ensemble.history(data)
        except FuelsError:
            if not ensemble.covers_training(memory.panel):
                ensemble = ensemble.copy()  # a client would get no experts, now and later
            own = history
        for h in missing:
            ensemble.fit(own, [h], keep=False)
            progress(h)
        if own.start < history.start:  # later values may follow after a gap
            learn_up_to(ensemble, own, own.times(own.length, own.length + 1)[0])
        return ensemble

    def _learn(self, ensemble: Ensemble, history: History, *, outdated: bool) -> list[Time]:
        """Learn up to each time whose state is kept, and store it; returns these times."""
        states = States(self.folder / LIVE, self.models)
        end = history.times(history.length, history.length + 1)[0]
        times = kept_times(end, history.step)
        as_left = self._as_left()
        left = max(as_left.learned_until.values(), default=None)
        if not outdated and left is not None and left >= times[0]:
            times = sorted({*times, left})
        for time in times:
            learn_up_to(ensemble, history, time)
            with self.saving("late values may take longer to learn"):
                states.keep(ensemble, time, as_left if time == left and not outdated else None)
        return times

    # -- on disk -------------------------------------------------------------------------------

    def _as_left(self) -> Ensemble:
        """The ensemble as the run left it."""
        mixture = self.folder / MIXTURE
        if not mixture.is_file():
            raise FuelsError(
                f"{mixture} is missing: this run forecasts with a mixture of experts, and its"
                " personal models alone would give other forecasts"
            )
        return Ensemble.load(mixture, self.models)

    def _with_received(self, ensemble: Ensemble) -> Ensemble:
        """The ensemble, with the sums that a federation has sent to this run, if any."""
        if ensemble.sharing is not None:
            ensemble.sharing.receive(self.received, self.folder)
        return ensemble

    def _load_ensemble(self) -> Ensemble:
        """The ensemble with what it has learned since the run, or as the run left it."""
        as_left, learned = self._as_left(), self.folder / LEARNED
        if self.forget:
            return as_left  # fails first if --forget would not help
        if learned.is_file():
            try:
                return Ensemble.load(learned, self.models)
            except FuelsError as error:
                if not (self.folder / LIVE / VALUES).is_file():
                    raise FuelsError(f"{error}; fuels forecast --forget ignores it") from None
                self.notes.append(f"{error}: its content is learned again")
        newest = States(self.folder / LIVE, self.models).newest()
        self.fell_back = newest is None
        return newest or as_left

    def _store(self, memory: Memory) -> None:
        if self.forget:
            self._clear()
        with self.saving("give the new values again with the next forecast"):
            memory.store()

    def _save(self, memory: Memory, ensemble: Ensemble, times: Sequence[np.datetime64]) -> None:
        """Store what was learned; if that fails, the forecast is still returned."""
        with self.saving("the next forecast will learn these steps again"):
            replace_state(self.folder / LEARNED, *ensemble.state())
            states = States(self.folder / LIVE, self.models)
            states.drop(set(states.times()) - set(times))
            changed, memory.relearn = memory.relearn is not None, None
            if memory.trim(ensemble) or changed:
                memory.store()

    def _clear(self) -> None:
        self.forget = False
        clear(self.folder)

    @contextmanager
    def saving(self, consequence: str) -> Iterator[None]:
        """Say why something could not be stored; a folder that is only read is no failure."""
        try:
            yield
        except OSError as error:
            self.stored = False
            said = f"cannot write to {self.folder} ({error.strerror or error}): {consequence}"
            if error.errno in READ_ONLY:
                self.notes.append(said)
            elif not self.unsaved:
                self.unsaved = said
