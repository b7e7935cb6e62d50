"""What external inputs add to personal models: solved, causal, private, kept with the models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fuels.arrays import Floats
from fuels.config import Engine, Settings, merge
from fuels.data.inputs import EVERYONE, with_inputs
from fuels.data.panel import Panel
from fuels.experts.history import History, history_of, make_history
from fuels.experts.input_weights import added_by_inputs, fit_input_weights
from fuels.experts.personal_model import forecast, forecasts_ahead
from fuels.runs.build import Job, build, kept_parameters
from fuels.runs.run import personal_forecasts
from fuels.storage.models import PersonalModels, load_models, save_models
from helpers.panels import make_panel

DAYS, TRAIN, AHEAD = 24, 16, 2
STEPS = DAYS * 24 + 12  # inputs are known half a day beyond the values
SETTINGS = merge(
    Settings(method="fuels"),
    {
        "windows": {"split": f"{TRAIN}/3/5", "horizon": AHEAD},
        "model": {"hidden": 3},
        "training": {"rounds": 2},
    },
    "test",
)


def given(panel: Panel, *columns: Floats) -> Panel:
    """The panel with inputs a, b, ... that hold for all clients."""
    bare = replace(panel, coordinates=None)
    found = {
        name: replace(bare, values=column[:, None], ids=EVERYONE)
        for name, column in zip("abc", columns, strict=False)
    }
    return with_inputs(bare, found)


def draws(seed: int) -> Floats:
    return np.random.default_rng(seed).normal(size=STEPS)


@pytest.fixture(scope="module")
def driven() -> Panel:
    """Series to which the first of two inputs adds one standard deviation for each of its own."""
    panel, driver = make_panel(clients=3, days=DAYS), draws(1)
    more = driver[: panel.length, None] * panel.values.std(axis=0)
    return given(replace(panel, values=panel.values + more), driver, draws(2))


def run(panel: Panel, **settings: object) -> tuple[Job, PersonalModels]:
    with build(merge(SETTINGS, settings, "test"), Engine(threads=1), panel) as job:
        job.loop.run([])
        return job, kept_parameters(job, job.loop.final_download())


@pytest.fixture(scope="module")
def trained(driven: Panel) -> tuple[Job, PersonalModels]:
    return run(driven)


def chain(models: PersonalModels, history: History, horizon: int = AHEAD) -> Floats:
    first, last = TRAIN * 24, DAYS * 24
    return forecasts_ahead(models, history, first, last, horizon)


def test_weights_recover_what_an_input_adds() -> None:
    """With heads that know everything else, and an input of which only the level counts."""
    panel = given(make_panel(clients=2, days=DAYS), draws(3))
    plain = make_history(panel, 24, np.zeros(2), np.ones(2))
    history = replace(plain, observed=np.tile(0.7 * draws(3)[: panel.length], (2, 1)))
    nothing = np.zeros((2, TRAIN * 24))
    found = fit_input_weights(history, [nothing, nothing], 0, TRAIN * 24)
    for head in (1, 2):
        added = added_by_inputs(found, history, head, TRAIN * 24, DAYS * 24)
        truth = 0.7 * (draws(3)[TRAIN * 24 : DAYS * 24] - draws(3)[: TRAIN * 24].mean())
        np.testing.assert_allclose(added, np.tile(truth, (2, 1)), atol=0.05)


def test_a_driver_lowers_the_error_of_personal_models_alone(
    trained: tuple[Job, PersonalModels], driven: Panel
) -> None:
    """The paper's models, without any expert; a random input changes next to nothing."""
    job, models = trained
    history = history_of(job.dataset)

    def error(models: PersonalModels, horizon: int) -> float:
        made = chain(models, history, horizon)[:, : DAYS * 24 - TRAIN * 24 - horizon, -1]
        truth = history.observed[:, TRAIN * 24 + horizon - 1 : DAYS * 24 - 1]
        return float(np.nanmean((truth - made) ** 2))

    for horizon in (1, AHEAD, 5):  # both heads, and recursion beyond them
        assert error(models, horizon) < 0.75 * error(replace(models, inputs=None), horizon)
    scores = [personal_forecasts(job, each) for each in (models, replace(models, inputs=None))]
    first, last = job.dataset.split.part("test")
    mse = [np.nanmean((history.observed[:, first:last] - one) ** 2) for one in scores]
    assert mse[0] < 0.75 * mse[1]
    np.testing.assert_allclose(
        scores[0][:, :-1], chain(models, history, 1)[:, first - TRAIN * 24 : -1, 0], atol=1e-5
    )


