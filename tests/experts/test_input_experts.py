"""Experts with external inputs: equal to their reference, causal, local, silent without them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fuels.arrays import Floats
from fuels.config import Engine, Settings, Sharing, merge, with_preset
from fuels.data.inputs import EVERYONE, with_inputs
from fuels.data.panel import Panel
from fuels.data.synthetic import synthesise
from fuels.data.windows import Dataset
from fuels.experts import linear, regressions
from fuels.experts.ensemble import Ensemble, new_ensemble
from fuels.experts.history import History, history_of, make_history
from fuels.experts.input_experts import input_experts
from fuels.experts.linear import RidgeExpert
from fuels.experts.unseen import forecast_unseen
from fuels.runs.build import build, kept_parameters
from fuels.sharing.sums import LocalSums
from fuels.storage.models import PersonalModels

CLIENTS, DAYS, END = 12, 28, 20 * 24
NAMES = ("temperature", "event")
SHARED = Sharing(statistics=True, live_mean=True, min_clients=8)
SETTINGS = merge(
    with_preset(Settings(method="solo"), "best", "test"),
    {"windows": {"split": "20/0/8"}, "model": {"hidden": 4}, "training": {"rounds": 1}},
    "test",
)


def given(panel: Panel, seed: int = 0) -> Panel:
    """The panel with a temperature for all clients and an event for each, a day beyond its end."""
    draw, steps = np.random.default_rng(seed), panel.length + 24
    smooth = np.convolve(draw.normal(size=steps + 11), np.ones(12) / 4, "valid")
    events = (draw.random((steps, len(panel.ids))) < 0.05).astype(np.float64)
    bare = replace(panel, coordinates=None, inputs={})
    return with_inputs(
        bare,
        {
            "temperature": replace(bare, values=15 + 5 * smooth[:, None], ids=EVERYONE),
            "event": replace(bare, values=events),
        },
    )


@pytest.fixture(scope="module")
def panel() -> Panel:
    """Series of which some are moved by both inputs."""
    found = given(synthesise("net", clients=CLIENTS, days=DAYS, seed=3))
    std = found.values.std(axis=0)
    temperature, event = (found.inputs[name].values[: found.length] for name in NAMES)
    return replace(found, values=found.values + std * (0.1 * (temperature - 15) + event))


@pytest.fixture(scope="module")
def trained(panel: Panel) -> tuple[PersonalModels, Dataset]:
    with build(SETTINGS, Engine(threads=1), panel) as job:
        job.loop.run()
        return kept_parameters(job, job.loop.final_download()), job.dataset


def history(trained: tuple[PersonalModels, Dataset], panel: Panel | None = None) -> History:
    dataset = trained[1]
    return history_of(dataset if panel is None else replace(dataset, panel=panel))


def ensemble(trained: tuple[PersonalModels, Dataset], source: History, *, alone: bool) -> Ensemble:
    end = trained[1].split.train
    sharing = None if alone else SHARED
    return new_ensemble(trained[0], source, end, title="model", sharing=sharing)


@pytest.mark.parametrize("horizon", [1, 24])
def test_fits_and_forecasts_equal_the_reference(panel: Panel, horizon: int) -> None:
    panel = panel.take(np.arange(6))
    values, inputs = panel.values.copy(), dict(panel.inputs)
    values[50:90, 1] = np.nan
    some = inputs["event"].values.copy()
    some[100:130, 2], some[:, 3], some[:400, 4] = np.nan, 0.0, np.nan  # a gap, no event, a start
    some[:, 5] = np.nan
    inputs["event"] = replace(inputs["event"], values=some)
    mean, std = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
    source = make_history(replace(panel, values=values, inputs=inputs), 24, mean, std)
    experts = input_experts(NAMES)
    asked = experts, source, END, horizon, {}
    found, expected = regressions.fit_ridges(*asked), inspect.unwrap(linear.fit_ridges)(*asked)
    for name, arrays in expected.items():
        for part, array in arrays.items():
            np.testing.assert_allclose(found[name][part], array, 1e-7, 1e-7, err_msg=name)
    both = [e.name for e in experts if e.inputs == NAMES]
    assert all(np.isnan(expected[name]["weights"][5]).all() for name in both)
    fitted = experts, expected, source, END - 3, source.length + horizon, horizon
    made = regressions.forecast_ridges(*fitted)
    for name, forecasts in inspect.unwrap(linear.forecast_ridges)(*fitted).items():
        np.testing.assert_allclose(made[name], forecasts, 1e-8, 1e-8, err_msg=name)
        assert not np.isnan(forecasts[0]).any()  # inputs are known up to the farthest target


def test_experts_without_inputs_are_fitted_as_before(panel: Panel) -> None:
    """To the last bit, next to experts with inputs or not."""
    source = make_history(panel, 24, panel.values.mean(axis=0), panel.values.std(axis=0))
    plain = [RidgeExpert("ridge", linear.week_lags, calendar=True)]
    one = regressions.fit_ridges(plain, source, END, 2, {})
    two = regressions.fit_ridges([*input_experts(NAMES), *plain], source, END, 2, {})
    np.testing.assert_array_equal(one["ridge"]["weights"], two["ridge"]["weights"])


@pytest.mark.parametrize("horizon", [1, 6])
def test_later_inputs_change_no_earlier_forecast(
    trained: tuple[PersonalModels, Dataset], horizon: int
) -> None:
    source = history(trained)
    cut = trained[1].split.train + 40
    other = {name: values.copy() for name, values in source.inputs.items()}
    for values in other.values():
        values[:, cut:] = np.random.default_rng(1).normal(0, 20, values[:, cut:].shape)
    changed = replace(source, inputs=other)
    found = []
    for one in (source, changed):
        made = ensemble(trained, one, alone=True).run(one, horizon=horizon)
        assert made is not None
        found.append(made)
    first = source.length - found[0].mixed.combined.shape[1]
    same = slice(0, cut - first)
    for name, forecasts in found[0].experts.items():
        np.testing.assert_array_equal(forecasts[:, same], found[1].experts[name][:, same])
    before, after = (one.mixed.combined for one in found)
    np.testing.assert_array_equal(before[:, same], after[:, same])
    assert (before[:, cut - first] != after[:, cut - first]).any()  # the target's own input counts


def test_a_missing_input_costs_only_that_input(
    trained: tuple[PersonalModels, Dataset],
) -> None:
    source, gone = history(trained), trained[1].split.train + 30
    gap = slice(gone, gone + 60)
    event = source.inputs["event"].copy()
    event[:, gap] = np.nan
    lacking = replace(source, inputs={**source.inputs, "event": event})
    made = ensemble(trained, lacking, alone=False).run(lacking)
    assert made is not None
    first = source.length - made.mixed.combined.shape[1]
    part = slice(gone - first, gone - first + 60)
    quiet = {name for name, f in made.experts.items() if np.isnan(f[:, part]).all()}
    assert quiet == {e.name for e in input_experts(NAMES) if "event" in e.inputs}
    assert not np.isnan(made.mixed.combined).any() and not np.isnan(made.bands.lower).any()


@pytest.mark.parametrize("alone", [True, False])
def test_without_any_input_forecasts_are_those_of_a_run_without_inputs(
    trained: tuple[PersonalModels, Dataset], alone: bool
) -> None:
    """To the last bit, also after inputs were used."""
    source, gone = history(trained), trained[1].split.train + 30
    lacking = {name: values.copy() for name, values in source.inputs.items()}
    for values in lacking.values():
        values[:, gone : gone + 60] = np.nan
    found = []
    for inputs in ({}, lacking):
        whole = replace(source, inputs=inputs)
        made = ensemble(trained, whole, alone=alone).run(whole)
        assert made is not None
        found.append(made.mixed.combined)
    part = slice(gone - (source.length - found[0].shape[1]), None)
    plain, other = (one[:, part] for one in found)
    np.testing.assert_array_equal(plain[:, :60], other[:, :60])
    assert (plain[:, 90:] != other[:, 90:]).any()


@pytest.mark.parametrize(("horizon", "gain"), [(1, 0.75), (6, 0.75)])
def test_a_driver_lowers_the_error_and_a_random_input_does_not_raise_it(
    trained: tuple[PersonalModels, Dataset], horizon: int, gain: float
) -> None:
    panel = trained[1].panel
    errors = []
    for inputs in ({}, panel.inputs, *(given(panel, seed).inputs for seed in (5, 6))):
        whole = history(trained, replace(panel, inputs=inputs))
        made = ensemble(trained, whole, alone=True).run(whole, horizon=horizon)
        assert made is not None
        combined = made.mixed.combined
        errors.append(np.nanmean((whole.observed[:, -combined.shape[1] :] - combined) ** 2))
    plain, driven, *random = errors
    assert driven < gain * plain and max(random) < 1.005 * plain


def test_nothing_of_the_inputs_is_shared(
    trained: tuple[PersonalModels, Dataset], panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What clients contribute to sums is the same, bit by bit, whatever their inputs are."""
    sent: list[list[tuple[object, ...]]] = []
    total = LocalSums.total

    def spy(self: LocalSums, name: str, step: int, given: Mapping[str, Floats]) -> Floats | None:
        parts = [(client, array.tobytes()) for client, array in given.items()]
        sent[-1].append((name, step, *parts))
        return total(self, name, step, given)

    monkeypatch.setattr(LocalSums, "total", spy)
    for inputs in (panel.inputs, given(panel, seed=9).inputs, {}):
        sent.append([])
        whole = history(trained, replace(trained[1].panel, inputs=inputs))
        ensemble(trained, whole, alone=False).run(whole)
    assert len(sent[0]) > 2 and sent[0] == sent[1] == sent[2]


