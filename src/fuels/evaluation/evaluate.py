"""What everyone would have said on the test part: the method, the experts beside it, references."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.config import Mixture as MixtureSettings
from fuels.data.windows import Dataset
from fuels.evaluation.outcome import MixtureOutcome, StepsAhead, own_rows
from fuels.evaluation.references import references
from fuels.evaluation.scores import Scores, errors, score
from fuels.experts.ensemble import Mixing, begin
from fuels.experts.history import Floats, History, history_of
from fuels.experts.online import Past, first_honest
from fuels.experts.personal_model import one_after_another
from fuels.storage.models import PersonalModels

Forecasts = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Evaluation:
    """Forecasts of the test part, [client, step] each, the method's first."""

    forecasts: Forecasts
    scores: dict[str, Scores]
    mixture: MixtureOutcome | None = None
    mixing: Mixing | None = None  # ready to go on after the test part
    steps_ahead: StepsAhead | None = None


def evaluate(
    dataset: Dataset,
    models: PersonalModels,
    own_forecast: Callable[[], NDArray[Any]],
    *,
    title: str,
    chosen: MixtureSettings,
) -> Evaluation:
    """Forecast the test part; empty where it has no target.

    `own_forecast` gives the models' own forecasts of it, `title` names their method.
    """
    first, last = dataset.split.part("test")
    history, horizons = history_of(dataset), range(1, dataset.sample.horizon + 1)
    mixing, pasts = None, {}
    if chosen.on:
        name = f"{title} model"
        mixing = begin(models, history, dataset.split.train, title=name, levels=chosen.levels)
        each = mixing.each(history, len(horizons), last)
        pasts = {h: mixing.run(history, last, h, own) for h, own in each}
    if not dataset.target[:, first:last].any():
        return Evaluation({}, {}, mixing=mixing)
    forecasts: Forecasts = {title: own_forecast()}
    parts = {h: test_part(dataset, past) for h, past in pasts.items() if past is not None}
    mixture = None
    if mixing is not None:
        mixture = mixture_outcome(dataset, mixing.title, parts[1])
        forecasts = {title: parts[1].mixed.combined, own_rows(title)[1]: forecasts[title]}
    forecasts |= references(dataset, "test")
    return Evaluation(
        forecasts,
        {name: score(dataset, "test", value) for name, value in forecasts.items()},
        mixture,
        mixing,
        steps_ahead(dataset, models, history, parts) if len(horizons) > 1 else None,
    )


def test_part(dataset: Dataset, past: Past) -> Past:
    """What was said of the test part, of all that was said since the end of training.

    Several steps ahead that begins later than the test part does where this follows the training.
    """
    first, last = dataset.split.part("test")
    mixed, bands = past.mixed, past.bands
    steps = mixed.combined.shape[1]  # the last of them is that of the test part
    part = slice(max(steps - (last - first), 0), None)
    experts = answering({name: f[:, part] for name, f in past.experts.items()})
    usual = np.mean(list(experts.values()), axis=0)
    combined = mixed.combined[:, part]
    return Past(
        experts,
        replace(
            mixed,
            combined=np.where(np.isnan(combined), usual, combined),
            weights=mixed.weights[part],
            learners=mixed.learners[:, :, part],
            trust=mixed.trust[part],
        ),
        replace(bands, lower=bands.lower[:, :, part], upper=bands.upper[:, :, part]),
    )


def answering(experts: Mapping[str, Floats]) -> dict[str, Floats]:
    """An expert judged alone must always answer: where it sleeps, the mean of those awake does."""
    stacked = np.stack(list(experts.values()))
    awake = ~np.isnan(stacked)
    mean = np.nansum(stacked, axis=0) / np.maximum(awake.sum(axis=0), 1)
    return {name: np.where(np.isnan(f), mean, f) for name, f in experts.items()}


def mixture_outcome(dataset: Dataset, model: str, part: Past) -> MixtureOutcome:
    """How the experts did on the test part, and who was trusted."""
    return MixtureOutcome(
        model=model,
        names=tuple(part.experts),
        weights=part.mixed.weights,
        bands=part.bands,
        coverage=part.bands.coverage(truth_of(dataset)),
        scores={name: score(dataset, "test", f) for name, f in part.experts.items()},
    )


def truth_of(dataset: Dataset) -> Floats:
    """The test part on the normalised scale, NaN where it is no target."""
    first, last = dataset.split.part("test")
    return np.where(dataset.target[:, first:last], dataset.series[:, first:last], np.nan)


# -- several steps ahead -----------------------------------------------------------------------


def steps_ahead(
    dataset: Dataset, models: PersonalModels, history: History, parts: Mapping[int, Past]
) -> StepsAhead:
    """Errors on the test part 1, ..., H steps ahead: mixture, heads, recursion and naive ones.

    All of one row are judged on the same targets: those that each of them answers and whose
    forecast was made when the training was over.
    """
    first, last = dataset.split.part("test")
    whole, horizon = truth_of(dataset), dataset.sample.horizon
    found = StepsAhead({}, [], [])
    chains = {
        name: one_after_another(models, history, first - horizon + 1, last, direct=direct)
        for name, direct in (("own head", True), ("recursive", False))
    }
    for h in range(1, horizon + 1):
        since = min(max(first, first_honest(dataset.split.train, h)), last)
        truth, part = whole[:, since - first :], parts.get(h)  # no part where no step is left
        said = {"mixture": truth if part is None else part.mixed.combined} if parts else {}
        for name, chain in chains.items():  # a forecast of step k is made h steps before
            said[name] = next(chain)[:, horizon - h :][:, since - first : last - first]
        said["last value"] = history.lagged(since, last, h)
        said["one period ago"] = history.lagged(
            since, last, -(-h // dataset.period) * dataset.period
        )
        common = np.logical_and.reduce([np.isfinite(one) for one in (truth, *said.values())])
        for name, forecast in said.items():
            mse, _ = errors(truth, forecast, common)
            found.mse.setdefault(name, []).append(_mean(mse))
        if parts:
            coverage, width = _inside(part, truth, common, len(parts[1].bands.levels))
            found.coverage.append(coverage)
            found.width.append(width)
    return found


def _inside(
    part: Past | None, truth: Floats, common: NDArray[np.bool_], levels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Coverage and mean width of the intervals on some targets, by level; NaN without any."""
    if part is None or not (common & ~np.isnan(part.bands.lower[0])).any():
        nothing = (float("nan"),) * levels
        return nothing, nothing
    lower, upper = (np.where(common, band, np.nan) for band in (part.bands.lower, part.bands.upper))
    bands = replace(part.bands, lower=lower, upper=upper)
    return (
        tuple(float(covered) for covered in bands.coverage(truth)),
        tuple(float(width) for width in bands.width()),
    )


def _mean(errors: Floats) -> float:
    """Over the clients that have one; NaN without any."""
    return float("nan") if np.isnan(errors).all() else float(np.nanmean(errors))
