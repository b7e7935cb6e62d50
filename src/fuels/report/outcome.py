"""What a finished run hands to the report: its settings, data, history, forecasts and errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from fuels.config import Settings
    from fuels.data.windows import Dataset
    from fuels.scores import Scores


@dataclass(frozen=True)
class Outcome:
    """One run, as tables and plots need it."""

    title: str  # of the method, "FUELS"
    settings: Settings
    dataset: Dataset
    history: list[dict[str, Any]]  # the lines of metrics.jsonl; None where a figure is absent
    forecasts: dict[str, NDArray[Any]]  # normalised, [client, step] of the test part; method first
    scores: dict[str, Scores]  # of the same names
    summary: dict[str, Any]  # what summary.json holds


def best_reference(outcome: Outcome) -> str | None:
    """The reference with the least mean MSE: what the method has to beat."""
    means = {name: scores.means()["mse"] for name, scores in outcome.scores.items()}
    means.pop(outcome.title, None)
    return min(means, key=lambda name: means[name]) if means else None
