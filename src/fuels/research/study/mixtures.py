"""Errors of the experts' mixture under any sharing setting, without training again.

Training does not depend on what is shared as sums. So a method is trained once (store.py), and its
stored models are mixed with local and shared experts for every setting. A finished evaluation is a
small JSON file in the store and is never repeated; its key covers settings, data and models.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fuels.arrays import Floats
from fuels.config import Mixture, Sharing
from fuels.data.means import mean, ratio
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.experts.history import History, history_of
from fuels.experts.horizon import PooledArrays, first_out_of_sample, fit_horizon
from fuels.experts.limits import Limits
from fuels.experts.personal_model import forecast_chain
from fuels.experts.pool import Pool
from fuels.experts.shared import SharedExperts
from fuels.research.study.record import plain
from fuels.research.study.store import RunResult, Store, run_key
from fuels.runs.settings import ResolvedSettings
from fuels.storage.models import load_models

FORMAT = 4  # 4: the experts of version 3 had no blend one step ahead
MODEL = "personal model"  # its name among the experts

Forecasts = Callable[[Dataset, int], Floats]  # h steps ahead, of all steps since training


@dataclass(frozen=True)
class Errors:
    """Squared errors of a mixture on the test part, in the units of one dataset."""

    ids: tuple[str, ...]
    std: Floats  # [client], the unit of the errors
    squared: Floats  # [client, day], sums over the targets
    count: Floats  # [client, day], of targets

    def mse(self, who: tuple[str, ...], std: Floats, days: slice) -> Floats:
        """MSE of some clients in units of `std`, [client]; NaN without a target."""
        rows = self._rows(who)
        found = ratio(self.squared[rows, days].sum(axis=1), self.count[rows, days].sum(axis=1))
        return np.asarray(found * (self.std[rows] / std) ** 2)

    def daily(self, who: tuple[str, ...], std: Floats, days: slice) -> Floats:
        """MSE of every day in units of `std`, mean over some clients, [day]."""
        rows = self._rows(who)
        each = ratio(self.squared[rows, days], self.count[rows, days])
        return mean(each * ((self.std[rows] / std) ** 2)[:, None], axis=0)

    def _rows(self, who: tuple[str, ...]) -> list[int]:
        place = {client: i for i, client in enumerate(self.ids)}
        return [place[client] for client in who]


@dataclass(frozen=True)
class Model:
    """An expert from outside the pool: a name that identifies it, and its forecasts."""

    name: str
    forecasts: Forecasts


def trained(result: RunResult) -> Model:
    """The personal models of a finished run."""
    assert result.folder is not None
    return Model(result.record.name, partial(_chain, result.folder.models))


def _chain(path: Path, dataset: Dataset, horizon: int) -> Floats:
    models = load_models(path)
    if models.ids != dataset.ids:
        raise FuelsError(f"{path}: the models of other clients; delete the folder to train again")
    end, last = dataset.split.train, dataset.split.test
    chain = forecast_chain(models, history_of(dataset), end, last)
    first = first_out_of_sample(end, horizon)
    return next(islice(chain, horizon - 1, None))[:, : last - first]


def evaluated(
    store: Store,
    settings: ResolvedSettings,
    dataset: Dataset,
    horizon: int = 1,
    model: Model | None = None,
) -> tuple[Errors, bool]:
    """The errors of one mixture, and whether they were computed now.

    `settings` say what is shared; `model` joins the experts.
    """
    named = {"run": run_key(settings, dataset), "horizon": horizon, "format": FORMAT}
    text = json.dumps({**named, "model": "" if model is None else model.name}, sort_keys=True)
    key = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def compute() -> dict[str, Any]:
        found = evaluate(dataset, settings.sharing, horizon, model, settings.seed)
        return {"about": named, **{name: plain(value) for name, value in vars(found).items()}}

    return store.once("mixtures", key, compute, _errors)


def evaluate(
    dataset: Dataset, sharing: Sharing, horizon: int = 1, model: Model | None = None, seed: int = 0
) -> Errors:
    """The errors on the test part, `horizon` steps ahead, of experts fitted on the training part.

    Only values whose newest known value is within a period count: then some local expert forecasts
    them under every setting, so all settings are compared on the same values.
    """
    end, last = dataset.split.train, dataset.split.test
    first = first_out_of_sample(end, horizon)
    history, shared = history_of(dataset), None
    # Found in the data, as in a run that is given none.
    limits = Limits.of(Mixture(on=True), history.observed[:, :end], dataset.mean, dataset.std)
    if len(dataset.ids) >= sharing.min_clients:
        shared = SharedExperts.of(sharing, seed)
    if shared is not None:
        history = shared.with_live_mean(history, dataset.ids)
    online = fit_horizon(
        Pool() if shared is None else shared.pool,
        history,
        end,
        horizon=horizon,
        external=[] if model is None else [MODEL],
        pooled=_coefficients(shared, history, dataset.ids, horizon),
        limits=limits.normalised(dataset.mean, dataset.std),
    )
    external = {} if model is None else {MODEL: model.forecasts(dataset, horizon)}
    forecast = online.run(history, first, last, external).mixed.combined
    known = ~np.isnan(history.lagged(first, last, horizon))
    target = dataset.target[:, first:last] & known
    squared = np.where(target, (history.observed[:, first:last] - forecast) ** 2, 0.0)
    day = (np.arange(first, last) - end) // dataset.period
    each = np.eye(int(day[-1]) + 1)[day]  # [step, day]
    return Errors(dataset.ids, dataset.std, squared @ each, target.astype(np.float64) @ each)


def _coefficients(
    shared: SharedExperts | None, history: History, ids: tuple[str, ...], horizon: int
) -> PooledArrays:
    """Where the arrays of the pooled experts come from, as in an ensemble.

    Also without sharing, every client's warm-up is as long as its history allows.
    """
    if shared is None:
        return lambda end: {}
    fresh = replace(shared, totals={})
    return lambda end: fresh.coefficients(history, ids, end, horizon)


def _errors(content: Mapping[str, Any]) -> Errors:
    arrays = (np.array(content[name], dtype=np.float64) for name in ("std", "squared", "count"))
    return Errors(tuple(content["ids"]), *arrays)
