"""Forecasts from a saved run: its models, its ensemble, and what that has learned since.

The files of the run never change. What its mixtures learn from the data of later forecasts goes
into learned.safetensors in the same folder; deleting that file discards it. Each step is learned
once: a client that is absent from the data skips learning for those steps and resumes when it
returns.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fuels.config import Data, Mixture, Settings
from fuels.data.clock import format_moment
from fuels.data.joining import add_unknown_clients, describe_gap, join_panels
from fuels.data.loading import load_panel
from fuels.data.panel import Panel
from fuels.data.screening import Judged, drops_implausible
from fuels.errors import FuelsError
from fuels.experts.ensemble import Ensemble, forecast_ensemble
from fuels.experts.history import History
from fuels.experts.personal_model import Forecast, clients_with_model, forecast, on_model_clock
from fuels.experts.unseen import can_be_forecast, forecast_unseen, together
from fuels.forecasting.anomalies import judge_panel
from fuels.storage.config_file import read_config
from fuels.storage.models import PersonalModels, load_models

MODELS, MIXTURE, LEARNED = "models.safetensors", "mixture.safetensors", "learned.safetensors"
CONFIG, SUMMARY = "config.toml", "summary.json"  # a run writes its summary last
RECENT = "recent.parquet"  # the data of `fit` in a folder of Forecaster.save
SAVED = {MODELS, MIXTURE, RECENT, CONFIG}  # written by Forecaster.save


@dataclass
class SavedRun:
    """Models and ensemble of a run folder, or of a folder of Forecaster.save."""

    folder: Path
    settings: Settings  # its data section says how to read new data
    data: Data  # of the run; the source is empty if unknown
    models: PersonalModels
    ensemble: Ensemble | None
    forget: bool = False  # the next forecast deletes what earlier ones have learned
    judged: Judged | None = None  # the new values of the last forecast

    @classmethod
    def load(cls, path: Path, *, forget: bool = False) -> SavedRun:
        """From the folder or its models; `forget` ignores what earlier forecasts have learned."""
        if not path.exists():
            raise FuelsError(f"{path}: no such run")
        folder = path if path.is_dir() else path.parent
        found = path / MODELS if path.is_dir() else path
        config, recent = folder / CONFIG, folder / RECENT
        ended = (folder / SUMMARY).is_file() or recent.is_file()
        if path.is_dir() and not (found.is_file() and ended):
            if config.is_file():
                again = f"continue it: fuels run --resume {path}"
                raise FuelsError(f"{path}: this run is not finished; {again}")
            if found.is_file():
                raise FuelsError(
                    f"{path}: the folder has {MODELS} but no {CONFIG} or {SUMMARY}; to forecast"
                    f" with the models only, give {found} and the newest data"
                )
            raise FuelsError(f"{path}: not a finished run, {MODELS} is missing")
        models = load_models(found)
        settings = read_config(config)[0] if config.is_file() else Settings()
        # A folder of `save` holds its data, even after it was moved; models without a config do not
        # say where their data are.
        known = settings.data if config.is_file() else Data(source="")
        data = Data(source=str(recent)) if recent.is_file() else known
        # Without settings, a mixture file shows that the models are one expert of several.
        mixed = settings.mixture.on if config.is_file() else (folder / MIXTURE).is_file()
        ensemble = _load_ensemble(folder, models, forget) if mixed else None
        return cls(folder, settings, data, models, ensemble, forget)

    def confine(self, chosen: Mixture) -> None:
        """Confine forecasts and intervals to other bounds, where given, from now on."""
        if self.ensemble is None:
            raise FuelsError(
                f"{self.folder}: --at-least and --at-most confine the forecasts of a mixture of"
                " experts, and this run has none: train with --preset best"
            )
        self.ensemble.confined_to(self.ensemble.limits.changed(chosen))

    def training_data(self) -> Panel:
        """The data of the run."""
        if not self.data.source:
            raise FuelsError(f"{self.folder}: without {CONFIG}, the data of the run are unknown")
        return on_model_clock(self.models, load_panel(replace(self.settings, data=self.data)))

    def forecast(
        self,
        panel: Panel,
        horizon: int,
        *,
        new: bool,
        progress: Callable[[int], None],
        subset: bool = False,
    ) -> tuple[Forecast, list[str]]:
        """The next values, and notes for the user. The run's data are prepended to `new` data.

        `subset`: the panel holds only selected clients, so what they learn is not saved; otherwise
        the others could never learn these steps.
        """
        notes: list[str] = []
        panel = whole = on_model_clock(self.models, without_empty_end(panel, notes))
        known = clients_with_model(self.models, panel)
        if self.ensemble is None and not self.data.source:
            notes.append(
                f"{self.folder}: there is no {CONFIG} and no {MIXTURE}; these are forecasts of the"
                " personal models without the experts"
            )
        if new:
            try:
                own = self.training_data()
                notes += describe_gap(own, panel)
                whole = join_panels(own, add_unknown_clients(panel, self.models.ids))
            except FuelsError as error:
                notes.append(f"the forecasts use only the new data: {error}")
        whole = self._screened(whole, panel.start if new else None, notes)
        if self.ensemble is None:
            return forecast(self.models, whole.select(panel.ids), horizon), notes
        history = self.ensemble.history(whole)
        ensemble = self._ensemble_for(history, panel, horizon, notes)
        fitted = set(ensemble.horizons)
        try:
            result = forecast_ensemble(ensemble, panel, horizon, progress, history)
        except FuelsError as error:
            raise FuelsError("; ".join([str(error), *notes])) from None
        if new and (ids := can_be_forecast(ensemble, whole, result.unknown)):
            result = together(result, forecast_unseen(ensemble, whole, ids, horizon))
            named = f"{', '.join(ids[:5])}{', ...' * (len(ids) > 5)}"
            notes.append(
                f"{len(ids)} client{'s' * (len(ids) != 1)} without a model ({named}): forecast from"
                " their own values and what the run's clients share"
            )
        if self.forget:
            _delete(self.folder / LEARNED)
        if subset and len(known) < len(self.models.ids):
            notes.append("only some clients were selected: what they learned is not saved")
        elif ensemble is self.ensemble:
            ensemble.discard_incomplete(history, set(ensemble.horizons) - fitted)
            notes += missing_newest(self.models, history)
            self._save_learned(notes)
        return result, notes

    def _screened(self, panel: Panel, since: np.datetime64 | None, notes: list[str]) -> Panel:
        """The panel without implausible values, if the settings say so.

        What is said of the values since a time, by default of the last period, is kept in `judged`.
        """
        panel, judged = judge_panel(panel, self.models.period, self.ensemble, since)
        newest = panel.times[-min(self.models.period, panel.length)]
        self.judged = judged.since(newest if since is None else since)
        if not drops_implausible(self.settings.data.implausible, self.ensemble is not None):
            return panel
        if said := self.judged.sentence():
            notes.append(f"{said}; they count as missing (--implausible keep uses them)")
        if said := self.judged.accepted():
            notes.append(said)
        return judged.removed(panel)

    def _ensemble_for(
        self, history: History, panel: Panel, horizon: int, notes: list[str]
    ) -> Ensemble:
        """The ensemble, or an unfitted one if it has learned from data after the panel's end."""
        ensemble = self.ensemble
        assert ensemble is not None
        if ensemble.ends_in_training(history) or not ensemble.has_learned_beyond(history, horizon):
            return ensemble  # which refuses data that end in training
        end = format_moment(panel.times[-1], panel.timezone)
        notes.append(
            f"the data end at {end}, before the newest data this run has learned from: the experts"
            " are fitted again for this forecast, and nothing is saved"
        )
        return ensemble.unfitted()

    def _save_learned(self, notes: list[str]) -> None:
        """Save what the ensemble has learned; if that fails, the forecast is still returned."""
        assert self.ensemble is not None
        learned = self.folder / LEARNED
        written = learned.with_name(
            f"{learned.stem}-{os.getpid()}{learned.suffix}"
        )  # processes may overlap
        try:
            self.ensemble.save(written)
            written.replace(learned)
        except (FuelsError, OSError):
            written.unlink(missing_ok=True)
            notes.append(f"cannot write {learned}; the next forecast will learn these steps again")