def test_extreme_inputs_count_as_the_end_of_their_range(panel: Panel) -> None:
    source = make_history(panel, 24, panel.values.mean(axis=0), panel.values.std(axis=0))
    experts = input_experts(("temperature",))
    fitted = regressions.fit_ridges(experts, source, END, 1, {})

    def forecasts(value: float) -> Floats:
        other = source.inputs["temperature"].copy()
        other[:, END + 50] = value
        one = replace(source, inputs={"temperature": other})
        made = regressions.forecast_ridges(experts, fitted, one, END + 50, END + 51, 1)
        return np.stack(list(made.values()))

    np.testing.assert_array_equal(forecasts(1e6), forecasts(1e9))  # Kelvin, a wrong decimal point
    assert np.abs(forecasts(1e9)).max() < 20


def test_an_ensemble_with_inputs_is_saved_and_continues(
    trained: tuple[PersonalModels, Dataset], tmp_path: Path
) -> None:
    source, cut = history(trained), trained[1].split.train + 60
    whole = ensemble(trained, source, alone=False)
    assert whole.run(source) is not None
    stopped = ensemble(trained, source, alone=False)
    assert stopped.run(source, cut) is not None
    stopped.save(tmp_path / "mixture.safetensors")
    again = Ensemble.load(tmp_path / "mixture.safetensors", trained[0])
    assert again.inputs == NAMES and again.run(source) is not None
    one, two = (each.next(source)[0] for each in (whole, again))
    np.testing.assert_array_equal(one, two)


def test_clients_that_the_run_has_not_seen_use_inputs(
    trained: tuple[PersonalModels, Dataset],
) -> None:
    whole = ensemble(trained, history(trained), alone=False)
    whole.learn(history(trained), 2)
    panel = trained[1].panel
    driver = panel.inputs["temperature"].values
    draw = np.random.default_rng(4)
    own = 100 + 20 * driver[: panel.length, 0] + draw.normal(size=panel.length)
    values = np.concatenate([panel.values, own[:, None]], axis=1)
    more = replace(panel, values=values, ids=(*panel.ids, "new"), coordinates=None)
    found = forecast_unseen(whole, more, ["new"], 2)
    blind = forecast_unseen(whole, replace(more, inputs={}), ["new"], 2)
    truth = 100 + 20 * driver[panel.length : panel.length + 2, 0]
    assert np.abs(found.values[0] - truth).max() < 5  # the event has no values for this client
    assert np.abs(blind.values[0] - truth).max() > 2 * np.abs(found.values[0] - truth).max()
