"""One gradient boosting model on the pooled data of all clients (LightGBM).

A federation may not pool its data, so this model measures what privacy costs. It sees the lags of
the personal models and of the widest ridge among the experts, the time of the period, the weekday,
whether it is a day off, and the client as a category; values are on each client's own scale, as
everywhere else. Nothing is chosen on test days: the size of the trees is fixed, and the target (the
value, or its change from the last one) and the number of trees are those with the lowest error on
the last part of training, for a model that has not seen it. The model is then fitted again on the
whole training part. LightGBM is optional: the extra `boosting`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuels.arrays import Floats
from fuels.data.calendar import Calendar, weekday
from fuels.data.windows import Dataset
from fuels.evaluation.evaluate import mixture_outcome, restricted_to_test
from fuels.evaluation.outcome import MixtureOutcome
from fuels.evaluation.scores import Scores, score
from fuels.experts.history import History, history_of
from fuels.experts.horizon import WARM_SHARE, fit_horizon
from fuels.experts.linear import week_lags
from fuels.experts.pool import Pool
from fuels.research.study.mixtures import Model

TITLE = "LightGBM, pooled data"
MOST_TREES, PATIENCE = 1000, 50
# Fixed before any measurement: medium-sized trees, slow steps, samples of rows and columns.
PARAMETERS: dict[str, Any] = {
    "objective": "regression",
    "learning_rate": 0.05,
    "num_leaves": 31,
    "min_data_in_leaf": 50,
    "feature_fraction": 0.8,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}


@dataclass(frozen=True)
class Pooled:
    """The pooled model on the test part: by itself, and as one of every client's experts."""

    alone: Scores
    mixed: Scores
    mixture: MixtureOutcome
    trees: int
    change: bool  # it forecasts the change against the last value


def installed() -> bool:
    return importlib.util.find_spec("lightgbm") is not None


def evaluate_pooled(
    dataset: Dataset, levels: Sequence[float], *, seed: int = 0, threads: int = 0
) -> Pooled:
    """Fit on the training part of all clients; evaluate like the personal models."""
    history, train, last = history_of(dataset), dataset.split.train, dataset.split.test
    model, said = pooled_forecasts(dataset, seed=seed, threads=threads)
    online = fit_horizon(Pool(), history, train, levels=levels, external=[TITLE])
    part = restricted_to_test(dataset, online.run(history, train, last, {TITLE: said}))
    return Pooled(
        alone=score(dataset, "test", part.experts[TITLE]),
        mixed=score(dataset, "test", part.mixed.combined),
        mixture=mixture_outcome(dataset, TITLE, part),
        trees=model.trees,
        change=model.change,
    )


def pooled_forecasts(
    dataset: Dataset, *, seed: int = 0, threads: int = 0
) -> tuple[Boosted, Floats]:
    """The model of all clients' training parts; its forecasts [client, step] of all later steps."""
    history = history_of(dataset)
    table = Samples(history, dataset.calendar, lags_of(dataset, history))
    train, last = dataset.split.train, dataset.split.test
    model = fit(table, train, {**PARAMETERS, "seed": seed, "num_threads": threads})
    return model, model.forecasts(table, train, last)


def pooled_model(seed: int, threads: int) -> Model:
    """The model as an expert whose forecasts are made when they are needed, one step ahead."""

    def forecasts(dataset: Dataset, horizon: int) -> Floats:
        assert horizon == 1
        return pooled_forecasts(dataset, seed=seed, threads=threads)[1]

    return Model(f"{TITLE}, seed {seed}", forecasts)


def lags_of(dataset: Dataset, history: History) -> tuple[int, ...]:
    """Lags of the personal models and of the widest ridge, except the last value."""
    return tuple(sorted({*dataset.sample.lags, *week_lags(history, 1)} - {1}))


@dataclass(frozen=True)
class Samples:
    """The samples of all clients, client by client."""

    history: History
    calendar: Calendar
    lags: tuple[int, ...]

    def inputs(self, first: int, last: int, change: bool) -> Floats:
        """The last value, older ones (relative to it with `change`), the clock, the client.

        [row, column].
        """
        history, steps = self.history, last - first
        newest = history.lagged(first, last, 1)
        lagged = [history.lagged(first, last, lag) for lag in self.lags]
        columns = [newest, *(values - change * newest for values in lagged)]
        times = history.times(first, last)
        clock = (np.arange(first, last) % history.period, weekday(times), self.calendar.free(times))
        client = np.repeat(np.arange(history.clients), steps)
        repeated = [np.tile(np.asarray(c, dtype=np.float64), history.clients) for c in clock]
        return np.stack([*(c.ravel() for c in columns), *repeated, client], axis=1)

    def targets(self, first: int, last: int, change: bool) -> Floats:
        """Values, or changes; NaN where unknown: [row]."""
        observed = self.history.observed[:, first:last]
        return (observed - change * self.history.lagged(first, last, 1)).ravel()


@dataclass(frozen=True)
class Boosted:
    """A fitted model for all clients."""

    booster: Any
    trees: int
    change: bool

    def forecasts(self, table: Samples, first: int, last: int) -> Floats:
        """Forecasts [client, step] of steps first..last-1, one step ahead."""
        said = self.booster.predict(table.inputs(first, last, self.change))
        forecast: Floats = said.reshape(table.history.clients, last - first)
        newest = table.history.lagged(first, last, 1)
        return forecast + newest if self.change else forecast


def fit(table: Samples, end: int, parameters: dict[str, Any]) -> Boosted:
    """Fit on the steps before `end`, choosing target and number of trees on their last part."""
    lightgbm = importlib.import_module("lightgbm")
    period = table.history.period
    kept = end - max(1, round(WARM_SHARE * end / period)) * period

    def data(first: int, last: int, change: bool) -> Any:
        known = ~np.isnan(table.targets(first, last, change=True))  # the same for both targets
        x, y = table.inputs(first, last, change), table.targets(first, last, change)
        return lightgbm.Dataset(x[known], y[known], categorical_feature=[x.shape[1] - 1])

    tried: list[tuple[float, int, bool]] = []
    for change in (True, False):
        history: dict[str, Any] = {}
        booster = lightgbm.train(
            {**parameters, "metric": "l2"},
            data(0, kept, change),
            MOST_TREES,
            valid_sets=[data(kept, end, change)],
            callbacks=[
                lightgbm.early_stopping(PATIENCE, verbose=False),
                lightgbm.record_evaluation(history),
            ],
        )
        [errors] = (figures["l2"] for figures in history.values())
        tried.append((errors[booster.best_iteration - 1], booster.best_iteration, change))
    _, trees, change = min(tried)
    booster = lightgbm.train(parameters, data(0, end, change), trees)
    return Boosted(booster, trees, change)
