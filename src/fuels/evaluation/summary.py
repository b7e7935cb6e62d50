"""The facts of summary.json, each computed once; tables and plots only repeat them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fuels.arrays import Floats
from fuels.data.clock import format_moment
from fuels.evaluation.outcome import SharingOutcome, method_rows
from fuels.methods.messages import BYTES

if TYPE_CHECKING:
    from fuels.data.windows import Dataset
    from fuels.evaluation.scores import Scores

BEST, LAST = "best on the validation part", "last"
NO_TARGETS = "has no observed value with known inputs"  # of a part without anything to evaluate


@dataclass(frozen=True)
class Kept:
    """How many clients kept which model, and why some kept the last one instead of the best."""

    best: int = 0
    last: int = 0
    untrained: int = 0  # never took part in a round: they have the model they started with
    reason: str = ""

    def summary(self) -> dict[str, Any]:
        """The entries of summary.json."""
        counts = {BEST: self.best, LAST: self.last, "untrained": self.untrained}
        kinds = {kind: count for kind, count in counts.items() if count}
        every = sum(kinds.values())
        shares = [f"{kind} for {count} of {every} clients" for kind, count in kinds.items()]
        return {
            "kept_model": next(iter(kinds)) if len(kinds) == 1 else ", ".join(shares),
            "kept_clients": {"best": self.best, "last": self.last, "untrained": self.untrained},
            "kept_last_because": self.reason if self.last else "",
        }


def why_last(keep: str, validation: int) -> str:
    """Why a client kept its last model, from the setting `keep` and the length of validation."""
    if keep == "last":
        return "as requested"
    if not validation:
        return "because there is no validation part"
    return f"because the validation part {NO_TARGETS}"


def data_facts(dataset: Dataset) -> dict[str, Any]:
    """The data of a run."""
    first, last = dataset.split.part("test")
    return {
        "name": dataset.panel.name,
        "synthetic": dataset.panel.synthetic,
        "unit": dataset.panel.unit,
        "clients": len(dataset.ids),
        "clients_scored": int(dataset.target[:, first:last].any(axis=1).sum()),
        "test_steps": last - first,
        "parts": part_dates(dataset),
        "left_out": dataset.left_out,
        "values_filled": dataset.filled,
        **({"inputs": list(dataset.panel.inputs)} if dataset.panel.inputs else {}),
        **implausible_facts(dataset),
        "notes": list(dataset.panel.notes),
    }


def implausible_facts(dataset: Dataset) -> dict[str, int]:
    """Values that count as missing because they are implausible, and those of the test part."""
    if dataset.screened is None:
        return {}
    found = dataset.screened.where(dataset.screened.implausible)
    first, last = dataset.split.part("test")
    steps = found.step + dataset.offset
    return {
        "values_implausible": len(steps),
        "test_values_implausible": int(((steps >= first) & (steps < last)).sum()),
    }


def part_dates(dataset: Dataset) -> dict[str, list[str]]:
    """First and last time of training, validation and test, of those that are not empty."""
    panel, dates = dataset.panel, {}
    for part in ("train", "val", "test"):
        times = dataset.times(part)
        times = times[(times >= panel.start) & (times <= panel.times[-1])]
        if len(times):
            dates[part] = [format_moment(time, panel.timezone) for time in times[[0, -1]]]
    return dates


def compared(title: str, scores: Mapping[str, Scores]) -> dict[str, Any]:
    """The best reference, and for how many clients the method beats it; empty without any."""
    means = {n: s.means()["mse"] for n, s in scores.items() if n not in method_rows(title)}
    if not means:
        return {}
    best = min(means, key=lambda name: means[name])
    own, other = scores[title].mse, scores[best].mse
    both = np.isfinite(own) & np.isfinite(other)
    better, of = int((own[both] < other[both]).sum()), int(both.sum())
    return {
        "best_reference": best,
        "clients_better_than_best_reference": better,
        "clients_compared": of,
        "share_better_than_best_reference": better / of,
    }


def sharing_facts(found: SharingOutcome) -> dict[str, Any]:
    """What was shared as sums, and the gain of federation over sharing nothing.

    Paired tests (Wilcoxon signed-rank, two-sided) over clients and over days.
    """
    facts: dict[str, Any] = {"used": list(found.used), "note": found.note, "sent": found.numbers}
    if found.errors is None or found.daily is None:
        return facts
    own, other = found.errors[:, np.isfinite(found.errors).all(axis=0)]
    return facts | {
        "compared_with": found.compared_with,
        "mse_change": float(own.mean() / other.mean() - 1),
        "clients_better": int((own < other).sum()),
        "clients_compared": len(own),
        "p_clients": paired_test(found.errors),
        "days_compared": int(np.isfinite(found.daily).all(axis=0).sum()),
        "p_days": paired_test(found.daily),
    }


def paired_test(rows: Floats) -> float | None:
    """Two-sided p of Wilcoxon's signed-rank test of two rows; None without differences."""
    from scipy.stats import wilcoxon  # slow to import

    difference = rows[0] - rows[1]
    difference = difference[np.isfinite(difference) & (difference != 0)]
    return float(wilcoxon(difference).pvalue) if len(difference) else None


def traffic(history: Sequence[Mapping[str, Any]], totals: Mapping[str, float]) -> dict[str, Any]:
    """What was sent: per participating client in the last round, and by all in all rounds."""
    last = history[-1] if history else {"numbers_up": 0, "numbers_down": 0}
    return {"per_client_and_round": _with_bytes(last), "totals": _with_bytes(totals)}


def _with_bytes(numbers: Mapping[str, float]) -> dict[str, float]:
    counts = {way: numbers[f"numbers_{way}"] for way in ("up", "down")}
    found = {f"numbers_{way}": count for way, count in counts.items()}
    return found | {f"bytes_{way}": BYTES * count for way, count in counts.items()}


def failures(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many replies were missing or refused, and the first reason."""
    found = [text for line in history for text in line.get("failures") or ()]
    return {"count": len(found), "first": found[0] if found else ""}
