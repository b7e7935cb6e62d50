"""`Forecaster`: fit, predict, evaluate, save and load, on a long table.

A frame is a pandas or polars table with the columns unique_id, ds (time) and y (value). Results are
of the same kind as the input.
"""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from fuels.config import (
    DEFAULT_PRESET,
    Engine,
    Settings,
    check_engine,
    merge,
    merge_engine,
    with_preset,
)
from fuels.data.joining import describe_gap, join_panels
from fuels.data.loading import as_setting, frame_panel
from fuels.data.panel import Panel
from fuels.data.windows import LEAST
from fuels.errors import FuelsError, options_renamed
from fuels.experts.ensemble import Ensemble, forecast_ensemble, new_ensemble
from fuels.experts.intervals import checked_levels
from fuels.experts.personal_model import (
    check_horizon,
    forecast,
    history_for,
    on_model_clock,
)
from fuels.experts.table import forecast_table
from fuels.federation.loop import Loop, Watcher
from fuels.forecasting.anomalies import anomaly_frame, without_implausible
from fuels.forecasting.folder import CONFIG, LEARNED, MIXTURE, MODELS, RECENT, check_save_folder
from fuels.forecasting.future_inputs import with_future_inputs
from fuels.forecasting.memory import LIVE
from fuels.forecasting.one_step import one_step_errors
from fuels.forecasting.saved_run import SavedRun
from fuels.forecasting.table import Kind
from fuels.methods.registry import find_method
from fuels.runs.build import build, kept_parameters
from fuels.runs.settings import refuse_without_ledger, resolve
from fuels.storage.models import PersonalModels, save_models
from fuels.storage.run_folder import HISTORY
from fuels.training.runtime import set_up

# Shows a training: given the round loop, a context manager that yields its watcher.
Watch = Callable[[Loop], AbstractContextManager[Watcher]]

NO_INTERVALS = "intervals come with the mixture of experts: Forecaster(preset='best')"


