"""The personal model among local experts: what it knows, what it remembers, how it goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from fuels.config import PRESETS, Engine, Settings, merge
from fuels.data.panel import Panel
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.evaluation.evaluate import restricted_to_test, steps_ahead, targets_in_test
from fuels.experts.ensemble import Ensemble, forecast_ensemble, new_ensemble
from fuels.experts.history import History, history_of
from fuels.experts.personal_model import forecast, forecasts_ahead, history_for
from fuels.runs.build import build, kept_parameters
from fuels.runs.run import evaluate_job, run
from fuels.storage.checkpoint import load_state, save_state
from fuels.storage.models import PersonalModels, personal_models
from fuels.storage.run_folder import RunFolder
from helpers.panels import make_panel

HORIZON = 3
BEST = merge(
    merge(Settings(), {"preset": "best", **PRESETS["best"]}, "preset"),
    {
        "windows": {"horizon": HORIZON, "split": "14/2/4"},
        "model": {"hidden": 6},
        "training": {"rounds": 2},
    },
    "test",
)


@pytest.fixture(scope="module")
def panel() -> Panel:
    return make_panel(clients=4, days=20)


@pytest.fixture(scope="module")
def trained(panel: Panel) -> tuple[PersonalModels, Dataset]:
    with build(BEST, Engine(threads=1), panel) as job:
        job.loop.run()
        return kept_parameters(job, job.loop.final_download()), job.dataset


class Elsewhere:
    """A tensor of another device, as far as this can be had without one: only `cpu` gives it."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    def detach(self) -> Elsewhere:
        return self

    def cpu(self) -> torch.Tensor:
        return self.value


def test_models_are_brought_to_the_processor(trained: tuple[PersonalModels, Dataset]) -> None:
    """Whatever device trained them, the mixture and `fuels forecast` compute there."""
    models, dataset = trained
    away: Any = {name: Elsewhere(part) for name, part in models.parts.items()}
    here = personal_models(dataset, away, {}, BEST)
    assert all(torch.equal(here.parts[name], part) for name, part in models.parts.items())


def until(history: History, steps: int) -> History:
    return replace(history, observed=history.observed[:, :steps], filled=history.filled[:, :steps])


def start(trained: tuple[PersonalModels, Dataset]) -> tuple[Ensemble, History, int]:
    models, dataset = trained
    history = history_of(dataset)
    return (
        new_ensemble(models, history, dataset.split.train, title="model"),
        history,
        dataset.split.train,
    )


def test_the_models_forecasts_are_those_of_the_site(
    trained: tuple[PersonalModels, Dataset], panel: Panel
) -> None:
    models, dataset = trained
    first, last = dataset.split.part("test")
    with build(BEST, Engine(threads=1), panel) as job:
        site = job.site.forecast(models.parts, "test")
    alone = forecasts_ahead(models, history_of(dataset), first, last, HORIZON)
    np.testing.assert_allclose(alone[:, :, 0], site, atol=1e-6)
    beyond = forecasts_ahead(models, history_of(dataset), first, last, HORIZON + 2)
    np.testing.assert_array_equal(beyond[:, :, :HORIZON], alone)  # heads first, recursion after
    again = forecasts_ahead(models, history_of(dataset), first, last, HORIZON, direct=False)
    np.testing.assert_array_equal(again[:, :, 0], alone[:, :, 0])
    assert np.abs(again[:, :, 1] - alone[:, :, 1]).max() > 1e-4  # another way to say it


def test_recursion_by_hand(trained: tuple[PersonalModels, Dataset]) -> None:
    """The second step sees the first forecast where the first step saw the last value."""
    models, dataset = trained
    history, at = history_of(dataset), dataset.split.train
    first = forecasts_ahead(models, history, at, at + 1, 1, direct=False)[:, 0, 0]
    told = history.filled.copy()
    told[:, at] = first
    pretended = replace(history, filled=told)
    second = forecasts_ahead(models, pretended, at + 1, at + 2, 1)[:, 0, 0]
    both = forecasts_ahead(models, history, at, at + 1, 2, direct=False)[:, 0]
    np.testing.assert_allclose(both, np.stack([first, second], axis=1), atol=1e-6)


