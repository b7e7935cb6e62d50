"""The record of a run: a small JSON object with everything a comparison needs.

Run folders are large and stay where they were made; records are small enough to be published with
the project. A record holds the completed settings, the errors of the method and of the references
for each client, the mean errors of the experts in a mixture, and the history of the rounds, with
seven significant digits. It names no folder of the machine it was made on. The errors of the method
for each period of the test part, with four digits, let a comparison divide the test part later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats
from fuels.config import Settings, to_dict
from fuels.data.files import os_errors, write_text
from fuels.data.loading import SYNTHETIC
from fuels.data.means import ratio
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.evaluation.outcome import Outcome, method_rows
from fuels.evaluation.scores import Scores
from fuels.evaluation.summary import NO_TARGETS
from fuels.runs.settings import resolve
from fuels.storage.config_file import flat

FORMAT = 1
DIGITS, DIGITS_BY_PERIOD = 7, 4
NOTHING_BY_PERIOD = "mse with nothing shared"
NOTHING_TO_COMPARE = (
    f"{{}}: the test part {NO_TARGETS}, so a comparison has nothing to compare; change"
    " windows.split"
)
NOT_RECORDED = ("round", "best_round", "failures")  # of a round's line in metrics.jsonl


@dataclass(frozen=True)
class Record:
    """One finished run."""

    key: str
    method: str
    title: str
    version: str
    settings: dict[str, Any]
    data: dict[str, Any]  # name, synthetic, unit, step_seconds, clients, left_out, periods
    clients: tuple[str, ...]
    std: Floats  # [client], turns errors into the data's unit
    mse: dict[str, Floats]  # forecast: [client], z-scored; the method comes first
    mae: dict[str, Floats]
    history: dict[str, Floats]  # figure: [round], NaN where it is absent
    kept_model: str
    sent: dict[str, float]  # numbers_up, numbers_down per client and round; total_up, total_down
    seconds: float
    # Mean errors of the experts, coverage and width of the intervals, and how often the model had
    # the largest weight, as in summary.json; empty without a mixture.
    mixture: dict[str, Any] = field(default_factory=dict)
    # mse and mae of the method and the number of targets, each [client, period of the test part];
    # empty in records from before they were kept. Also the mse with nothing shared, if that is a
    # row of the run.
    by_period: dict[str, Floats] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the record is called in a folder or an archive."""
        return f"{self.method}-{self.key}"

    @property
    def data_name(self) -> str:
        return f"{self.data['name']}{' (synthetic data)' if self.data['synthetic'] else ''}"

    @property
    def split(self) -> str:
        return "/".join(map(str, self.data["periods"]))

    @property
    def rounds(self) -> int:
        return len(next(iter(self.history.values()), ()))

    @property
    def references(self) -> tuple[str, ...]:
        return tuple(name for name in self.mse if name not in method_rows(self.title))

    def scores(self, name: str | None = None) -> Scores:
        """Errors of the method, or of a reference by name."""
        name = name or self.title
        return Scores(self.mse[name], self.mae[name], self.std)

    def mse_by_period(self, name: str) -> Floats | None:
        """MSE [client, test period] of the method or with nothing shared, if it is known."""
        key = {self.title: "mse", method_rows(self.title)[2]: NOTHING_BY_PERIOD}.get(name, "")
        return self.by_period.get(key)

    def sent_per_client(self) -> Floats:
        """Numbers that travelled up and down until the end of each round, mean over all clients."""
        each = self.history["numbers_up"] + self.history["numbers_down"]
        return np.cumsum(each * self.history["clients"]) / len(self.clients)

    def serves_as(self, other: Record) -> bool:
        """Whether this record of the same run need not be replaced by the other."""
        return agree(self.settings, other.settings) and bool(self.by_period or not other.by_period)

    # -- on disk -------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises ValueError or KeyError if the parts do not fit together."""
        int(self.settings["seed"])
        for errors in (self.mse, self.mae):
            if {len(self.clients), len(self.std)} != {len(values) for values in errors.values()}:
                raise ValueError("not one error for each client")
            if not np.isfinite(errors[self.title]).any():
                raise ValueError("no errors of the method")
        if self.by_period and {rows.shape for rows in self.by_period.values()} != {
            (len(self.clients), len(self.by_period["targets"][0]))
        }:
            raise ValueError("not one error for each client and period")

    def to_dict(self) -> dict[str, Any]:
        content = {"format": FORMAT, **plain(asdict(replace(self, by_period={})))}
        content["by_period"] = plain(self.by_period, DIGITS_BY_PERIOD)
        for added in ("mixture", "by_period"):  # early records have no such entries
            if not content[added]:
                del content[added]
        return content

    @classmethod
    def from_json(cls, text: str, place: str) -> Record:
        """A record from its JSON text; `place` names it in errors."""
        try:
            content = json.loads(text)
            if content.pop("format") != FORMAT:
                raise FuelsError(f"{place}: a record in another format; delete it to run again")
            for name in ("mse", "mae", "history"):
                content[name] = {key: _floats(value) for key, value in content[name].items()}
            content["by_period"] = {
                name: np.array([_floats(row) for row in rows])
                for name, rows in content.get("by_period", {}).items()
            }
            content["std"], content["clients"] = _floats(content["std"]), tuple(content["clients"])
            record = cls(**content)
            record.check()
            return record
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FuelsError(f"{place}: not the record of a run; delete it to run again") from None

    def write(self, path: Path) -> None:
        """One line per entry, so that a diff of two records is readable."""
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in self.to_dict().items()]
        write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")

    @classmethod
    def read(cls, path: Path) -> Record:
        try:
            with os_errors(path, "cannot be read"):
                text = path.read_text(encoding="utf-8")
        except ValueError:
            text = ""  # not text: reported like any other file that is not a record
        return cls.from_json(text, str(path))


