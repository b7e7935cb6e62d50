"""Forecasts and errors on the test part: the method, the local experts and the references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Flags, Floats
from fuels.config import Mixture as MixtureSettings
from fuels.config import Sharing
from fuels.data.means import mean
from fuels.data.windows import Dataset
from fuels.evaluation.coverage import interval_scores, pinball, restricted
from fuels.evaluation.outcome import (
    SOLO_NOTHING_SHARED,
    MixtureOutcome,
    SharingOutcome,
    StepsAhead,
    method_rows,
)
from fuels.evaluation.references import references
from fuels.evaluation.scores import Scores, errors, score
from fuels.experts.ensemble import Ensemble, new_ensemble
from fuels.experts.history import History, history_of
from fuels.experts.horizon import Backtest, HorizonEnsemble, first_out_of_sample
from fuels.experts.input_experts import uses_inputs
from fuels.experts.input_mixture import mixture_of
from fuels.experts.limits import NO_LIMITS, Limits
from fuels.experts.personal_model import forecast_chain
from fuels.experts.run_sums import ReceivedSums
from fuels.sharing.protection import Protection
from fuels.storage.models import PersonalModels

Forecasts = dict[str, NDArray[Any]]
MODEL = " model"  # after the method's name: its model among the experts


@dataclass(frozen=True)
class Evaluation:
    """Forecasts of the test part, [client, step] each, the method's first."""

    forecasts: Forecasts
    scores: dict[str, Scores]
    mixture: MixtureOutcome | None = None
    ensemble: Ensemble | None = None  # has learned the test part and can continue after it
    steps_ahead: StepsAhead | None = None
    sharing: SharingOutcome | None = None


def evaluate(
    dataset: Dataset,
    models: PersonalModels,
    model_forecast: Callable[[], NDArray[Any]],
    *,
    title: str,
    chosen: MixtureSettings,
    sharing: Sharing | None = None,
    seed: int = 0,
    protection: Protection | None = None,
    received: ReceivedSums | None = None,
) -> Evaluation:
    """Forecast the test part; empty if it has no target.

    `sharing` says what the experts may use of other clients; `seed` is that of its noise.
    With `protection`, sums carry noise. At a site of a federation, experts use what it has
    `received`, and nothing else. `model_forecast` gives the personal models' forecasts of the test
    part; `title` is their method's name.
    """
    first, last = dataset.split.part("test")
    history, horizon = history_of(dataset), dataset.sample.horizon
    ensemble, backtests = None, {}
    if chosen.on:
        ensemble = new_ensemble(
            models,
            history,
            dataset.split.train,
            title=f"{title}{MODEL}",
            chosen=chosen,
            sharing=sharing if received is None else None,
            seed=seed,
            protection=protection,
            received=None if received is None else received.experts,
        )
        history = ensemble.with_live_mean(history)
        chain = ensemble.model_forecasts(history, horizon, last)
        backtests = {h: ensemble.run(history, last, h, model) for h, model in chain}
    if not dataset.target[:, first:last].any():
        if ensemble is None:
            return Evaluation({}, {})
        nothing = sharing_outcome(dataset, ensemble, sharing, {}, received)
        return Evaluation({}, {}, ensemble=ensemble, sharing=nothing)
    forecasts: Forecasts = {title: model_forecast()}
    parts = {h: restricted_to_test(dataset, b) for h, b in backtests.items() if b is not None}
    mixture, shared = None, None
    if ensemble is not None:
        mixture = mixture_outcome(dataset, ensemble.title, parts[1], ensemble.limits)
        forecasts = {title: parts[1].mixed.combined, method_rows(title)[1]: forecasts[title]}
        backtest = backtests[1]
        if ensemble.sharing is not None and backtest is not None:
            row = method_rows(title)[2]
            own = ensemble.model_names if row == SOLO_NOTHING_SHARED else []
            alone = nothing_shared(history, ensemble.horizons[1], backtest, last, own)
            forecasts[row] = alone[:, -(last - first) :]
        shared = sharing_outcome(dataset, ensemble, sharing, forecasts, received)
    forecasts |= references(dataset, "test")
    return Evaluation(
        forecasts,
        {name: score(dataset, "test", value) for name, value in forecasts.items()},
        mixture,
        ensemble,
        steps_ahead(dataset, models, history, parts) if horizon > 1 else None,
        shared,
    )