@pytest.mark.parametrize("cut", [30, 0, 1 - HORIZON])
@pytest.mark.parametrize("horizon", [1, HORIZON])
def test_the_future_changes_no_forecast(
    trained: tuple[PersonalModels, Dataset], horizon: int, cut: int
) -> None:
    """A forecast h steps ahead, its weights and its interval know values up to h steps before.

    That holds at the end of the training too, where the experts know more: what they would say of
    the next h - 1 steps, from before the end, does not count.
    """
    ensemble, history, end = start(trained)
    past = ensemble.run(history, horizon=horizon)
    models, dataset = trained
    changed = dataset.panel.values.copy()
    changed[end + cut - dataset.offset :] = 50.0 * dataset.std + dataset.mean
    other = history_for(models, replace(dataset.panel, values=changed))
    altered = new_ensemble(models, other, end, title="model").run(other, horizon=horizon)
    assert past is not None and altered is not None
    first = history.length - past.mixed.combined.shape[1]
    assert first == end + horizon - 1
    same = max(end + cut + horizon - first, 0)  # the last `horizon` are forecast from before it
    np.testing.assert_array_equal(past.mixed.combined[:, :same], altered.mixed.combined[:, :same])
    np.testing.assert_array_equal(past.mixed.weights[:same], altered.mixed.weights[:same])
    np.testing.assert_array_equal(past.bands.lower[:, :, :same], altered.bands.lower[:, :, :same])
    np.testing.assert_array_equal(past.bands.upper[:, :, :same], altered.bands.upper[:, :, :same])
    assert (past.mixed.combined[:, same:] != altered.mixed.combined[:, same:]).any()


def test_several_steps_ahead_right_after_the_training(
    trained: tuple[PersonalModels, Dataset],
) -> None:
    """The first forecasts count as soon as the training is over, and step by step they agree."""
    ensemble, history, end = start(trained)
    whole = ensemble.run(history, horizon=HORIZON)
    other = new_ensemble(trained[0], history, end, title="model")
    said = [other.next(until(history, end + k), HORIZON)[0] for k in range(4)]
    assert whole is not None
    np.testing.assert_allclose(np.stack(said, axis=1), whole.mixed.combined[:, :4], atol=1e-4)


def test_a_mixture_goes_on_from_its_file(
    trained: tuple[PersonalModels, Dataset], tmp_path: Path
) -> None:
    ensemble, history, end = start(trained)
    whole = ensemble.run(history)
    value, _, bands = ensemble.next(history)
    pieces, path = [], tmp_path / "mixture.safetensors"
    other = new_ensemble(trained[0], history, end, title="model")
    for stop in (end + 1, end + 40, end + 41, history.length):
        past = other.run(until(history, stop))
        assert past is not None
        pieces.append(past.mixed.combined)
        other.save(path)
        other = Ensemble.load(path, trained[0])
    assert whole is not None and other.run(history) is None  # nothing left to learn
    # The model's own forecasts differ in their last bits with the number of steps asked for.
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), whole.mixed.combined, atol=1e-4)
    again, _, same = other.next(history)
    np.testing.assert_allclose(again, value, atol=1e-4)
    np.testing.assert_allclose(same.upper, bands.upper, atol=1e-4)
    with pytest.raises(FuelsError, match="the mixture belongs to other models"):
        Ensemble.load(path, trained[0].take(["c1", "c2"]))
    arrays, facts = load_state(path)
    save_state(path, arrays, facts | {"format": 2})
    with pytest.raises(FuelsError, match=r"format 2, written by another version.*train again"):
        Ensemble.load(path, trained[0])


def test_data_that_begin_later_are_enough(
    trained: tuple[PersonalModels, Dataset], panel: Panel
) -> None:
    """The last days alone, with a hole since the mixture was last asked."""
    ensemble, history, end = start(trained)
    ensemble.run(until(history, end + 5))
    late = replace(panel, values=panel.values[-72:], start=panel.times[-72])
    made = forecast_ensemble(ensemble, late, 1)
    assert np.isfinite(made.values).all() and made.lower is not None
    assert ensemble.learned_until[1] == history.times(history.length, history.length + 1)[0]
    with pytest.raises(FuelsError, match="are not fitted yet"):
        forecast_ensemble(ensemble, late, 2)


