"""`Forecaster`: fit, predict, evaluate, save and load on a long table, as forecasters know it.

A frame is a pandas or polars table with the columns unique_id, ds (time) and y (value). What comes
back is of the kind that went in.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fuels.build import build
from fuels.config import Engine, Settings, check, merge
from fuels.data.panel import Panel
from fuels.data.synthetic import synthesise
from fuels.data.tables import panel_from_frame
from fuels.errors import FuelsError
from fuels.forecast import fill_from_past, forecast
from fuels.forecast_table import forecast_table, in_zone
from fuels.methods import find_method
from fuels.methods.base import MODEL
from fuels.models import PersonalModels, load_models, personal_models, save_models
from fuels.scores import errors

SAVED = {"models.safetensors", "recent.parquet", "config.toml"}  # the files of `save`


def example_frame(activity: str = "net", clients: int = 8, days: int = 28) -> pl.DataFrame:
    """Synthetic hourly traffic as a long table unique_id, ds, y, to try things on."""
    panel = synthesise(activity, clients=clients, days=days)
    return long_frame(panel)


def long_frame(panel: Panel) -> pl.DataFrame:
    """A panel as a long table unique_id, ds, y without the missing values."""
    frame = pl.DataFrame(
        {
            "unique_id": np.repeat(np.array(panel.ids), panel.length),
            "time": np.tile(panel.times.astype("datetime64[ms]"), len(panel.ids)),
            "y": panel.values.T.ravel(),
        }
    )
    return in_zone(frame, panel.timezone).rename({"time": "ds"}).filter(~pl.col("y").is_nan())


class Forecaster:
    """Personal forecasters for many series, trained together on this machine.

    method: any of `fuels run --method`. period: steps in a period. rounds, patience: training stops
    after `rounds`, or earlier when the validation error has not improved for `patience` rounds; the
    validation part is the last fifth of the periods, or `validation` of them. Further settings by
    their name in config.toml: `settings={"model": {"hidden": 64}, "options": {"tau": 0.05}}`.
    """

    def __init__(
        self,
        method: str = "fuels",
        *,
        period: int = 24,
        rounds: int = 100,
        patience: int = 15,
        validation: int | None = None,
        preset: str = "paper",
        seed: int = 0,
        threads: int = 0,
        settings: dict[str, Any] | None = None,
    ) -> None:
        find_method(method)
        if not isinstance(settings, dict | None):
            raise FuelsError(f"settings must be a dict of sections, not {settings!r}")
        if validation is not None and (not isinstance(validation, int) or validation < 0):
            raise FuelsError(f"validation must be a whole number of periods, not {validation!r}")
        changes = {
            "method": method,
            "preset": preset,
            "seed": seed,
            "windows": {"period": period},
            "training": {"rounds": rounds, "patience": patience},
        }
        self.settings = merge(merge(Settings(), changes, "Forecaster"), settings or {}, "settings")
        check(self.settings)
        self.validation = validation
        self.engine = Engine(threads=threads)
        self.models: PersonalModels | None = None
        self.left_out: dict[str, str] = {}
        self._panel: Panel | None = None
        self._pandas = False

    def __repr__(self) -> str:
        state = "not fitted" if self.models is None else f"{len(self.models.ids)} clients"
        return (
            f"Forecaster(method={self.settings.method!r}, preset={self.settings.preset!r}, {state})"
        )

    # -- the four verbs ------------------------------------------------------------------------

    def fit(self, frame: Any) -> Forecaster:
        """Train on a long table; the newest periods choose the model that is kept."""
        panel = self._read(frame)
        periods = -(
            -(panel.length + int(panel.phases(self.settings.windows.period)[0]))
            // self.settings.windows.period
        )
        usual = min(max(1, periods // 5), periods - 1)
        validation = usual if self.validation is None else self.validation
        if validation >= periods:
            raise FuelsError(
                f"validation is {validation} periods and the data span {periods}: nothing is left"
                " to learn from"
            )
        split = f"{periods - validation}/{validation}/0"
        settings = replace(self.settings, windows=replace(self.settings.windows, split=split))
        with build(settings, self.engine, panel) as job:
            job.loop.run()
            own = {n: p.cpu().numpy() for n, p in job.site.parts.items() if n not in MODEL}
            self.models = personal_models(
                job.dataset,
                job.site.models(job.loop.final_download()),
                own,
                encoder=settings.model.encoder,
                hidden=settings.model.hidden,
                method=settings.method,
            )
        self.left_out = job.dataset.left_out
        self._panel = panel
        return self

    def predict(self, h: int = 1, frame: Any = None) -> Any:
        """The next `h` values of every client: unique_id, ds and a column named after the method.

        They follow the end of the data given to `fit`, or of `frame`.
        """
        models = self._fitted()
        panel = self._history() if frame is None else self._read(frame)
        table = forecast_table(forecast(models, panel, h)).rename(
            {
                "client": "unique_id",
                "time": "ds",
                "forecast": find_method(self.settings.method).title,
            }
        )
        return self._give(table)

    def evaluate(self, frame: Any) -> Any:
        """One-step errors on a table that continues the data of `fit`, one row per client.

        mse and mae are in standard deviations of the client's training part, mse_unit and mae_unit
        in the data's own unit; `values` says how many values were compared.
        """
        models = self._fitted()
        new = self._read(frame)
        whole = _join(self._history(), new) if self._panel is not None else new
        known = [client for client in models.ids if client in set(new.ids)]
        if not known:
            raise FuelsError("none of the clients in this frame has a model")
        rows = np.array([models.ids.index(client) for client in known])
        values = whole.select(known).values
        mean, std = models.mean[rows], models.std[rows]
        z = ((fill_from_past(values, models.period) - mean) / std).T  # [client, time]
        start = int((new.start - whole.start) // whole.step)
        reach = max(max(branch) for branch in models.branches)
        first, last = max(start, reach), start + new.length
        if first >= last:
            raise FuelsError(f"the windows reach back {reach} steps: give more values to evaluate")
        lags = np.array([lag for branch in models.branches for lag in branch])
        steps = np.arange(first, last)[:, None] - lags
        windows = z[:, steps].astype(np.float32)  # [client, step, lag]
        predicted = _predict(models, rows, windows)
        actual = ((new.select(known).values[first - start :] - mean) / std).T
        target = ~np.isnan(actual) & ~np.isnan(predicted)
        mse, mae = errors(np.nan_to_num(actual), np.nan_to_num(predicted), target)
        table = pl.DataFrame(
            {
                "unique_id": known,
                "mse": mse,
                "mae": mae,
                "mse_unit": mse * std**2,
                "mae_unit": mae * std,
                "values": target.sum(axis=1),
            }
        )
        return self._give(table)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the models and how they were made to a folder.

        A folder that holds anything is refused; with `overwrite` one that `save` wrote is replaced.
        """
        from fuels.config import write_toml
        from fuels.data.writers import write_panel

        folder, models = Path(path), self._fitted()
        try:
            _refuse_used(folder, overwrite)
            folder.mkdir(parents=True, exist_ok=True)
            save_models(folder / "models.safetensors", models)
            recent = folder / "recent.parquet"
            write_panel(self._history(), recent, overwrite=True)
            # `fuels forecast FOLDER` then goes on from the data of `fit`.
            data = replace(self.settings.data, source=str(recent.resolve()))
            write_toml(folder / "config.toml", replace(self.settings, data=data), self.engine)
        except OSError as error:
            raise FuelsError(f"{folder}: cannot be written ({error.strerror})") from None

    @classmethod
    def load(cls, path: str | Path) -> Forecaster:
        """A forecaster as `save` wrote it, or one from a run folder's models."""
        from fuels.config import read_config
        from fuels.data.readers import read_panel

        folder = Path(path)
        settings, engine = read_config(folder / "config.toml")
        loaded = cls(settings.method)
        loaded.settings, loaded.engine = settings, engine
        loaded.models = load_models(folder / "models.safetensors")
        recent = folder / "recent.parquet"
        loaded._panel = read_panel(recent) if recent.exists() else None
        return loaded

    # -- inside --------------------------------------------------------------------------------

    def _fitted(self) -> PersonalModels:
        if self.models is None:
            raise FuelsError("this forecaster has no models yet: call fit or load first")
        return self.models

    def _history(self) -> Panel:
        if self._panel is None:
            raise FuelsError("this forecaster holds no data: give the newest values as frame")
        return self._panel

    def _read(self, frame: Any) -> Panel:
        self._pandas = not isinstance(frame, pl.DataFrame)
        return panel_from_frame(frame)

    def _give(self, table: pl.DataFrame) -> Any:
        if not self._pandas:
            return table
        import pandas as pd

        return pd.DataFrame({name: table[name].to_list() for name in table.columns})


