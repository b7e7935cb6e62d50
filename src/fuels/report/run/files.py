"""What a report reads from a run folder; earlier versions did not write all of these files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fuels.arrays import Floats
from fuels.errors import FuelsError
from fuels.evaluation.series import Series, read_series, read_table
from fuels.evaluation.summary import BEST, Kept, why_last
from fuels.methods.registry import find_method
from fuels.report.style import number
from fuels.storage.run_folder import RunFolder


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
    path: Path, summary: Mapping[str, Any] | None = None, monitored: Mapping[str, Any] | None = None
) -> RunFiles:
    """The results in a run folder; `summary` is given if it is not written yet."""
    folder = RunFolder(path)
    if summary is None:
        summary = folder.read_summary()
    forecasts = read_series(folder.forecasts)
    ids = () if forecasts is None else forecasts.ids
    return RunFiles(
        path=path,
        summary=completed(summary),
        config=_text(folder.config),
        history=folder.history(),
        forecasts=forecasts,
        ahead=read_series(folder.ahead),
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


def _errors(path: Path, ids: tuple[str, ...]) -> dict[str, dict[str, Floats]]:
    """errors.parquet: the errors of each forecast, in the order of the clients."""
    frame = read_table(path, "client", "forecast", "mse")
    found: dict[str, dict[str, Floats]] = {}
    if frame is None:
        return found
    for name in frame["forecast"].unique(maintain_order=True):
        own = frame.filter(pl.col("forecast") == name).drop("forecast")
        found[name] = _columns(own, ids)
    return found


def _by_client(path: Path, ids: tuple[str, ...], prefix: str) -> dict[str, Floats]:
    frame = read_table(path, "client")
    if frame is None:
        return {}
    columns = _columns(frame, ids).items()
    return {n.removeprefix(prefix): values for n, values in columns if n.startswith(prefix)}


def _weights(path: Path, ids: tuple[str, ...]) -> dict[str, Floats]:
    """Mean weight of each expert; the file may be large, so it is not read as a whole."""

    def means(path: Path) -> pl.DataFrame:
        by_client = pl.scan_parquet(path).drop("time").group_by("client", maintain_order=True)
        return by_client.agg(pl.all().fill_nan(None).mean()).collect()

    frame = read_table(path, read=means)
    return {} if frame is None else _columns(frame, ids)


def _columns(frame: pl.DataFrame, ids: tuple[str, ...]) -> dict[str, Floats]:
    """All columns of numbers, in the order of the clients."""
    order = pl.DataFrame({"client": ids}, schema={"client": pl.String})
    own = order.join(frame, on="client", how="left", maintain_order="left").drop("client")
    return {each.name: each.cast(pl.Float64).fill_null(math.nan).to_numpy() for each in own}
