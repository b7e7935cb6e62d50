"""The record of a run: a small JSON file that is all a comparison needs.

Run folders are large and stay where they were made; records are small enough to be kept with the
project. A record holds the completed settings, every client's errors of the method and of the
references, the means of the experts beside a model, and the history of the rounds, with seven
significant digits. It names no folder of the machine it was made on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.config import Settings, to_dict
from fuels.data.loading import SYNTHETIC
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.evaluation.outcome import Outcome, own_rows
from fuels.evaluation.scores import Scores
from fuels.evaluation.summary import NO_TARGETS
from fuels.methods.registry import complete, method_options
from fuels.research.study.files import write_text

FORMAT = 1
DIGITS = 7
NOTHING_TO_COMPARE = (
    f"{{}}: the test part {NO_TARGETS}, so a comparison has nothing to compare; change"
    " windows.split"
)
Floats = NDArray[np.float64]
# Of a round: who took part, losses, validation errors and what was sent. Failures stay in the log.
NOT_KEPT = ("round", "best_round", "failures")


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
    # Means of the experts, coverage and width of the intervals, how often the model led, as
    # summary.json has them; empty without a mixture.
    mixture: dict[str, Any] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        return len(next(iter(self.history.values()), ()))

    @property
    def references(self) -> tuple[str, ...]:
        return tuple(name for name in self.mse if name not in own_rows(self.title))

    def scores(self, name: str | None = None) -> Scores:
        """Errors of the method, or of a reference by name."""
        name = name or self.title
        return Scores(self.mse[name], self.mae[name], self.std)

    def sent_per_client(self) -> Floats:
        """Numbers that travelled up and down until the end of each round, mean over all clients."""
        each = self.history["numbers_up"] + self.history["numbers_down"]
        total: Floats = np.cumsum(each * self.history["clients"]) / len(self.clients)
        return total

    # -- on disk -------------------------------------------------------------------------------

    def need_whole(self) -> None:
        """Raises ValueError or KeyError where the parts do not fit each other."""
        int(self.settings["seed"])
        for errors in (self.mse, self.mae):
            if {len(self.clients), len(self.std)} != {len(values) for values in errors.values()}:
                raise ValueError("not one error for each client")
            if not np.isfinite(errors[self.title]).any():
                raise ValueError("no errors of the method")

    def write(self, path: Path) -> None:
        """One line for each entry, so that a difference between two records can be read."""
        content = {"format": FORMAT, **_plain(asdict(self))}
        if not self.mixture:  # then it is as it was before there were mixtures
            del content["mixture"]
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
        write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")

    @classmethod
    def read(cls, path: Path) -> Record:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("format") != FORMAT:
                raise FuelsError(f"{path}: a record of another format; delete it to run again")
            for name in ("mse", "mae", "history"):
                content[name] = {key: _floats(value) for key, value in content[name].items()}
            content["std"], content["clients"] = _floats(content["std"]), tuple(content["clients"])
            found = cls(**content)
            found.need_whole()
            return found
        except OSError as error:
            raise FuelsError(f"{path}: cannot be read ({error.strerror})") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FuelsError(f"{path}: not the record of a run; delete it to run again") from None


def make_record(key: str, outcome: Outcome) -> Record:
    """What is kept of a finished run."""
    if not outcome.scores:
        raise FuelsError(NOTHING_TO_COMPARE.format(outcome.dataset.panel.name))
    dataset, summary, history = outcome.dataset, outcome.summary, outcome.history
    columns = dict.fromkeys(name for line in history for name in line if name not in NOT_KEPT)
    sent, totals = summary["per_client_and_round"], summary["totals"]
    return Record(
        key=key,
        method=outcome.settings.method,
        title=outcome.title,
        version=summary["version"],
        settings=described(outcome.settings),
        data=data_facts(dataset),
        clients=dataset.ids,
        std=dataset.std,
        mse={name: scores.mse for name, scores in outcome.scores.items()},
        mae={name: scores.mae for name, scores in outcome.scores.items()},
        history={name: _floats([line.get(name) for line in history]) for name in columns},
        kept_model=summary["kept_model"],
        sent={
            "numbers_up": sent["numbers_up"],
            "numbers_down": sent["numbers_down"],
            "total_up": totals["numbers_up"],
            "total_down": totals["numbers_down"],
        },
        seconds=round(sum(summary["seconds"].values()), 1),
        mixture={} if outcome.mixture is None else outcome.mixture.summary(),
    )


def described(settings: Settings) -> dict[str, Any]:
    """Every setting with its value, the method's own included; files by their name alone."""
    settings = complete(settings)
    content = to_dict(settings)
    content["options"] = asdict(method_options(settings.method, settings.options))
    if start := settings.training.warm_start:
        content["training"]["warm_start"] = named_by_content(Path(start))
    data = content["data"]
    for name in ("source", "coordinates"):
        if not data[name].startswith(SYNTHETIC):
            data[name] = Path(data[name]).name
    return content


def named_by_content(run: Path) -> str:
    """An earlier run by the name of its folder and a digest of its models, which may change."""
    models = run / "models.safetensors" if run.is_dir() else run
    if not models.is_file():  # refused in words where it is read
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


def _plain(value: Any) -> Any:
    """Values as JSON has them: seven digits, null for NaN."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return [_plain(float(number)) for number in value]
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        if not np.isfinite(value):
            return None
        return int(value) if value.is_integer() else float(f"{value:.{DIGITS}g}")
    return value
