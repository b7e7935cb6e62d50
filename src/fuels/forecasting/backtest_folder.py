"""The folder of a backtest: windows as they are finished, then the results.

config.toml           the settings, and backtest.json the origins: together they reproduce it
windows/001.parquet   forecasts of each window, for resuming
forecasts.parquet     all windows: unique_id, ds, cutoff, y, the method, its intervals, references
clients.csv           errors by model and client
summary.json          errors by model, and by model and steps ahead
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import polars as pl

from fuels.config import Engine, Settings
from fuels.data.files import writing
from fuels.data.inputs import digest as inputs_digest
from fuels.data.panel import Panel
from fuels.errors import FuelsError
from fuels.evaluation.accuracy import accuracy, naive_scales, overall
from fuels.forecasting.backtest import REFERENCES, Plan, rolling
from fuels.forecasting.forecaster import Forecaster, Watch
from fuels.methods.registry import find_method
from fuels.storage.config_file import read_config
from fuels.storage.run_folder import RunFolder
from fuels.storage.tables import write_table

PLAN, WINDOWS = "backtest.json", "windows"
SHOWN = (1, 2, 3, 6, 12, 24, 48, 72, 168)  # steps ahead in the table by steps


class BacktestFolder:
    """One backtest on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.windows = path / WINDOWS

    def begin(self, settings: Settings, engine: Engine, plan: Plan, panel: Panel) -> None:
        """Write what the backtest is; a folder that is not empty is refused."""
        RunFolder(self.path).begin(settings, engine)
        self._write_json(PLAN, {**asdict(plan), "data": fingerprint(panel)})
        self.windows.mkdir(exist_ok=True)

    @classmethod
    def reopen(cls, path: Path) -> tuple[BacktestFolder, Settings, Engine, Plan]:
        """An interrupted backtest."""
        folder = cls(path)
        if not (path / PLAN).is_file():
            raise FuelsError(f"{path}: no backtest to continue here, {PLAN} is missing")
        if (path / "summary.json").is_file():
            raise FuelsError(f"{path}: this backtest is finished; there is nothing to resume")
        settings, engine = read_config(path / "config.toml")
        facts = folder._plan()
        return folder, settings, engine, Plan(**{k: v for k, v in facts.items() if k != "data"})

    def run(
        self,
        forecaster: Forecaster,
        panel: Panel,
        plan: Plan,
        watch: Watch | None = None,
        begun: Callable[[int], None] = lambda number: None,
    ) -> dict[str, Any]:
        """Forecast the windows that are not there yet, and write the results; the summary."""
        if self._plan()["data"] != fingerprint(panel):
            raise FuelsError(
                f"{self.path}: the data have changed since this backtest was interrupted, so it"
                " cannot be resumed; delete the folder or choose another"
            )
        name = find_method(forecaster.settings.method).title
        levels = forecaster.settings.mixture.levels
        done = [path for k in range(plan.windows) if (path := self._window(k + 1)).is_file()]
        whole = next((k for k in range(plan.windows) if self._window(k + 1) not in done), None)
        if whole is not None:
            for window in rolling(forecaster, panel, plan, None, watch, begun, first=whole + 1):
                table = window.table(name, levels, references=True)
                write_table(table, self._window(window.number))
        tables = [pl.read_parquet(self._window(k + 1)) for k in range(plan.windows)]
        table = pl.concat(tables, how="diagonal")
        return self._conclude(table, name, forecaster.settings, plan, panel)

    # -- inside --------------------------------------------------------------------------------

    def _conclude(
        self, table: pl.DataFrame, name: str, settings: Settings, plan: Plan, panel: Panel
    ) -> dict[str, Any]:
        models = [name, *(each for each in REFERENCES if each in table.columns)]
        scales = naive_scales(panel, plan.origins(panel.length)[0], settings.windows.period)
        by_client = accuracy(table, models, scales)
        ahead = pl.int_range(pl.len()).over("unique_id", "cutoff") + 1
        steps = [h for h in (*SHOWN, plan.horizon) if h <= plan.horizon]
        by_step = accuracy(
            table.with_columns(steps_ahead=ahead).filter(pl.col("steps_ahead").is_in(steps)),
            models,
            scales,
            by=("unique_id", "steps_ahead"),
        )
        summary = {
            "method": name,
            "data": {"name": panel.name, "unit": panel.unit, "synthetic": panel.synthetic},
            **asdict(plan),
            "from": table["ds"].dt.strftime("%Y-%m-%d %H:%M").min(),
            "to": table["ds"].dt.strftime("%Y-%m-%d %H:%M").max(),
            "errors": overall(by_client).to_dicts(),
            "by_step": overall(by_step, ("model", "steps_ahead")).to_dicts(),
            "lower_for": lower_for(by_client, name),
        }
        write_table(table, self.path / "forecasts.parquet")
        write_table(by_client, self.path / "clients.csv")
        self._write_json("summary.json", summary)
        return summary

    def _window(self, number: int) -> Path:
        return self.windows / f"{number:03d}.parquet"

    def _plan(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.path / PLAN).read_text(encoding="utf-8"))
            Plan(**{key: value for key, value in found.items() if key != "data"})
        except (OSError, ValueError, TypeError, AttributeError):
            raise FuelsError(
                f"{self.path / PLAN}: cannot be read; delete the folder and start again"
            ) from None
        return found

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        with writing(self.path / name) as temporary:
            temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def lower_for(by_client: pl.DataFrame, name: str) -> dict[str, Any]:
    """The best reference by MAE, and for how many clients the method's MAE is lower."""
    means = overall(by_client).sort("mae")
    best = next(model for model in means["model"] if model != name)
    own, other = (
        by_client.filter(pl.col("model") == model).select("unique_id", "mae")
        for model in (name, best)
    )
    both = own.join(other, on="unique_id", suffix="_other")
    better = int((both["mae"] < both["mae_other"]).sum())
    return {"reference": best, "clients": better, "of": len(both)}


def fingerprint(panel: Panel) -> str:
    """A digest of the data: a resumed backtest must use the same."""
    digest = hashlib.blake2b("\n".join(panel.ids).encode(), digest_size=8)
    digest.update(panel.values.tobytes())
    digest.update(str((panel.start, panel.step)).encode())
    digest.update(inputs_digest(panel.inputs))
    return digest.hexdigest()


def forecaster_for(settings: Settings, engine: Engine, plan: Plan) -> Forecaster:
    """The forecaster of a backtest; training has a head for each step ahead."""
    windows = replace(settings.windows, horizon=plan.horizon)
    return Forecaster.of(replace(settings, windows=windows), engine)
