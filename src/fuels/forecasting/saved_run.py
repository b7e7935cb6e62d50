"""A finished run asked for forecasts: its models, its mixture, and what it has learned since.

The files of a run stay as it left them. What its mixture learns from the data of later forecasts
lies beside them in learned.safetensors, and is forgotten when that file is deleted. Every step is
learned once: a client that the data do not have has missed its truth there, and learns again when
it comes back.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fuels.config import Data, Settings
from fuels.data.clock import format_moment
from fuels.data.joining import add_unknown_clients, describe_gap, join_panels
from fuels.data.loading import load_panel
from fuels.data.panel import Panel
from fuels.errors import FuelsError
from fuels.experts.ensemble import Ensemble, forecast_ensemble
from fuels.experts.history import History
from fuels.experts.personal_model import Forecast, clients_with_model, forecast, on_model_clock
from fuels.storage.config_file import read_config
from fuels.storage.models import PersonalModels, load_models

MODELS, MIXTURE, LEARNED = "models.safetensors", "mixture.safetensors", "learned.safetensors"
CONFIG, SUMMARY = "config.toml", "summary.json"  # the summary is what a run leaves last
RECENT = "recent.parquet"  # the data in a folder of Forecaster.save


@dataclass
class SavedRun:
    """Models and mixture of a run folder, or of a folder of Forecaster.save."""

    folder: Path
    settings: Settings  # its data say how new ones are read
    data: Data  # the run's own; without a source where they are not known
    models: PersonalModels
    ensemble: Ensemble | None
    forget: bool = False  # what later forecasts have taught goes with the next one

    @classmethod
    def load(cls, path: Path, *, forget: bool = False) -> SavedRun:
        """From the folder or its models; `forget` does without what later forecasts have taught."""
        if not path.exists():
            raise FuelsError(f"{path}: there is no such run")
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
                    f"{path}: {MODELS} is here, but neither {CONFIG} nor {SUMMARY} of its run; name"
                    f" {found} itself, with the newest data, to forecast with the models alone"
                )
            raise FuelsError(f"{path}: no finished run is here, {MODELS} is missing")
        models = load_models(found)
        settings = read_config(config)[0] if config.is_file() else Settings()
        # A folder of `save` may have moved, and what it holds is a panel already; models alone do
        # not say where their data are.
        known = settings.data if config.is_file() else Data(source="")
        data = Data(source=str(recent)) if recent.is_file() else known
        # Without settings the mixture beside the models tells that they are one expert of several.
        mixed = settings.mixture.on if config.is_file() else (folder / MIXTURE).is_file()
        ensemble = _ensemble(folder, models, forget) if mixed else None
        return cls(folder, settings, data, models, ensemble, forget)

    def own_data(self) -> Panel:
        """The data the run was made from."""
        if not self.data.source:
            raise FuelsError(
                f"{self.folder}: without {CONFIG} beside the models their own data are not known"
            )
        return on_model_clock(self.models, load_panel(replace(self.settings, data=self.data)))

    def forecast(
        self,
        panel: Panel,
        horizon: int,
        *,
        new: bool,
        done: Callable[[int], None],
        some: bool = False,
    ) -> tuple[Forecast, list[str]]:
        """The next values, and what there is to tell. `new` data have the run's own before them.

        `some`: the panel was cut to the clients asked for, so nothing of it is kept: the values of
        the others are still to be learned.
        """
        notes: list[str] = []
        panel = whole = on_model_clock(self.models, without_blank_end(panel, notes))
        known = clients_with_model(self.models, panel)
        if self.ensemble is None and not self.data.source:
            notes.append(
                f"{self.folder}: neither {CONFIG} nor {MIXTURE} is beside the models; these are"
                " their own forecasts, without the experts that a run may have had"
            )
        if new:
            try:
                own = self.own_data()
                notes += describe_gap(own, panel)
                whole = join_panels(own, add_unknown_clients(panel, self.models.ids))
            except FuelsError as error:
                notes.append(f"the forecasts rest on the new data alone: {error}")
        if self.ensemble is None:
            return forecast(self.models, whole.select(panel.ids), horizon), notes
        history = self.ensemble.history(whole)
        ensemble = self._ensemble_for(history, panel, horizon, notes)
        fitted = set(ensemble.horizons)
        try:
            result = forecast_ensemble(ensemble, panel, horizon, done, history)
        except FuelsError as error:
            raise FuelsError("; ".join([str(error), *notes])) from None
        if self.forget:
            _delete(self.folder / LEARNED)
        if some and len(known) < len(self.models.ids):
            notes.append("some clients alone were asked for: what they learned is not kept")
        elif ensemble is self.ensemble:
            ensemble.discard_incomplete(history, set(ensemble.horizons) - fitted)
            notes += passed_over(self.models, history)
            self._keep(notes)
        return result, notes

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

    def _keep(self, notes: list[str]) -> None:
        """Write down what the mixture has learned; a forecast is worth having even if it fails."""
        assert self.ensemble is not None
        learned = self.folder / LEARNED
        own = learned.with_name(f"{learned.stem}-{os.getpid()}{learned.suffix}")  # others may write
        try:
            self.ensemble.save(own)
            own.replace(learned)
        except (FuelsError, OSError):
            own.unlink(missing_ok=True)
            notes.append(
                f"{learned} cannot be written; the next forecast will learn these steps again"
            )


def without_blank_end(panel: Panel, notes: list[str]) -> Panel:
    """The panel up to the last step of which a value is known: blank rows are not the present."""
    steps = np.flatnonzero(~np.isnan(panel.values).all(axis=1))
    blank = panel.length - (int(steps[-1]) + 1 if len(steps) else panel.length)
    if not blank:
        return panel
    cut = replace(panel, values=panel.values[: panel.length - blank])
    end = format_moment(cut.times[-1], cut.timezone)
    notes.append(f"{panel.name}: its last {blank} steps hold no value; the data end at {end}")
    return cut


def passed_over(models: PersonalModels, history: History) -> list[str]:
    """A note that names the clients whose newest values are not there."""
    missing = np.isnan(history.observed[:, -1])
    named = [client for client, gone in zip(models.ids, missing, strict=True) if gone]
    if not named:
        return []
    who = f"{len(named)} client{'s' * (len(named) != 1)}"
    more = ", ..." if len(named) > 5 else ""
    return [
        f"the newest value of {who} is missing ({', '.join(named[:5])}{more}); steps that lie"
        " behind are not learned when their values come later, so give all clients' values together"
    ]


def _ensemble(folder: Path, models: PersonalModels, forget: bool) -> Ensemble:
    """What a mixture has learned so far, or the mixture as the run left it."""
    mixture, learned = folder / MIXTURE, folder / LEARNED
    if not mixture.is_file():
        raise FuelsError(
            f"{mixture} is missing: this run's forecasts are a mixture of experts, and its models"
            " alone would say something else"
        )
    as_left = Ensemble.load(mixture, models)  # so --forget is not advised where it would not help
    if forget or not learned.is_file():
        return as_left
    try:
        return Ensemble.load(learned, models)
    except FuelsError as error:
        raise FuelsError(f"{error}; fuels forecast --forget does without it") from None


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise FuelsError(f"{path}: cannot be deleted ({error.strerror})") from None