def nothing_shared(
    history: History,
    online: HorizonEnsemble,
    backtest: Backtest,
    last: int,
    own: Sequence[str] = (),
) -> Floats:
    """Forecasts of the local experts alone, for the steps of a backtest up to `last`.

    A mixture of them learns from the same steps as that of all experts, the warm-up first. `own`
    names a personal model that belongs to them, because it was trained alone.
    """
    horizon, warm_up = online.horizon, online.warm_up
    names = [*(name for name in online.pool.names if name not in online.pool.shared), *own]
    mixture = mixture_of(online.pool, names, shared=())
    end = last - backtest.mixed.combined.shape[1] - (horizon - 1)
    if warm_up is not None:
        mixture.run(*_local_part(history, warm_up, names, end))
        unknown = np.full((history.clients, horizon - 1), np.nan)
        mixture.run(unknown, np.stack([unknown] * len(names)))
    combined = mixture.run(*_local_part(history, backtest, names, last)).combined
    return online.intervals.confined(combined)


def _local_part(
    history: History, part: Backtest, names: Sequence[str], end: int
) -> tuple[Floats, Floats]:
    """Truth [client, step] and forecasts [expert, client, step] of a part that ends before `end`.

    A client that has not begun its warm-up has no forecasts, and learns nothing there.
    """
    forecasts = np.stack([part.experts[name] for name in names])
    truth = history.observed[:, end - forecasts.shape[2] : end]
    return np.where(np.isnan(forecasts).all(axis=0), np.nan, truth), forecasts


def sharing_outcome(
    dataset: Dataset,
    ensemble: Ensemble,
    chosen: Sharing | None,
    forecasts: Mapping[str, Floats],
    received: ReceivedSums | None,
) -> SharingOutcome | None:
    """What was shared, and the errors with and without it; None if nothing was asked for."""
    if chosen is None or not (chosen.statistics or chosen.live_mean):
        return None
    note = "" if received is None else received.note
    if ensemble.sharing is None:
        few = f"{len(dataset.ids)} clients are fewer than"
        why = f"{few} sharing.min_clients = {chosen.min_clients}"
        return SharingOutcome((), why if received is None else note, {})
    asked = chosen if received is None else ensemble.sharing
    used = tuple(name for name in ("statistics", "live_mean") if getattr(asked, name))
    numbers = dict(ensemble.sharing.numbers)
    title = ensemble.title.removesuffix(MODEL)
    row = method_rows(title)[2]
    if row not in forecasts:
        return SharingOutcome(used, note, numbers)
    first, last = dataset.split.part("test")
    truth, target = dataset.series[:, first:last], dataset.target[:, first:last]
    rows = forecasts[title], forecasts[row]
    squared = [np.where(target, (truth - one) ** 2, np.nan) for one in rows]
    days = np.arange(first, last) // dataset.period
    return SharingOutcome(
        used,
        note,
        numbers,
        np.stack([mean(one, axis=1) for one in squared]),
        np.array(
            [[mean(one[:, days == d], axis=None) for d in np.unique(days)] for one in squared]
        ),
        row,
    )


def restricted_to_test(dataset: Dataset, backtest: Backtest) -> Backtest:
    """The steps of the test part, out of all steps since the end of training.

    Where the test part follows training directly, the first h - 1 steps have no forecast h steps
    ahead. An expert that abstains is scored with the mean of the active ones.
    """
    first, last = dataset.split.part("test")
    mixed, bands = backtest.mixed, backtest.bands
    steps = mixed.combined.shape[1]  # ends with the last step of the test part
    part = slice(max(steps - (last - first), 0), None)
    experts = _without_abstentions({name: f[:, part] for name, f in backtest.experts.items()})
    middle = np.mean(list(experts.values()), axis=0)
    combined = mixed.combined[:, part]
    return Backtest(
        experts,
        replace(
            mixed,
            combined=np.where(np.isnan(combined), middle, combined),
            weights=mixed.weights[part],
            learners=mixed.learners[:, :, part],
            trust=mixed.trust[part],
        ),
        replace(bands, lower=bands.lower[:, :, part], upper=bands.upper[:, :, part]),
    )


