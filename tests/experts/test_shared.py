"""Experts that use the live mean and the shared statistics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fuels.config import PRESETS, Engine, Settings, Sharing, merge
from fuels.data.synthetic import synthesise
from fuels.data.windows import Dataset
from fuels.evaluation.evaluate import nothing_shared
from fuels.experts.blend import Blend
from fuels.experts.ensemble import Ensemble, new_ensemble
from fuels.experts.history import History, history_of, make_history
from fuels.experts.horizon import Backtest, first_out_of_sample, fit_horizon, own_warm_ups
from fuels.experts.personal_model import history_for
from fuels.experts.pool import EXPERTS
from fuels.experts.shared import (
    LIVE,
    POOLED,
    POOLED_LIVE,
    SHRUNK,
    SharedExperts,
    saved_pool,
)
from fuels.report.facts import facts
from fuels.runs.build import build, kept_parameters
from fuels.runs.run import run
from fuels.sharing.sums import LocalSums
from fuels.storage.models import PersonalModels
from fuels.storage.run_folder import RunFolder
from helpers.panels import make_panel

ALL = Sharing(statistics=True, live_mean=True)
BEST = merge(
    merge(Settings(), {"preset": "best", **PRESETS["best"]}, "preset"),
    {"windows": {"split": "20/0/8"}, "model": {"hidden": 4}, "training": {"rounds": 1}},
    "test",
)
Trained = tuple[PersonalModels, Dataset]


@pytest.fixture(scope="module")
def trained() -> Trained:
    with build(BEST, Engine(threads=1), synthesise("net", clients=14, days=28, seed=3)) as job:
        job.loop.run()
        return kept_parameters(job, job.loop.final_download()), job.dataset


def start(trained: Trained, sharing: Sharing = ALL) -> tuple[Ensemble, History, int]:
    models, dataset = trained
    history, end = history_of(dataset), dataset.split.train
    return new_ensemble(models, history, end, title="model", sharing=sharing), history, end


def past(ensemble: Ensemble, history: History, horizon: int = 1) -> Backtest:
    found = ensemble.run(history, horizon=horizon)
    assert found is not None
    return found


@pytest.mark.parametrize("horizon", [1, 3])
def test_the_future_of_all_clients_changes_no_earlier_forecast(
    trained: Trained, horizon: int
) -> None:
    models, dataset = trained
    ensemble, history, end = start(trained)
    before = past(ensemble, history, horizon)
    cut = end + 30
    changed = dataset.panel.values.copy()
    changed[cut - dataset.offset :] = dataset.mean + 2 * dataset.std
    other = history_for(models, replace(dataset.panel, values=changed))
    altered = new_ensemble(models, other, end, title="model", sharing=ALL)
    after, same = past(altered, other, horizon), cut - end + 1
    for name, forecasts in before.experts.items():
        np.testing.assert_array_equal(forecasts[:, :same], after.experts[name][:, :same])
    np.testing.assert_array_equal(before.mixed.combined[:, :same], after.mixed.combined[:, :same])
    live = ensemble.with_live_mean(history).live, altered.with_live_mean(other).live
    assert live[0] is not None and live[1] is not None
    np.testing.assert_array_equal(live[0][:, :cut], live[1][:, :cut])
    assert (live[0][:, cut:] != live[1][:, cut:]).all()


@pytest.mark.parametrize("fault", ["stops", "lags", "is too large"])
def test_a_wrong_live_mean_costs_little_after_a_day(trained: Trained, fault: str) -> None:
    ensemble, history, end = start(trained)
    history = ensemble.with_live_mean(history)
    ensemble.fit(history, [1])
    assert history.live is not None and not np.isnan(history.live[:, end:]).any()
    wrong, broken = history.live.copy(), end + 24
    if fault == "stops":
        wrong[:, broken:] = np.nan
    elif fault == "lags":
        wrong[:, broken:] = history.live[:, broken - 3 : -3]
    else:
        sums = ensemble.sharing.live(history, ensemble.models.ids)  # type: ignore[union-attr]
        assert sums is not None
        large = replace(sums, total=sums.total * 1000).others(history.observed)
        wrong[:, broken:] = large[:, broken:]
    found = past(ensemble, replace(history, live=wrong))
    local = nothing_shared(history, ensemble.horizons[1], found, history.length)
    truth = history.observed[:, end:]
    own, other = (np.nanmean((truth - made)[:, 48:] ** 2) for made in (found.mixed.combined, local))
    assert own < 1.01 * other


def test_each_part_can_be_disabled(trained: Trained) -> None:
    local, live = [e.name for e in EXPERTS], [e.name for e in LIVE]
    pooled, both = [e.name for e in POOLED], [e.name for e in POOLED_LIVE]
    shrunk = [*live, *(e.name for e in SHRUNK)]
    expected = {
        (True, True): [*local, *shrunk, *both, *pooled],
        (True, False): [*local, *pooled],
        (False, True): [*local, *live],
        (False, False): local,
    }
    for (statistics, live_mean), names in expected.items():
        ensemble, history, _ = start(trained, Sharing(statistics, live_mean))
        found = past(ensemble, history)
        assert list(found.experts) == [*names, "model"]
        assert not any(np.isnan(found.experts[name]).all() for name in names)


def test_several_steps_ahead_the_shared_experts_have_a_limited_share(trained: Trained) -> None:
    ensemble, history, end = start(trained)
    found = past(ensemble, history, 2)
    online = ensemble.horizons[2]
    assert isinstance(online.mixture, Blend)
    most = 0.25 * 22 / 24
    assert most < 168 / (168 + end)  # 20 days, without a gap
    np.testing.assert_allclose(online.mixture.state["share"], most)
    shared = [i for i, name in enumerate(found.experts) if name in online.pool.shared]
    assert len(shared) == len(LIVE) + len(SHRUNK) + len(POOLED_LIVE) + len(POOLED)
    assert (found.mixed.weights[:, :, shared].sum(axis=2) <= most + 1e-9).all()
    np.testing.assert_allclose(found.mixed.weights.sum(axis=2), 1)


def test_shared_experts_cost_nothing_on_independent_series() -> None:
    rng, steps = np.random.default_rng(5), 24 * 30
    values = rng.normal(size=(steps, 12))
    for k in range(1, steps):
        values[k] += 0.8 * values[k - 1]
    panel = replace(make_panel(clients=12, days=30), values=100 + values)
    end = 20 * 24
    history = make_history(panel, 24, panel.values[:end].mean(0), panel.values[:end].std(0))
    for horizon in (1, 6, 24):
        own, other = errors_of(history, panel.ids, end, horizon)
        assert own < 1.005 * other


def errors_of(history: History, ids: Sequence[str], end: int, horizon: int) -> tuple[float, float]:
    """Mean squared errors with shared experts and with local ones only."""
    shared = SharedExperts(LocalSums())
    history = shared.with_live_mean(history, ids)
    online = fit_horizon(
        shared.pool,
        history,
        end,
        horizon=horizon,
        pooled=lambda until: shared.coefficients(history, ids, until, horizon),
    )
    found = online.run(history, first_out_of_sample(end, horizon), history.length)
    local = nothing_shared(history, online, found, history.length)
    truth = history.observed[:, first_out_of_sample(end, horizon) :]
    own, other = (float(np.nanmean((truth - f) ** 2)) for f in (found.mixed.combined, local))
    return own, other


def test_experts_abstain_while_the_live_mean_is_too_short(trained: Trained) -> None:
    """As where most of the clients are newcomers: the mean starts with the last days."""
    ensemble, history, end = start(trained)
    shared = ensemble.sharing
    assert shared is not None
    history = shared.with_live_mean(history, ensemble.models.ids)
    assert history.live is not None
    late = history.live.copy()
    late[:, : end - 60] = np.nan
    history = replace(history, live=late)
    fitted = shared.pool.fit(
        history, end, 1, shared.coefficients(history, ensemble.models.ids, end)
    )
    made = fitted.forecasts(history, end, end + 24)
    for expert in (*POOLED_LIVE, *SHRUNK, *(e for e in LIVE if e.calendar)):
        assert np.isnan(made[expert.name]).all()
    for pooled in POOLED:
        assert np.isfinite(made[pooled.name]).all()
        assert (made[pooled.name] != made["last value"]).any(axis=1).all()


def test_a_shrunk_ridge_is_the_pooled_one_without_a_past_of_its_own(trained: Trained) -> None:
    ensemble, history, end = start(trained)
    shared = ensemble.sharing
    assert shared is not None
    history = shared.with_live_mean(history, ensemble.models.ids)
    pooled = shared.coefficients(history, ensemble.models.ids, end)
    fitted = shared.pool.fit(history, end, 1, pooled).forecasts(history, end, history.length)
    short = history.observed.copy()
    short[0, :end] = np.nan  # a client that is new
    filled = np.where(np.isnan(short), np.nan, history.filled)
    new = replace(history, observed=short, filled=filled)
    again = shared.pool.fit(new, end, 1, pooled).forecasts(new, end, history.length)
    for expert in SHRUNK:
        np.testing.assert_array_equal(again[expert.name][0], again[expert.towards][0])
        assert (fitted[expert.name] != fitted[expert.towards]).any()


def test_files_of_earlier_versions_keep_their_experts() -> None:
    old = [*LIVE, *(e for e in POOLED_LIVE if "day lags" not in e.name), *POOLED]
    names = [e.name for e in saved_pool(1, [f"1/{e.name}/inputs" for e in old], None).experts]
    assert names == [e.name for e in (*EXPERTS, *old)]
    further = [e.name for e in saved_pool(6, [], None).experts]
    assert further == [e.name for e in EXPERTS if not e.one_step_only]


def test_too_few_clients_share_nothing(trained: Trained) -> None:
    ensemble, _, _ = start(trained, replace(ALL, min_clients=15))
    assert ensemble.sharing is None


def test_a_saved_ensemble_continues_with_the_same_bits(trained: Trained, tmp_path: Path) -> None:
    models, _ = trained
    ensemble, history, end = start(trained)
    whole = past(ensemble.copy(), history).mixed.combined
    ensemble.run(history, end + 40)
    ensemble.save(tmp_path / "mixture.safetensors")
    loaded = Ensemble.load(tmp_path / "mixture.safetensors", models)
    np.testing.assert_array_equal(past(loaded, history).mixed.combined, whole[:, 40:])


def test_two_disjoint_statistics_are_exchanged(trained: Trained) -> None:
    _, history, end = start(trained)
    shared = SharedExperts(LocalSums(2))
    ids = [str(i) for i in range(history.clients)]
    history = shared.with_live_mean(history, ids)
    shared.coefficients(history, ids, end - 48)
    whole = shared.coefficients(history, ids, end)
    assert shared.carrier.sent["statistics"] == 2 * 24 * 24 * 25 // 2
    at_once = SharedExperts(LocalSums(2)).coefficients(history, ids, end)
    for name, arrays in whole.items():
        np.testing.assert_allclose(arrays["inputs"], at_once[name]["inputs"], atol=1e-9)


def test_a_newcomer_warms_up_on_its_last_days() -> None:
    panel, days = make_panel(clients=3, days=40), 24
    values = panel.values.copy()
    values[: 33 * days, 1] = np.nan  # 7 days of history
    values[:, 2] = np.nan
    history = make_history(replace(panel, values=values), days, np.zeros(3), np.ones(3))
    found = own_warm_ups(history, 40 * days, 29 * days, 1)
    assert (found // days).tolist() == [29, 38, 29]


def test_a_run_says_what_federation_is_worth(tmp_path: Path) -> None:
    panel = synthesise("net", clients=12, days=28, seed=3)
    outcome = run(BEST, Engine(threads=1), RunFolder(tmp_path / "r"), panel=panel, plots=False)
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    sharing, local = summary["sharing"], "local experts only (nothing shared)"
    assert sharing["used"] == ["statistics", "live_mean"]
    assert sharing["sent"] == {"statistics": 14400, "live_mean_per_step": 2}
    ratio = summary["scores"]["FUELS"]["mse"] / summary["scores"][local]["mse"]
    assert sharing["mse_change"] == pytest.approx(ratio - 1, abs=1e-6)
    own, other = (outcome.scores[name].mse for name in ("FUELS", local))
    assert sharing["clients_better"] == (own < other).sum()
    assert summary["best_reference"] != local
    said = facts(summary)
    assert f"{100 * abs(sharing['mse_change']):.1f} %" in said["Federation"]
    assert "8 periods" in said["Federation"] and "14,400 numbers once" in said["Shared sums"]


def test_a_run_with_few_clients_says_why_nothing_is_shared(tmp_path: Path) -> None:
    panel = make_panel(clients=4, days=28)
    outcome = run(BEST, Engine(threads=1), RunFolder(tmp_path / "r"), panel=panel, plots=False)
    said = facts(outcome.summary)["Sharing"]
    assert said == "nothing was shared as sums: 4 clients are fewer than sharing.min_clients = 10"
    assert "local experts only (nothing shared)" not in outcome.scores