def test_a_client_that_is_silent_is_left_to_the_experts_that_can_speak(
    trained: tuple[PersonalModels, Dataset], panel: Panel
) -> None:
    """After 40 silent hours no window is known, but what was a week ago still is."""
    models, _ = trained
    ensemble, _, _ = start(trained)
    silent = panel.values.copy()
    silent[-40:, 2] = np.nan
    quiet = replace(panel, values=silent)
    made = forecast_ensemble(ensemble, quiet.select(["c0", "c2", "c3"]))
    assert made.ids == ("c0", "c2", "c3") and np.isfinite(made.values).all()
    with pytest.warns(UserWarning, match="newest values are missing: c2"):
        assert np.isnan(forecast(models, quiet).values[2]).all()


def test_the_kept_round_looks_at_every_head(panel: Panel) -> None:
    """The validation error is that of all steps ahead, as far as they end before the test part."""
    values = panel.values.copy()
    values[15 * 24 + 3, 1] = np.nan  # no target, filled in windows
    settings = merge(BEST, {"training": {"rounds": 1}}, "test")
    with build(settings, Engine(threads=1), replace(panel, values=values)) as job:
        job.loop.run()
        models = kept_parameters(job, job.loop.final_download())  # of the one round there is
    first, last = job.dataset.split.part("val")
    history = history_of(job.dataset)
    made = forecasts_ahead(models, history, first, last, HORIZON)
    squares: list[list[float]] = [[] for _ in models.ids]
    for c, k, h in np.ndindex(made.shape):
        if first + k + h < last and not np.isnan(truth := history.observed[c, first + k + h]):
            squares[c].append((made[c, k, h] - truth) ** 2)
    assert len(squares[0]) == 48 + 47 + 46 and len(squares[1]) == len(squares[0]) - 3
    np.testing.assert_allclose(job.loop.val_mse, [np.mean(s) for s in squares], rtol=1e-3)


def test_evaluated_with_and_without_experts(panel: Panel) -> None:
    with build(BEST, Engine(threads=1), panel) as job:
        job.loop.run()
        models = kept_parameters(job, job.loop.final_download())
        evaluation = evaluate_job(job, models)
    assert list(evaluation.scores)[:3] == ["FUELS", "FUELS model alone", "last value"]
    assert evaluation.mixture is not None and evaluation.steps_ahead is not None
    assert evaluation.mixture.names[-1] == "FUELS model" and len(evaluation.mixture.scores) == 16
    np.testing.assert_allclose(evaluation.mixture.weights.sum(axis=2), 1.0)
    assert 0 <= evaluation.mixture.led <= 1
    steps = evaluation.steps_ahead
    assert {len(values) for values in steps.mse.values()} == {HORIZON}
    assert steps.mse["mixture"][0] == pytest.approx(
        evaluation.scores["FUELS"].means()["mse"], rel=1e-3
    )
    alone = evaluation.scores["FUELS model alone"].means()["mse"]
    assert steps.mse["own head"][0] == pytest.approx(alone, rel=1e-3)