def without_empty_end(panel: Panel, notes: list[str]) -> Panel:
    """The panel up to the last step with a value: empty rows at the end are not data."""
    steps = np.flatnonzero(~np.isnan(panel.values).all(axis=1))
    blank = panel.length - (int(steps[-1]) + 1 if len(steps) else panel.length)
    if not blank:
        return panel
    cut = replace(panel, values=panel.values[: panel.length - blank])
    end = format_moment(cut.times[-1], cut.timezone)
    notes.append(f"{panel.name}: the last {blank} steps have no value; the data end at {end}")
    return cut


def missing_newest(models: PersonalModels, history: History) -> list[str]:
    """A note that names the clients whose newest value is missing."""
    missing = np.isnan(history.observed[:, -1])
    named = [client for client, gone in zip(models.ids, missing, strict=True) if gone]
    if not named:
        return []
    who = f"{len(named)} client{'s' * (len(named) != 1)}"
    more = ", ..." if len(named) > 5 else ""
    return [
        f"the newest value of {who} is missing ({', '.join(named[:5])}{more}); values that arrive"
        " later are not learned, so give the values of all clients together"
    ]


def _load_ensemble(folder: Path, models: PersonalModels, forget: bool) -> Ensemble:
    """The ensemble with what it has learned since the run, or as the run left it."""
    mixture, learned = folder / MIXTURE, folder / LEARNED
    if not mixture.is_file():
        raise FuelsError(
            f"{mixture} is missing: this run forecasts with a mixture of experts, and its models on"
            " their own would give other values"
        )
    as_left = Ensemble.load(mixture, models)  # fails first if --forget would not help
    if forget or not learned.is_file():
        return as_left
    try:
        return Ensemble.load(learned, models)
    except FuelsError as error:
        raise FuelsError(f"{error}; fuels forecast --forget ignores this file") from None


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise FuelsError(f"cannot delete {path} ({error.strerror})") from None


def check_save_folder(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that Forecaster.save may not write to."""
    if folder.exists() and not folder.is_dir():
        raise FuelsError(f"{folder} is a file; save writes a folder")
    found = {item.name for item in folder.iterdir()} if folder.is_dir() else set()
    if found and not overwrite:
        raise FuelsError(f"{folder} is not empty; choose another folder or give overwrite=True")
    learned = {name for name in found if name.startswith(Path(LEARNED).stem)}
    if strange := sorted(found - SAVED - learned):
        raise FuelsError(
            f"{folder} contains {strange[0]}, which save did not write; choose another folder"
        )