def _refuse_used(folder: Path, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise FuelsError(f"{folder} is a file; save writes a folder")
    found = {item.name for item in folder.iterdir()} if folder.is_dir() else set()
    if found and not overwrite:
        raise FuelsError(f"{folder} is not empty; choose another folder or give overwrite=True")
    if strange := sorted(found - SAVED):
        raise FuelsError(
            f"{folder} holds {strange[0]}, which save did not write; choose another folder"
        )


def _join(old: Panel, new: Panel) -> Panel:
    """One panel of two that follow or overlap; where both know a value the newer panel counts."""
    if old.step != new.step or old.timezone != new.timezone:
        raise FuelsError("the new data have another step or time zone than those of fit")
    if (new.start - old.start) % old.step != np.timedelta64(0, "s"):
        raise FuelsError("the times of the new data do not lie on the clock of those of fit")
    start = min(old.start, new.start)
    end = max(old.times[-1], new.times[-1])
    length = int((end - start) // old.step) + 1
    values = np.full((length, len(new.ids)), np.nan)
    at = int((old.start - start) // old.step)
    column = {client: i for i, client in enumerate(old.ids)}
    for i, client in enumerate(new.ids):
        if client in column:
            values[at : at + old.length, i] = old.values[:, column[client]]
    at = int((new.start - start) // old.step)
    block = values[at : at + new.length]
    np.copyto(block, new.values, where=~np.isnan(new.values))
    return replace(new, values=values, start=start)


def _predict(models: PersonalModels, rows: Any, windows: Any) -> Any:
    import torch

    index = torch.from_numpy(rows)
    parts = {name: part[index] for name, part in models.parts.items()}
    with torch.no_grad():
        return models.network.predict(parts, torch.from_numpy(windows)).numpy()