class Forecaster:
    """Personal forecasters for many series, trained together on this machine.

    preset: best (the default: richer inputs, a mixture of the personal model with local experts,
    and intervals) or paper (the paper's settings).
    method: as in `fuels run --method`. period: steps in a period. rounds, patience: training stops
    after `rounds` (None: as the preset says), or earlier if the validation error has not improved
    for `patience` rounds. The validation part is the last fifth of the periods, or the last
    `validation` periods. at_least, at_most: bounds of the values (None: at least 0 if no training
    value is negative). inputs: columns known in advance, such as a temperature; `predict` takes
    their future values. `left_out` lists the clients that could not take part, with the reason.
    Other settings go by their names in config.toml:
    `settings={"model": {"hidden": 64}, "options": {"tau": 0.05}}`. Those in `data` say how frames
    are read: `settings={"data": {"time_column": "when", "timezone": "Europe/Rome"}}`.
    """

    def __init__(
        self,
        method: str = "fuels",
        *,
        period: int = 24,
        rounds: int | None = None,
        patience: int = 15,
        validation: int | None = None,
        preset: str = DEFAULT_PRESET,
        seed: int = 0,
        threads: int = 0,
        at_least: float | None = None,
        at_most: float | None = None,
        inputs: Sequence[str] = (),
        settings: dict[str, Any] | None = None,
    ) -> None:
        find_method(str(method))
        start = with_preset(Settings(), str(preset), "Forecaster")
        if not isinstance(settings, dict | None):
            raise FuelsError(f"settings must be a dict of sections, not {settings!r}")
        if "preset" in (settings or {}):
            raise FuelsError("settings: preset is not a setting; use Forecaster(preset=...)")
        whole = isinstance(validation, int) and not isinstance(validation, bool)
        if validation is not None and (not whole or validation < 0):
            raise FuelsError(f"validation must be a whole number of periods, not {validation!r}")
        rounds = start.training.rounds if rounds is None else rounds
        bounds = {"at_least": at_least, "at_most": at_most}
        changes = {
            "method": method,
            "seed": seed,
            "windows": {"period": period},
            "training": {"rounds": rounds, "patience": patience},
            "mixture": {name: bound for name, bound in bounds.items() if bound is not None},
            "data": {"inputs": list(inputs)} if inputs else {},
        }
        chosen = merge(merge(start, changes, "Forecaster"), settings or {}, "settings")
        self.settings = resolve(chosen)
        self.validation = validation
        self.engine = merge_engine(Engine(), {"threads": threads}, "Forecaster")
        check_engine(self.engine)
        self.models: PersonalModels | None = None
        self.left_out: dict[str, str] = {}
        self._panel: Panel | None = None  # of `fit`, with implausible values
        self._ensemble: Ensemble | None = None  # as fitted on the training part
        self._learned: dict[tuple[float, ...], Ensemble] = {}  # after all data of `fit`, by levels
        self._kind = Kind()  # of the frame of `fit`

    def __repr__(self) -> str:
        state = "not fitted" if self.models is None else f"{len(self.models.ids)} clients"
        return (
            f"Forecaster(method={self.settings.method!r}, preset={self.settings.preset!r}, {state})"
        )

    # -- the four verbs ------------------------------------------------------------------------

    def fit(self, frame: Any) -> Forecaster:
        """Train on a long table and fit the experts; the newest periods select the best model."""
        self._kind = Kind.of(frame)
        return self.fit_panel(self._read(frame, new=False))

    def fit_panel(self, panel: Panel, watch: Watch | None = None) -> Forecaster:
        """`fit` on data that are already read; `watch` shows the training."""
        refuse_without_ledger(self.settings)
        windows = self.settings.windows
        periods = -(-(panel.length + int(panel.phases(windows.period)[0])) // windows.period)
        usual = min(max(1, periods // 5), periods - 1)
        validation = usual if self.validation is None else self.validation
        needed = self.settings.sample.reach_periods + LEAST
        if periods - validation < needed:
            raise FuelsError(
                f"{panel.name}: the data span {panel.length / windows.period:.1f} periods of"
                f" {windows.period} steps, of which {validation} are for validation; training needs"
                f" at least {needed}"
            )
        split = f"{periods - validation}/{validation}/0"
        settings = replace(self.settings, windows=replace(windows, split=split))
        with build(settings, self.engine, panel) as job:
            with watch(job.loop) if watch is not None else nullcontext() as watcher:
                job.loop.run([] if watcher is None else [watcher])
            self.models = kept_parameters(job, job.loop.final_download())
        self.left_out = job.dataset.left_out
        if self.left_out:
            named = [f"{client} ({why})" for client, why in self.left_out.items()]
            warnings.warn(f"left out: {'; '.join(named[:5])}", stacklevel=2)
        self._panel = panel
        self._ensemble, self._learned = None, {}
        if settings.mixture.on:
            self._ensemble = new_ensemble(
                self.models,
                history_for(self.models, job.dataset.panel),
                job.dataset.split.train,
                title=f"{job.method.title} model",
                chosen=settings.mixture,
                sharing=settings.sharing,
                seed=settings.seed,
            )
            self._learned_ensemble(settings.windows.horizon, self._ensemble.levels)
        return self

    def predict(
        self, h: int = 1, frame: Any = None, level: Sequence[float] | None = None, X_df: Any = None
    ) -> Any:
        """The next `h` values of every client: unique_id, ds and a column named after the method.

        They follow the end of the data of `fit`, or of `frame`, a table that continues them.
        `level`, such as [80, 95], adds interval bounds: FUELS-lo-80, FUELS-hi-80 and so on. Experts
        for more steps than training used are fitted on the first call and remembered. `X_df` has
        future values of the inputs: ds, a column for each, and unique_id unless they hold for all.
        """
        models, name = self._fitted(), find_method(self.settings.method).title
        new = None if frame is None else self._newer(frame)
        panel = self._plausible(self._history() if new is None else self._continued(new))
        panel = with_future_inputs(panel, self.settings, X_df, h)
        ensemble = self._ensemble_for(new, h, level)
        made = forecast_ensemble(ensemble, panel, h) if ensemble else forecast(models, panel, h)
        wanted = () if level is None else checked_levels(level)
        columns = {"client": "unique_id", "time": "ds", "forecast": name}
        for each in wanted:
            columns |= {f"lower-{each:g}": f"{name}-lo-{each:g}"}
            columns |= {f"upper-{each:g}": f"{name}-hi-{each:g}"}
        table = forecast_table(made)
        chosen = table.select(pl.col(old).alias(new) for old, new in columns.items())
        return self._give(chosen, frame)

    def cross_validation(
        self,
        h: int = 1,
        n_windows: int = 1,
        step_size: int | None = None,
        frame: Any = None,
        *,
        refit: bool | int = False,
        level: Sequence[float] | None = None,
    ) -> Any:
        """Forecasts from several origins: unique_id, ds, cutoff, y and the columns of `predict`.

        The last of `n_windows` windows of `h` steps ends with the data of `fit`, or of `frame`; the
        others are `step_size` (default: `h`) steps apart. Each is forecast with what was known at
        its `cutoff`: after one training on the data before the first window or, with `refit`, a
        training for each window (`refit=2`: for every second). This forecaster is not changed.
        """
        from fuels.forecasting.backtest import Plan, rolling

        panel = self._history() if frame is None else self._read(frame, new=False)
        plan = Plan(h, n_windows, h if step_size is None else step_size, int(refit))
        wanted = () if level is None else checked_levels(level)
        if level is not None and not self.settings.mixture.on:
            raise FuelsError(NO_INTERVALS)
        name = find_method(self.settings.method).title
        windows = rolling(self, panel, plan, wanted or None)
        tables = [w.table(name, levels=wanted) for w in windows]
        return self._give(pl.concat(tables), frame)

    def evaluate(self, frame: Any) -> Any:
        """One-step errors on a table that continues the data of `fit`, one row per client.

        mse and mae are in standard deviations of the client's training part, mse_unit and mae_unit
        in the data's unit; `values` is the number of values compared.
        """
        models = self._fitted()
        new = self._newer(frame)
        whole = self._plausible(self._continued(new))
        if self._panel is not None and new.start <= self._panel.times[-1]:
            warnings.warn(
                "the frame overlaps the data of fit: errors there say little about future data",
                stacklevel=2,
            )
        table = one_step_errors(models, self._ensemble_for(new, 1, None), whole, new)
        return self._give(table, frame)

    def anomalies(self, frame: Any = None) -> Any:
        """Every value of `frame` or `fit`: anomaly score (implausible above 1), flag, range."""
        new = None if frame is None else self._newer(frame)
        panel = self._history() if new is None else self._continued(new)
        return self._give(anomaly_frame(panel, new or panel, self.settings, self._ensemble), frame)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the models, the ensemble, the data and the settings to a folder.

        The folder must be empty; `overwrite` replaces one that `save` wrote.
        """
        from fuels.storage.config_file import write_toml
        from fuels.storage.panels import save_panel

        folder, models, panel = Path(path), self._fitted(), self._history()
        try:
            check_save_folder(folder, overwrite)
            folder.mkdir(parents=True, exist_ok=True)
            for learned in folder.glob(f"{Path(LEARNED).stem}*"):
                learned.unlink()
            if (folder / LIVE).exists():
                shutil.rmtree(folder / LIVE)
            save_models(folder / MODELS, models)
            (folder / MIXTURE).unlink(missing_ok=True)
            if self._ensemble is not None:
                self._ensemble.save(folder / MIXTURE)
            (folder / RECENT).unlink(missing_ok=True)
            save_panel(folder / HISTORY, panel)
            data = replace(self.settings.data, source="")
            write_toml(folder / CONFIG, replace(self.settings, data=data), self.engine)
        except OSError as error:
            raise FuelsError(f"{folder}: cannot be written ({error.strerror})") from None

    @classmethod
    def load(cls, path: str | Path) -> Forecaster:
        """The forecaster that `save` wrote, or one from a run folder.

        It returns polars frames, and pandas frames if it is given one.
        """
        from fuels.storage.config_file import read_config

        saved = SavedRun.load(Path(path))
        loaded, config = cls(preset="paper"), saved.folder / CONFIG
        settings = saved.settings
        if config.is_file():
            loaded.engine = read_config(config)[1]
            set_up(loaded.engine)
        else:
            settings = replace(settings, method=saved.models.method)
        loaded.settings = resolve(settings)
        loaded.models, loaded._ensemble = saved.models, saved.ensemble
        try:
            loaded._panel = saved.training_data()
        except FuelsError as error:
            warnings.warn(f"forecasts will use only the frames given: {error}", stacklevel=2)
        if loaded._panel is not None and loaded._ensemble is not None:
            loaded._ensemble = loaded._ensemble.as_fitted()
        return loaded

    # -- for backtests -------------------------------------------------------------------------

    @classmethod
    def of(cls, settings: Settings, engine: Engine) -> Forecaster:
        """A forecaster with these settings, not fitted."""
        made = cls(preset="paper")
        made.settings, made.engine = resolve(settings), engine
        return made

    def unfitted(self) -> Forecaster:
        """A forecaster with the same settings, not fitted."""
        fresh = copy.copy(self)
        fresh.models, fresh._panel, fresh._ensemble = None, None, None
        fresh._learned, fresh.left_out = {}, {}
        return fresh

    def learned(self, horizon: int, levels: Sequence[float] | None = None) -> Ensemble | None:
        """A copy of the ensemble after all data of `fit`; None without a mixture."""
        return self._ensemble_for(None, horizon, levels)

    # -- inside --------------------------------------------------------------------------------

    def _newer(self, frame: Any) -> Panel:
        """The panel of a frame, on the models' clock."""
        return on_model_clock(self._fitted(), self._read(frame, new=True))

    def _read(self, frame: Any, *, new: bool) -> Panel:
        data = self.settings.data
        fresh = replace(data, start="", end="", ids=())  # those of `fit` do not restrict new data
        with options_renamed(as_setting):
            return frame_panel(frame, fresh if new else data, strict=not new)

    def _continued(self, new: Panel) -> Panel:
        """The data of `fit`, if available, followed by the new ones."""
        if self._panel is None:
            return new
        for sentence in describe_gap(self._panel, new):
            warnings.warn(sentence, stacklevel=3)
        return join_panels(self._panel, new)

    def _plausible(self, panel: Panel) -> Panel:
        return without_implausible(panel, self.settings, self._ensemble)

    def _ensemble_for(
        self, new: Panel | None, horizon: int, level: Sequence[float] | None
    ) -> Ensemble | None:
        """A copy of the ensemble that may learn `new` data, with intervals for these levels.

        Calls do not depend on the calls before them. New data that overlap those of `fit` may
        change them, so the copy then learns everything after training again.
        """
        if self._ensemble is None:
            if level is not None:
                raise FuelsError(NO_INTERVALS)
            return None
        check_horizon(horizon)
        levels = self._ensemble.levels if level is None else checked_levels(level)
        if self._panel is None:  # experts cannot be fitted without the training data
            if set(levels) - set(self._ensemble.levels):
                known = ", ".join(f"{each:g}" for each in self._ensemble.levels)
                raise FuelsError(f"this forecaster was loaded with intervals for {known} % only")
            return self._ensemble.copy()
        learned = self._learned_ensemble(horizon, levels)
        if new is None or new.start > self._panel.times[-1]:
            return learned.copy()
        history = self._ensemble.history(self._plausible(self._panel))
        return self._ensemble.with_levels(history, levels)

    def _learned_ensemble(self, horizon: int, levels: tuple[float, ...]) -> Ensemble:
        """The ensemble after all data of `fit`; each horizon is fitted once and remembered."""
        learned = self._learned.get(levels)
        if learned is None or not learned.horizons.keys() >= set(range(1, horizon + 1)):
            assert self._ensemble is not None
            history = self._ensemble.history(self._plausible(self._history()))
            self._ensemble.fit(history, range(1, horizon + 1), keep=False)
            learned = self._ensemble.with_levels(history, levels)
            learned.learn(history, max(self._ensemble.horizons))
            self._learned[levels] = learned
        return learned

    def _fitted(self) -> PersonalModels:
        if self.models is None:
            raise FuelsError("this forecaster has no models yet: call fit or load first")
        return self.models

    def _history(self) -> Panel:
        if self._panel is None:
            raise FuelsError("this forecaster has no data: give the newest values as frame")
        return self._panel

    def _give(self, table: pl.DataFrame, frame: Any) -> Any:  # like `frame`, or that of `fit`
        return (self._kind if frame is None else Kind.of(frame)).give(table)