def test_steps_ahead_are_evaluated_on_what_all_answer_after_the_training(
    trained: tuple[PersonalModels, Dataset], panel: Panel
) -> None:
    """No validation part, and gaps that silence the naive ones and the model at different times."""
    values = panel.values.copy()
    values[14 * 24 + 5 : 14 * 24 + 33, 1] = np.nan
    values[16 * 24 : 16 * 24 + 9, 2] = np.nan
    settings = merge(BEST, {"windows": {"split": "14/0/6"}}, "test")
    with build(settings, Engine(threads=1), replace(panel, values=values)) as job:
        dataset = job.dataset
    models, history = trained[0], history_of(dataset)
    ensemble = new_ensemble(models, history, dataset.split.train, title="model")
    parts = {}
    for h, model in ensemble.model_forecasts(history, HORIZON, dataset.split.test):
        past = ensemble.run(history, dataset.split.test, h, model)
        assert past is not None
        parts[h] = restricted_to_test(dataset, past)
    steps = steps_ahead(dataset, models, history, parts)
    train, last = dataset.split.train, dataset.split.test
    for h in range(1, HORIZON + 1):
        first = train + h - 1  # made when the last step of the training was known
        truth = targets_in_test(dataset)[:, h - 1 :]
        made = [
            forecasts_ahead(models, history, train, last - h + 1, h, direct=direct)[:, :, h - 1]
            for direct in (True, False)
        ]
        naive = [history.lagged(first, last, lag) for lag in (h, 24)]
        said = [parts[h].mixed.combined, *made, *naive]
        all_answer = ~np.isnan(truth) & np.all([~np.isnan(one) for one in said], axis=0)
        assert all_answer.any(axis=1).all() and not all_answer.all()
        for name, one in zip(steps.mse, said, strict=True):
            squares = np.where(all_answer, (one - truth) ** 2, 0).sum(axis=1)
            wanted = (squares / all_answer.sum(axis=1)).mean()
            assert steps.mse[name][h - 1] == pytest.approx(wanted, rel=1e-4), (name, h)
        bands = parts[h].bands
        inside = (truth >= bands.lower[0]) & (truth <= bands.upper[0]) & all_answer
        covered = (inside.sum(axis=1) / all_answer.sum(axis=1)).mean()
        assert steps.coverage[h - 1][0] == pytest.approx(covered)
        width = (bands.upper[0] - bands.lower[0])[all_answer].mean()
        assert steps.width[h - 1][0] == pytest.approx(width)


def test_steps_beyond_a_short_test_part_have_no_figures(panel: Panel) -> None:
    """Made when the training was over, no forecast 25 steps ahead falls into one day of test."""
    changes = {"windows": {"horizon": 26, "split": "14/0/1"}, "training": {"rounds": 1}}
    with build(merge(BEST, changes, "test"), Engine(threads=1), panel) as job:
        job.loop.run()
        evaluation = evaluate_job(job, kept_parameters(job, job.loop.final_download()))
    assert evaluation.steps_ahead is not None
    summary = evaluation.steps_ahead.summary()
    for values in summary["mse"].values():
        assert values[23] is not None and values[24:] == [None, None]
    assert summary["coverage"][24:] == summary["width"][24:] == [[None, None]] * 2
    json.dumps(summary, allow_nan=False)


def test_a_run_leaves_its_mixture_and_forecast_goes_on(
    panel: Panel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuels.runs.ahead.FARTHEST", 2)
    folder = RunFolder(tmp_path / "run")
    outcome = run(BEST, Engine(threads=1), folder, panel=panel)
    assert (folder.plots / "experts.png").stat().st_size > 10_000
    summary = json.loads(folder.summary.read_text())
    assert set(summary["mixture"]["intervals"]) == {"80", "95"}
    assert summary["steps_ahead"]["mse"]["recursive"]
    for one in ("coverage", "width"):
        assert np.array(summary["steps_ahead"][one]).shape == (HORIZON, 2)
    assert summary["per_client_and_round"]["numbers_up"] == 24 * 12
    table = pl.read_parquet(folder.forecasts)
    names = ["lower-80", "upper-80", "lower-95", "upper-95"]
    assert table.columns == ["client", "time", "actual", "forecast", *names]
    assert (table["lower-95"] <= table["lower-80"]).all()
    weights, mixture = pl.read_parquet(folder.weights), outcome.mixture
    assert mixture is not None and weights.columns == ["client", "time", *mixture.names]
    assert weights.select("client", "time").equals(table.select("client", "time"))
    assert set(weights.dtypes[2:]) == {pl.Float32}
    one = weights.filter(pl.col("client") == "c2").drop("client", "time").to_numpy()
    np.testing.assert_allclose(one, mixture.weights[:, 2], atol=1e-6)
    models = outcome.dataset  # the mixture has seen the whole test part
    from fuels.storage.models import load_models

    ensemble = Ensemble.load(folder.mixture, load_models(folder.models))
    assert set(ensemble.horizons) == {1, 2, 3}
    made = forecast_ensemble(ensemble, panel, 2)
    alone = forecast(ensemble.models, panel, 2)
    assert made.values.shape == alone.values.shape == (len(models.ids), 2)
    assert (made.values != alone.values).any()
