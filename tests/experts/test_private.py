"""Experts from noised sums, in a whole run and with more data afterwards."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fuels.config import Engine, Privacy, Settings, Sharing, merge, with_preset
from fuels.data.synthetic import synthesise
from fuels.errors import FuelsError
from fuels.experts.ensemble import Ensemble
from fuels.experts.history import History, make_history
from fuels.experts.private import PrivateExperts
from fuels.privacy.ledger import Ledger
from fuels.report.facts import facts
from fuels.report.privacy import revealed
from fuels.runs.run import run
from fuels.runs.settings import resolve
from fuels.sharing.protection import LEDGER, MEAN, Protection, budget_of
from fuels.storage.models import load_models
from fuels.storage.run_folder import RunFolder

PRIVACY = Privacy(epsilon=8.0)
PANEL = synthesise("net", clients=14, days=24, seed=3)
IDS = PANEL.ids
SHARING = Sharing(statistics=True, live_mean=True)
END = 18 * 24


def history(steps: int = 24 * 24) -> tuple[History, tuple[np.ndarray, np.ndarray]]:
    panel = replace(PANEL, values=PANEL.values[:steps])
    mean, std = PANEL.values[:END].mean(axis=0), PANEL.values[:END].std(axis=0)
    return make_history(panel, 24, mean, std), (mean, std)


def experts(settings: Privacy = PRIVACY, path: Path | None = None) -> PrivateExperts:
    made, scale = history()
    protection = Protection(settings, Ledger(budget_of(settings), path), "run")
    return PrivateExperts.protected(SHARING, protection, made.times(END, END + 1)[0], scale)


def live(shared: PrivateExperts, of: History) -> np.ndarray:
    found = shared.with_live_mean(of, IDS).live
    assert found is not None
    return found


def test_more_data_add_releases_and_change_no_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / LEDGER
    early, late = history(END + 30)[0], history()[0]
    first = live(experts(path=path), early)
    before = path.read_bytes()
    again = live(experts(path=path), late)
    np.testing.assert_array_equal(first, again[:, : END + 30])
    assert path.read_bytes().startswith(before)
    assert np.isfinite(again).all() and (again == again[0]).all()
    released = path.read_bytes()
    live(experts(path=path), early)
    assert path.read_bytes() == released
    later = history(END + 50)[0]
    other = tmp_path / "other"
    for each in (early, later, made := history()[0], later):
        live(experts(path=other), each)
    shared = experts(path=other)
    live(shared, made)
    spans = [(e.release.first, e.release.last) for e in shared.protection.ledger.find("run", MEAN)]  # type: ignore[union-attr]
    assert len(spans) == 4
    assert all(one[1] == two[0] for one, two in pairwise(spans))  # no step twice


def test_data_that_begin_after_a_gap_release_only_their_own_steps(tmp_path: Path) -> None:
    path, whole = tmp_path / LEDGER, history()[0]
    live(experts(path=path), history(END)[0])
    first = END + 24
    part = replace(
        whole,
        observed=whole.observed[:, first:],
        filled=whole.filled[:, first:],
        start=whole.times(first, first + 1)[0],
    )
    shared = experts(path=path)
    found = live(shared, part)
    assert np.isfinite(found).all()
    again = live(experts(path=path), whole)
    np.testing.assert_array_equal(again[:, first:], found)
    assert np.isnan(again[:, END:first]).all()


def test_the_live_mean_is_that_of_the_clients_and_some_noise() -> None:
    made = history()[0]
    found = live(experts(), made)[0]
    error = found - made.observed.mean(axis=0)
    assert 0.01 < error.std() < 0.6
    assert np.corrcoef(found, made.observed.mean(axis=0))[0, 1] > 0.9


@pytest.mark.parametrize("unit", ["hour", "day", "client"])
@pytest.mark.parametrize("relation", ["removed", "replaced"])
def test_a_run_never_spends_more_than_its_budget(unit: str, relation: str) -> None:
    settings = replace(PRIVACY, unit=unit, relation=relation, scale="1500,900")
    shared = experts(settings)
    made = shared.with_live_mean(history(END)[0], IDS)
    assert shared.coefficients(made, IDS, 12 * 24)
    ledger = shared.protection.ledger  # type: ignore[union-attr]
    if unit == "client":
        with pytest.warns(UserWarning, match="budget .* is spent: 'live mean' is not released"):
            shared.with_live_mean(history()[0], IDS)
    else:
        shared.with_live_mean(history()[0], IDS)
    assert ledger.epsilon <= 8.0 * (1 + 1e-9)
    assert ledger.epsilon > 7.9


def test_the_statistics_are_released_once_and_another_horizon_is_not_affordable() -> None:
    shared, made = experts(), history()[0]
    early, late = (shared.coefficients(made, IDS, end) for end in (12 * 24, END))
    for name, arrays in early.items():
        for part, array in arrays.items():
            np.testing.assert_array_equal(array, late[name][part])
    with pytest.warns(UserWarning, match="'statistics, 2 steps ahead' is not released"):
        assert shared.coefficients(made, IDS, END, horizon=2) == {}


def test_one_client_changes_no_other_ones_noise_free_inputs() -> None:
    """Only released numbers reach another client: what is forecast from them is public."""
    made, shared = history()[0], experts()
    shared.coefficients(shared.with_live_mean(made, IDS), IDS, 12 * 24)
    other = replace(made, observed=np.where(np.arange(14)[:, None] == 3, 9.0, made.observed))
    np.testing.assert_array_equal(live(shared, made), live(shared, other))


def test_a_private_run_states_its_guarantee_and_can_be_loaded(tmp_path: Path) -> None:
    settings = merge(
        with_preset(Settings(), "private", "test"),
        {"windows": {"split": "18/2/4"}, "model": {"hidden": 4}, "training": {"rounds": 1}},
        "test",
    )
    folder = RunFolder(tmp_path / "run")
    outcome = run(resolve(settings), Engine(threads=1), folder, panel=PANEL, plots=False)
    stated = outcome.summary["privacy"]
    assert (stated["unit"], stated["relation"]) == ("hour", "removed")
    assert 3.9 < stated["epsilon_spent"] <= stated["epsilon"] == 4.0
    names = {each["name"] for each in stated["releases"]}
    assert names == {"scale", "mean day", "live mean", "statistics"}
    assert "differentially private with epsilon 4" in facts(outcome.summary)["Privacy"]
    said = " ".join(revealed(outcome.summary))
    assert "Guarantee:" in said and "Not covered:" in said
    assert "Nothing here is differential privacy" not in said
    models = load_models(folder.models)
    loaded = Ensemble.load(folder.mixture, models)
    before = (folder.path / LEDGER).read_bytes()
    loaded.with_live_mean(loaded.history(PANEL))
    assert (folder.path / LEDGER).read_bytes() == before
    (folder.path / LEDGER).unlink()
    with pytest.raises(FuelsError, match="without the privacy ledger nobody knows"):
        Ensemble.load(folder.mixture, models)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "fuels"}, "needs --method solo, because fuels also sends"),
        ({"privacy": {"unit": "week"}}, "privacy.unit week is unknown"),
        ({"privacy": {"relation": "moved"}}, "privacy.relation moved is unknown"),
        ({"privacy": {"epsilon": -1}}, "privacy.epsilon must be a positive number"),
        ({"privacy": {"delta": 0}}, "privacy.delta must be above 0"),
        ({"privacy": {"scale": "12"}}, "privacy.scale must be MEAN,STD"),
        ({"privacy": {"secret": True}}, "settings of the method fuels"),
        ({"sharing": {"noise": 1.0}}, "exclude each other"),
        ({"mixture": {"on": False}}, "needs something to protect"),
        ({"data": {"implausible": "missing"}}, "needs --implausible keep"),
    ],
)
def test_settings_without_a_guarantee_are_refused(changes: dict[str, object], said: str) -> None:
    settings = merge(with_preset(Settings(), "private", "test"), changes, "test")
    with pytest.raises(FuelsError, match=said):
        resolve(settings)
