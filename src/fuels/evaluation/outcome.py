"""The results of a run, for tables and plots: settings, data, history, forecasts and errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fuels.arrays import Floats
from fuels.data.means import known

if TYPE_CHECKING:
    from fuels.config import Settings
    from fuels.data.windows import Dataset
    from fuels.evaluation.coverage import IntervalScores
    from fuels.evaluation.scores import Scores
    from fuels.experts.intervals import Bands


@dataclass(frozen=True)
class MixtureOutcome:
    """The experts, the personal model among them, on the test part."""

    model: str  # the personal model's name among the experts
    names: tuple[str, ...]
    weights: Floats  # [step, client, expert]
    bands: Bands  # intervals, normalised
    intervals: IntervalScores
    scores: dict[str, Scores]  # of each expert
    inputs: float | None = None  # mean weight of the experts with external inputs, if there are any

    @property
    def best(self) -> str:
        """The expert with the lowest mean MSE."""
        return min(self.scores, key=lambda name: self.scores[name].means()["mse"])

    @property
    def led(self) -> float:
        """Share of steps and clients in which the personal model had the largest weight."""
        return float((self.weights.argmax(axis=2) == self.names.index(self.model)).mean())

    def summary(self) -> dict[str, Any]:
        """As in summary.json."""
        return {
            "experts": {name: scores.means() for name, scores in self.scores.items()},
            "best_expert": self.best,
            "model_led": self.led,
            "intervals": self.intervals.summary(),
            "pinball": self.intervals.pinball,
            "limits": self.intervals.limits.facts(),
            **({} if self.inputs is None else {"inputs": self.inputs}),
        }


@dataclass(frozen=True)
class StepsAhead:
    """Mean errors on the test part 1, ..., H steps ahead; NaN for a step without a target."""

    mse: dict[str, list[float]]  # by forecaster
    coverage: list[tuple[float, ...]]  # of the mixture's intervals, by step and level
    width: list[tuple[float, ...]]  # their mean width
    pinball: list[float]  # mean loss of their bounds

    def summary(self) -> dict[str, Any]:
        """As in summary.json."""
        return {
            "mse": {name: known(values) for name, values in self.mse.items()},
            "coverage": [known(values) for values in self.coverage],
            "width": [known(values) for values in self.width],
            "pinball": known(self.pinball),
        }


@dataclass(frozen=True)
class SharingOutcome:
    """What the clients shared as sums, and the gain of federation on the test part."""

    used: tuple[str, ...]  # statistics, live_mean; empty if there were too few clients
    note: str  # why nothing was used
    numbers: dict[str, int]  # that each client sent
    errors: Floats | None = None  # [row, client]: MSE of method and nothing shared
    daily: Floats | None = None  # [row, day]: the same, mean over clients
    compared_with: str = ""  # the row with nothing shared


@dataclass(frozen=True)
class Outcome:
    """One run."""

    title: str  # of the method, "FUELS"
    settings: Settings
    dataset: Dataset
    history: list[dict[str, Any]]  # the lines of metrics.jsonl; None where a figure is absent
    forecasts: dict[str, NDArray[Any]]  # normalised, [client, step] of the test part; method first
    scores: dict[str, Scores]  # of the same names
    summary: dict[str, Any]  # what summary.json holds
    mixture: MixtureOutcome | None = None
    steps_ahead: StepsAhead | None = None


NOTHING_SHARED = "local experts only (nothing shared)"
SOLO = "Solo"  # the method whose models are trained alone, so they share nothing either
SOLO_NOTHING_SHARED = "Solo and local experts (nothing shared)"


def method_rows(title: str) -> tuple[str, str, str]:
    """Rows that are not references: the method, its model, and its experts with nothing shared."""
    nothing = SOLO_NOTHING_SHARED if title == SOLO else NOTHING_SHARED
    return title, f"{title} model alone", nothing


def best_reference(outcome: Outcome) -> str | None:
    """The reference with the least mean MSE, as the summary names it: what the method must beat."""
    return outcome.summary.get("best_reference")
