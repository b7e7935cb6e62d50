"""Experts that use the live mean and the shared statistics."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fuels.config import PRESETS, Engine, Settings, Sharing, merge
from fuels.data.synthetic import synthesise
from fuels.data.windows import Dataset
from fuels.evaluation.evaluate import nothing_shared
from fuels.experts.ensemble import Ensemble, new_ensemble
from fuels.experts.history import History, history_of, make_history
from fuels.experts.horizon import Backtest, own_warm_ups
from fuels.experts.personal_model import history_for
from fuels.experts.pool import EXPERTS
from fuels.experts.shared import LIVE, POOLED, POOLED_LIVE, SharedExperts
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


def past(ensemble: Ensemble, history: History) -> Backtest:
    found = ensemble.run(history)
    assert found is not None
    return found


def test_the_future_of_all_clients_changes_no_earlier_forecast(trained: Trained) -> None:
    models, dataset = trained
    ensemble, history, end = start(trained)
    before = past(ensemble, history)
    cut = end + 30
    changed = dataset.panel.values.copy()
    changed[cut - dataset.offset :] = dataset.mean + 2 * dataset.std
    other = history_for(models, replace(dataset.panel, values=changed))
    altered = new_ensemble(models, other, end, title="model", sharing=ALL)
    after, same = past(altered, other), cut - end + 1
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
    local = nothing_shared(history, ensemble, found, history.length)
    truth = history.observed[:, end:]
    own, other = (np.nanmean((truth - made)[:, 48:] ** 2) for made in (found.mixed.combined, local))
    assert own < 1.01 * other


def test_each_part_can_be_disabled(trained: Trained) -> None:
    local, live = [e.name for e in EXPERTS], [e.name for e in LIVE]
    pooled, both = [e.name for e in POOLED], [e.name for e in POOLED_LIVE]
    expected = {
        (True, True): [*local, *live, *both, *pooled],
        (True, False): [*local, *pooled],
        (False, True): [*local, *live],
        (False, False): local,
    }
    for (statistics, live_mean), names in expected.items():
        ensemble, history, _ = start(trained, Sharing(statistics, live_mean))
        found = past(ensemble, history)
        assert list(found.experts) == [*names, "model"]
        assert not any(np.isnan(found.experts[name]).all() for name in names)


def test_only_local_experts_look_further_than_one_step(trained: Trained) -> None:
    """Further ahead, sharing changes nothing, so it cannot cost anything."""
    forecasts = []
    for sharing in (ALL, Sharing()):
        ensemble, history, _ = start(trained, sharing)
        found = ensemble.run(history, horizon=2)
        assert found is not None
        forecasts.append(found.mixed.combined)
    np.testing.assert_array_equal(*forecasts)


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
    assert f"{abs(sharing['mse_change']):.1%}" in said["Federation"]
    assert "8 periods" in said["Federation"] and "14,400 numbers once" in said["Shared sums"]


def test_a_run_with_few_clients_says_why_nothing_is_shared(tmp_path: Path) -> None:
    panel = make_panel(clients=4, days=28)
    outcome = run(BEST, Engine(threads=1), RunFolder(tmp_path / "r"), panel=panel, plots=False)
    said = facts(outcome.summary)["Sharing"]
    assert said == "nothing was shared as sums: 4 clients are fewer than sharing.min_clients = 10"
    assert "local experts only (nothing shared)" not in outcome.scores