def test_a_random_input_changes_next_to_nothing(driven: Panel) -> None:
    job, models = run(given(make_panel(clients=3, days=DAYS), draws(7), draws(8)))
    history = history_of(job.dataset)
    truth = history.observed[:, TRAIN * 24 :]
    both = [chain(each, history)[..., 0] for each in (models, replace(models, inputs=None))]
    random, plain = (float(np.nanmean((truth - one) ** 2)) for one in both)
    assert random < 1.005 * plain


@pytest.mark.parametrize("method", ["fuels", "fedavg"])
def test_training_sends_the_same_bits_with_any_inputs(driven: Panel, method: str) -> None:
    """So do the networks that clients keep: only the weights of the inputs depend on these."""
    found = []
    for panel in (driven, given(replace(driven, inputs={}), draws(9)), replace(driven, inputs={})):
        job, models = run(panel, method=method, training={"rounds": 1})
        sent = {**job.loop.server.state()}
        found.append({name: np.asarray(array).tobytes() for name, array in sent.items()})
        found[-1] |= {name: part.numpy().tobytes() for name, part in models.parts.items()}
    assert found[0] == found[1] == found[2] and models.inputs is None


def test_later_inputs_change_no_earlier_forecast(trained: tuple[Job, PersonalModels]) -> None:
    job, models = trained
    history, cut = history_of(job.dataset), TRAIN * 24 + 50
    other = {name: values.copy() for name, values in history.inputs.items()}
    for values in other.values():
        values[:, cut:] = 99.0
    one, two = chain(models, history), chain(models, replace(history, inputs=other))
    for h in range(AHEAD):
        place = cut - TRAIN * 24 - h  # the forecast h + 1 steps ahead of step `cut`
        np.testing.assert_array_equal(one[:, :place, h], two[:, :place, h])
        assert (one[:, place, h] != two[:, place, h]).all()


def test_a_missing_input_costs_only_that_input(trained: tuple[Job, PersonalModels]) -> None:
    job, models = trained
    history = history_of(job.dataset)
    lacking = {name: values.copy() for name, values in history.inputs.items()}
    lacking["b"][:, TRAIN * 24 - 200 :] = np.nan
    assert models.inputs is not None
    span = TRAIN * 24 + 24, DAYS * 24
    both = added_by_inputs(models.inputs, history, 1, *span)
    one = added_by_inputs(models.inputs, replace(history, inputs=lacking), 1, *span)
    none = added_by_inputs(models.inputs, replace(history, inputs={}), 1, *span)
    assert np.abs(both).mean() > 5 * np.abs(both - one).mean() > 0  # b is noise
    assert not none.any()


def test_the_weights_are_saved_with_the_models(
    trained: tuple[Job, PersonalModels], driven: Panel, tmp_path: Path
) -> None:
    models = trained[1]
    save_models(tmp_path / "models.safetensors", models)
    loaded = load_models(tmp_path / "models.safetensors")
    expected = forecast(models, driven, 6)
    np.testing.assert_array_equal(forecast(loaded, driven, 6).values, expected.values)
    some = forecast(loaded.take(loaded.ids[1:]), driven.select(loaded.ids[1:]), 6)
    np.testing.assert_array_equal(some.values, expected.values[1:])
    blind = forecast(replace(loaded, inputs=None), driven, 6)
    assert (blind.values != expected.values).all()
