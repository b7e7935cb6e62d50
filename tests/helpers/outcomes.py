"""Small outcomes with errors one can work out by hand, for the tests of tables and pictures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fuels.config import Settings
from fuels.data.calendar import Calendar
from fuels.data.panel import Panel
from fuels.data.sample import Sample
from fuels.data.windows import Dataset, Split
from fuels.evaluation.coverage import IntervalScores
from fuels.evaluation.outcome import MixtureOutcome, Outcome
from fuels.evaluation.scores import score
from fuels.evaluation.summary import Kept, compared, data_facts, failures, traffic, why_last
from fuels.experts.intervals import Bands
from fuels.experts.limits import Limits


def dataset(
    clients: int = 3,
    period: int = 4,
    periods: tuple[int, int, int] = (4, 1, 2),
    step: int = 6 * 3600,
    **panel: Any,
) -> Dataset:
    """Series that count 0, 1, 2, ... in each client, shifted by the client; mean 10, std 2."""
    train, val, test = (period * count for count in periods)
    length = train + val + test
    series = np.arange(length, dtype=np.float64) % period + np.arange(clients)[:, None]
    return Dataset(
        panel=Panel(
            values=series.T * 2.0 + 10.0,
            ids=tuple(f"c{i}" for i in range(clients)),
            start=np.datetime64("2013-11-01T00:00:00", "s"),
            step=np.timedelta64(step, "s"),
            **panel,
        ),
        sample=Sample(((1,), (period,)), period),
        calendar=Calendar(),
        split=Split(train, train + val, length),
        offset=0,
        series=series.astype(np.float32),
        known=np.ones(series.shape, dtype=np.bool_),
        window=np.ones(series.shape, dtype=np.bool_),
        observed=np.ones(series.shape, dtype=np.bool_),
        target=np.ones(series.shape, dtype=np.bool_),
        mean=np.full(clients, 10.0),
        std=np.full(clients, 2.0),
        filled=0,
        left_out={},
    )


def outcome(data: Dataset, errors: dict[str, list[float]], **changes: Any) -> Outcome:
    """An outcome whose forecasts miss every value of client n by errors[name][n]."""
    first, last = data.split.part("test")
    actual = data.series[:, first:last]
    forecasts = {name: actual + np.array(by)[:, None] for name, by in errors.items()}
    validated = data.split.val > data.split.train
    history: list[dict[str, Any]] = [
        {
            "round": k,
            "clients": len(data.ids),
            "loss_prediction": 1.0 / k,
            "loss_intra": 2.0,
            **({"loss_inter": 0.5} if k > 1 else {}),
            "val_mse": 1.0 + (k - 2) ** 2 if validated else None,
            "val_mae": 1.0 if validated else None,
            "best_round": min(k, 2) if validated else 0,
            "numbers_up": 10,
            "numbers_down": 20 if k > 1 else 0,
            "failures": [],
        }
        for k in (1, 2, 3)
    ]
    given: dict[str, Any] = {
        "title": "FUELS",
        "settings": Settings(),
        "dataset": data,
        "history": history,
        "forecasts": forecasts,
        "scores": {name: score(data, "test", value) for name, value in forecasts.items()},
        "summary": {},
    }
    run = Outcome(**{**given, **changes})
    return run if run.summary else replace(run, summary=summary_of(run))


def summary_of(run: Outcome) -> dict[str, Any]:
    """The summary of a run in which every client kept what its settings and data let it keep."""
    data, keep = run.dataset, run.settings.training.keep
    first, last = data.split.part("val")
    best = int(data.target[:, first:last].any(axis=1).sum()) if keep == "best" else 0
    kept = Kept(best, len(data.ids) - best, reason=why_last(keep, last - first))
    totals = {
        key: float(sum(line[key] * line["clients"] for line in run.history))
        for key in ("numbers_up", "numbers_down")
    }
    found = {
        "title": run.title,
        "data": data_facts(data),
        "rounds": len(run.history),
        **kept.summary(),
        "scores": {name: scores.means() for name, scores in run.scores.items()},
        **traffic(run.history, totals),
        "failures": failures(run.history),
        **compared(run.title, run.scores),
    }
    if run.mixture is not None:
        found["mixture"] = run.mixture.summary()
    if run.steps_ahead is not None:
        found["steps_ahead"] = run.steps_ahead.summary()
    return found


def mixed(run: Outcome) -> Outcome:
    """The outcome with a mixture of two experts that are always trusted alike."""
    clients, steps = run.forecasts["FUELS"].shape
    wide = np.ones((2, clients, steps))
    names = ("FUELS model", "drift")
    mixture = MixtureOutcome(
        model=names[0],
        names=names,
        weights=np.full((steps, clients, 2), 0.5),
        bands=Bands((80.0, 95.0), -wide, wide),
        intervals=IntervalScores(
            levels=(80.0, 95.0),
            coverage=np.array([0.8, 0.95]),
            width=np.array([2.0, 2.0]),
            by_phase=np.array([[0.75, 0.85], [0.94, 0.96]]),
            by_client=np.array([[0.8] * clients, [0.95] * clients]),
            pinball=0.123,
            limits=Limits(least=0.0, detected=True),
        ),
        scores=dict.fromkeys(names, run.scores["FUELS"]),
    )
    run = replace(run, mixture=mixture)
    return replace(run, summary=summary_of(run))


ERRORS = {"FUELS": [0.1, 0.2, 0.3], "last value": [0.3, 0.3, 0.3], "ridge": [0.2, 0.1, 0.4]}