def make_record(key: str, outcome: Outcome) -> Record:
    """The record of a finished run."""
    if not outcome.scores:
        raise FuelsError(NOTHING_TO_COMPARE.format(outcome.dataset.panel.name))
    dataset, summary, history = outcome.dataset, outcome.summary, outcome.history
    periods = by_period(dataset, outcome.forecasts[outcome.title])
    if (alone := outcome.forecasts.get(method_rows(outcome.title)[2])) is not None:
        periods[NOTHING_BY_PERIOD] = by_period(dataset, alone)["mse"]
    columns = dict.fromkeys(name for line in history for name in line if name not in NOT_RECORDED)
    sent, totals = summary["per_client_and_round"], summary["totals"]
    return Record(
        key=key,
        method=outcome.settings.method,
        title=outcome.title,
        version=summary["version"],
        settings=describe(outcome.settings),
        data=data_facts(dataset),
        clients=dataset.ids,
        std=dataset.std,
        mse={name: scores.mse for name, scores in outcome.scores.items()},
        mae={name: scores.mae for name, scores in outcome.scores.items()},
        history={name: _floats([line.get(name) for line in history]) for name in columns},
        kept_model=summary["kept_model"],
        sent={f"numbers_{way}": sent[f"numbers_{way}"] for way in ("up", "down")}
        | {f"total_{way}": totals[f"numbers_{way}"] for way in ("up", "down")},
        seconds=round(sum(summary["seconds"].values()), 1),
        mixture={} if outcome.mixture is None else outcome.mixture.summary(),
        by_period=periods,
    )


def by_period(dataset: Dataset, forecast: NDArray[Any]) -> dict[str, Floats]:
    """mse, mae and targets of a forecast of the test part [client, step], each [client, period]."""
    first, last = dataset.split.part("test")
    starts = np.arange(0, last - first, dataset.period)
    target = dataset.target[:, first:last]
    apart = np.where(target, dataset.series[:, first:last].astype(np.float64) - forecast, 0.0)
    targets = np.add.reduceat(target, starts, axis=1, dtype=np.float64)
    return {
        "targets": targets,
        "mse": ratio(np.add.reduceat(apart**2, starts, axis=1), targets),
        "mae": ratio(np.add.reduceat(np.abs(apart), starts, axis=1), targets),
    }


def describe(settings: Settings) -> dict[str, Any]:
    """Every setting with its value, including the method's options; files without their folders."""
    content = to_dict(resolve(settings))
    if start := settings.training.warm_start:
        content["training"]["warm_start"] = run_identity(Path(start))
    data = content["data"]
    for name in ("source", "coordinates"):
        if not data[name].startswith(SYNTHETIC):
            data[name] = Path(data[name]).name
    return content


def agree(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether every deciding setting that both sides name has the same value.

    A key covers only what differs from the defaults. Comparing all settings makes that safe: a
    record made under other defaults is not reused.
    """
    first, second = flat(one), flat(other)
    shared = first.keys() & second.keys()
    return all(first[name] == second[name] for name in shared if not describes_data(name))


def describes_data(name: str) -> bool:
    """Whether a setting only says where the data come from or how they are split."""
    return name.startswith("data.") or name == "windows.split"


def run_identity(run: Path) -> str:
    """An earlier run: the name of its folder and a digest of its models, which may change."""
    models = run / "models.safetensors" if run.is_dir() else run
    if not models.is_file():  # refused with a message where it is read
        return run.name
    return f"{run.name}:{hashlib.blake2b(models.read_bytes(), digest_size=6).hexdigest()}"


def data_facts(dataset: Dataset) -> dict[str, Any]:
    panel, split, period = dataset.panel, dataset.split, dataset.period
    return {
        "name": panel.name,
        "synthetic": panel.synthetic,
        "unit": panel.unit,
        "step_seconds": panel.step_seconds,
        "left_out": len(dataset.left_out),
        "values_filled": dataset.filled,
        "periods": [
            -(-(last - first) // period)
            for first, last in (split.part(part) for part in ("train", "val", "test"))
        ],
    }


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def plain(value: Any, digits: int = DIGITS) -> Any:
    """Values for JSON: numbers with so many digits, null for NaN."""
    if isinstance(value, Mapping):
        return {key: plain(inner, digits) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(inner, digits) for inner in value]
    if isinstance(value, float):
        if not np.isfinite(value):
            return None
        return int(value) if value.is_integer() else float(f"{value:.{digits}g}")
    return value