def _without_abstentions(experts: Mapping[str, Floats]) -> dict[str, Floats]:
    """Forecasts in which the mean of the active experts replaces a missing one."""
    stacked = np.stack(list(experts.values()))
    middle = np.nan_to_num(mean(stacked, axis=0))
    return {name: np.where(np.isnan(f), middle, f) for name, f in experts.items()}


def mixture_outcome(
    dataset: Dataset, model: str, part: Backtest, limits: Limits = NO_LIMITS
) -> MixtureOutcome:
    """Errors and weights of the experts on the test part."""
    steps, weights = part.mixed.combined.shape[1], part.mixed.weights
    using = [uses_inputs(name) for name in part.experts]
    return MixtureOutcome(
        model=model,
        names=tuple(part.experts),
        weights=weights,
        bands=part.bands,
        intervals=interval_scores(
            part.bands, targets_in_test(dataset), dataset.split.test - steps, dataset.period, limits
        ),
        scores={name: score(dataset, "test", f) for name, f in part.experts.items()},
        inputs=float(weights[:, :, using].sum(axis=2).mean()) if any(using) else None,
    )


def targets_in_test(dataset: Dataset) -> Floats:
    """The test part on the normalised scale; NaN where a step is not a target."""
    first, last = dataset.split.part("test")
    return np.where(dataset.target[:, first:last], dataset.series[:, first:last], np.nan)


# -- several steps ahead -----------------------------------------------------------------------


def steps_ahead(
    dataset: Dataset, models: PersonalModels, history: History, parts: Mapping[int, Backtest]
) -> StepsAhead:
    """Errors on the test part 1, ..., H steps ahead: mixture, heads, recursion and naive forecasts.

    At each step ahead all are scored on the same targets: those that every one of them forecasts,
    with forecasts made after the end of training.
    """
    first, last = dataset.split.part("test")
    whole, horizon = targets_in_test(dataset), dataset.sample.horizon
    found = StepsAhead({}, [], [], [])
    chains = {
        name: forecast_chain(models, history, first - horizon + 1, last, direct=direct)
        for name, direct in (("own head", True), ("recursive", False))
    }
    for h in range(1, horizon + 1):
        since = min(max(first, first_out_of_sample(dataset.split.train, h)), last)
        truth, part = whole[:, since - first :], parts.get(h)  # None if no step is left
        made = {"mixture": truth if part is None else part.mixed.combined} if parts else {}
        for name, chain in chains.items():  # a forecast of step k is made h steps before
            made[name] = next(chain)[:, horizon - h :][:, since - first : last - first]
        periods = -(-h // dataset.period)
        made["last value"] = history.lagged(since, last, h)
        made["one period ago"] = history.lagged(since, last, periods * dataset.period)
        common = np.logical_and.reduce([np.isfinite(one) for one in (truth, *made.values())])
        for name, forecast in made.items():
            mse, _ = errors(truth, forecast, common)
            found.mse.setdefault(name, []).append(float(mean(mse, axis=0)))
        if parts:
            coverage, width, loss = _coverage(part, truth, common, len(parts[1].bands.levels))
            found.coverage.append(coverage)
            found.width.append(width)
            found.pinball.append(loss)
    return found


def _coverage(
    part: Backtest | None, truth: Floats, common: Flags, levels: int
) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    """Coverage and mean width of the intervals on some targets, by level, and pinball loss.

    NaN without targets.
    """
    if part is None or not (common & ~np.isnan(part.bands.lower[0])).any():
        return (nan,) * levels, (nan,) * levels, nan
    bands = restricted(part.bands, common)
    covered, width = (tuple(each.tolist()) for each in (bands.coverage(truth), bands.width()))
    return covered, width, pinball(bands, truth)
