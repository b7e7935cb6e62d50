"""What a report reads from a run folder; earlier versions did not write all of these files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.evaluation.means import Floats, mean
from fuels.evaluation.summary import BEST, Kept, why_last
from fuels.methods.registry import find_method
from fuels.report.style import number
from fuels.storage.run_folder import RunFolder


@dataclass(frozen=True)
class Series:
    """forecasts.parquet or ahead.parquet as arrays [client, step], in the data's unit."""

    ids: tuple[str, ...]
    times: tuple[datetime, ...]  # local where the zone is known
    forecast: Floats
    actual: Floats  # NaN throughout if the values are not known yet
    levels: tuple[str, ...]  # of the intervals, "80"
    lower: Floats  # [level, client, step]
    upper: Floats

    @cached_property
    def error(self) -> Floats:
        """Absolute error, NaN where there is no forecast or no value."""
        return np.abs(self.forecast - self.actual)

    @property
    def step(self) -> timedelta:
        return self.times[1] - self.times[0] if len(self.times) > 1 else timedelta(hours=1)

    @property
    def widest(self) -> int | None:
        """The place of the widest interval among the levels."""
        return max(range(len(self.levels)), key=lambda i: float(self.levels[i]), default=None)

    @cached_property
    def missed(self) -> NDArray[np.bool_]:
        """Values outside the widest interval; without intervals, errors four times as large as the
        client's mean error."""
        if self.widest is None:
            with np.errstate(invalid="ignore"):
                return np.asarray(self.error > 4 * mean(self.error, axis=1)[:, None])
        lower, upper = self.lower[self.widest], self.upper[self.widest]
        return np.asarray((self.actual < lower) | (self.actual > upper))  # false for NaN


@dataclass(frozen=True)
class RunFiles:
    """The results of a finished run, or of a site in a federation."""

    path: Path
    summary: Mapping[str, Any]
    config: str  # the text of config.toml
    history: list[dict[str, Any]]
    forecasts: Series | None
    ahead: Series | None
    errors: Mapping[str, Mapping[str, Floats]]  # by forecast and measure, [client]
    inside: Mapping[str, Floats]  # share of the values inside the intervals by level, [client]
    weights: Mapping[str, Floats]  # mean weight of each expert, [client]
    audit: Mapping[str, Any] | None  # what `fuels audit` found, if it has looked
    monitored: Mapping[str, Any] | None = None  # what `fuels monitor` finds, if it has forecast

    @property
    def title(self) -> str:
        return str(self.summary["title"])

    @property
    def unit(self) -> str:
        """The unit of the values, empty if it is not known."""
        unit = str(self.summary["data"]["unit"])
        return "" if unit == "value" else unit

    @property
    def period(self) -> int:
        return int(self.summary["settings"]["windows"]["period"])

    @property
    def best_reference(self) -> str | None:
        return self.summary.get("best_reference")

    def measured(self, value: float | None, digits: int = 3) -> str:
        """A value with its unit."""
        return f"{number(value, digits)} {self.unit}".rstrip()


def read_run(
    path: Path,
    summary: Mapping[str, Any] | None = None,
    monitored: Mapping[str, Any] | None = None,
) -> RunFiles:
    """The results in a run folder; `summary` is given if it is not written yet."""
    folder = RunFolder(path)
    if summary is None:
        summary = folder.read_summary()
    forecasts = _series(folder.forecasts)
    ids = () if forecasts is None else forecasts.ids
    return RunFiles(
        path=path,
        summary=completed(summary),
        config=_text(folder.config),
        history=folder.history(),
        forecasts=forecasts,
        ahead=_series(folder.ahead),
        errors=_errors(folder.errors, ids),
        inside=_by_client(folder.coverage, ids, "inside-"),
        weights=_weights(folder.weights, ids),
        audit=_json(path / "audit" / "audit.json"),
        monitored=monitored,
    )


def completed(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """A summary with the entries that version 0.1.0 did not write."""
    if "kept_clients" in summary:
        return summary
    settings, data = summary["settings"], summary["data"]
    clients, (_, validation, test) = data["clients"], settings["windows"]["split"].split("/")
    if summary["kept_model"] == BEST:
        kept = Kept(best=clients)
    else:
        kept = Kept(last=clients, reason=why_last(settings["training"]["keep"], int(validation)))
    known = {"clients_scored": clients, "test_steps": int(test) * settings["windows"]["period"]}
    title = find_method(summary["method"]).title
    return {"title": title, **summary, **kept.summary(), "data": {**known, **data}}


def _json(path: Path) -> Mapping[str, Any] | None:
    """The content of a JSON file; None without one."""
    try:
        found: Mapping[str, Any] | None = json.loads(_text(path) or "null")
    except ValueError:
        raise FuelsError(f"{path}: is not JSON; run fuels audit again") from None
    return found


def _text(path: Path) -> str:
    """A text file; empty if the folder was copied without it."""
    try:
        return path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise FuelsError(f"{path}: cannot be read ({error})") from None


def _read(path: Path, *needed: str) -> pl.DataFrame | None:
    """A table of a run; None if there is no such file."""
    if not path.exists():
        return None
    try:
        frame = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise FuelsError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None
    if missing := [name for name in needed if name not in frame.columns]:
        raise FuelsError(f"{path}: not written by a run, the column {missing[0]} is missing")
    return frame


def _series(path: Path) -> Series | None:
    frame = _read(path, "client", "time", "forecast")
    if frame is None or not len(frame):
        return None
    ids = tuple(frame["client"].unique(maintain_order=True).to_list())
    steps = len(frame) // len(ids)
    if steps * len(ids) != len(frame):
        raise FuelsError(f"{path}: the clients have different numbers of rows")

    def column(name: str) -> Floats:
        return frame[name].cast(pl.Float64).fill_null(math.nan).to_numpy().reshape(len(ids), steps)

    levels = tuple(n.removeprefix("lower-") for n in frame.columns if n.startswith("lower-"))
    forecast = column("forecast")
    none = np.empty((0, *forecast.shape))
    return Series(
        ids=ids,
        times=tuple(frame["time"].head(steps).to_list()),
        forecast=forecast,
        actual=column("actual") if "actual" in frame.columns else np.full(forecast.shape, np.nan),
        levels=levels,
        lower=np.stack([column(f"lower-{x}") for x in levels]) if levels else none,
        upper=np.stack([column(f"upper-{x}") for x in levels]) if levels else none,
    )


def _errors(path: Path, ids: tuple[str, ...]) -> dict[str, dict[str, Floats]]:
    """errors.parquet: the errors of each forecast, in the order of the clients."""
    frame = _read(path, "client", "forecast", "mse")
    found: dict[str, dict[str, Floats]] = {}
    if frame is None:
        return found
    for name in frame["forecast"].unique(maintain_order=True):
        own = _in_order(frame.filter(pl.col("forecast") == name), ids)
        measures = [column for column in own.columns if column not in ("client", "forecast")]
        found[name] = {measure: _numbers(own[measure]) for measure in measures}
    return found


def _by_client(path: Path, ids: tuple[str, ...], prefix: str) -> dict[str, Floats]:
    frame = _read(path, "client")
    if frame is None:
        return {}
    own = _in_order(frame, ids)
    names = [name for name in own.columns if name.startswith(prefix)]
    return {name.removeprefix(prefix): _numbers(own[name]) for name in names}


def _weights(path: Path, ids: tuple[str, ...]) -> dict[str, Floats]:
    """Mean weight of each expert; the file may be large, so it is not read as a whole."""
    if not path.exists():
        return {}
    try:
        frame = (
            pl.scan_parquet(path)
            .drop("time")
            .group_by("client", maintain_order=True)
            .agg(pl.all().fill_nan(None).mean())
            .collect()
        )
    except (OSError, pl.exceptions.PolarsError) as error:
        raise FuelsError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None
    own = _in_order(frame, ids)
    return {name: _numbers(own[name]) for name in own.columns if name != "client"}


def _in_order(frame: pl.DataFrame, ids: tuple[str, ...]) -> pl.DataFrame:
    order = pl.DataFrame({"client": ids}, schema={"client": pl.String})
    return order.join(frame, on="client", how="left", maintain_order="left")


def _numbers(column: pl.Series) -> Floats:
    return column.cast(pl.Float64).fill_null(math.nan).to_numpy()
