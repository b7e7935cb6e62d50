"""The experiment federation, and the mixtures it evaluates without training again."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fuels.config import PRESETS, Engine, Settings, merge
from fuels.data.newcomers import newcomers
from fuels.data.synthetic import synthesise
from fuels.data.writers import write_panel
from fuels.errors import FuelsError
from fuels.evaluation.outcome import NOTHING_SHARED, SOLO_NOTHING_SHARED
from fuels.report.facts import facts
from fuels.research.experiments.federation import within_a_period
from fuels.research.experiments.federation_changes import (
    ALL,
    Case,
    Change,
    Found,
    Group,
    Pair,
    Plan,
    Window,
)
from fuels.research.experiments.federation_pages import cell, conclusion
from fuels.research.study.mixtures import Errors, evaluate, evaluated, trained
from fuels.research.study.store import Store, ensure_run
from fuels.runs.settings import resolve
from helpers.commands import Fuels

NOTHING, BOTH = {"statistics": False, "live_mean": False}, {"statistics": True, "live_mean": True}
WHOLE = slice(0, 6)


def settings_of(source: Path, sharing: dict[str, bool], method: str = "fuels") -> Settings:
    best = merge(Settings(method=method), {"preset": "best", **PRESETS["best"]}, "preset")
    small = {"model": {"hidden": 4}, "training": {"rounds": 1}, "windows": {"split": "15/0/6"}}
    return resolve(merge(best, {**small, "data": {"source": str(source)}, "sharing": sharing}, "t"))


@pytest.fixture(scope="module")
def panel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "city.npz"
    write_panel(synthesise("net", clients=12, days=21, seed=5), path)
    return path


# -- mixtures ----------------------------------------------------------------------------------


def test_stored_models_give_the_errors_of_a_run_under_every_setting(
    panel: Path, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    settings = settings_of(panel, BOTH)
    done = ensure_run(settings, Engine(threads=1), store, with_folder=True)
    dataset, model = store.dataset(settings), trained(done)
    found, new = evaluated(store, settings, dataset, model=model)
    assert new and found.ids == dataset.ids
    mse = found.mse(dataset.ids, dataset.std, WHOLE)
    np.testing.assert_allclose(mse, done.record.mse["FUELS"], rtol=1e-4)
    alone = evaluate(dataset, settings_of(panel, NOTHING).sharing)
    np.testing.assert_allclose(
        alone.mse(dataset.ids, dataset.std, WHOLE), done.record.mse[NOTHING_SHARED], rtol=1e-4
    )
    again, new = evaluated(store, settings, dataset, model=model)
    assert not new and (again.squared == found.squared).all()

    [path] = (tmp_path / "store" / "mixtures").glob("*.json")
    path.write_text("{}")
    with pytest.raises(FuelsError, match="not a result of this experiment; delete it"):
        evaluated(store, settings, dataset, model=model)


def test_with_nothing_shared_solo_keeps_its_model(panel: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    settings = settings_of(panel, BOTH, "solo")
    done = ensure_run(settings, Engine(threads=1), store, with_folder=True)
    dataset, model = store.dataset(settings), trained(done)
    found = evaluate(dataset, settings_of(panel, NOTHING).sharing, model=model)
    mse = found.mse(dataset.ids, dataset.std, WHOLE)
    np.testing.assert_allclose(mse, done.record.mse[SOLO_NOTHING_SHARED], rtol=1e-4)
    daily = found.daily(dataset.ids, dataset.std, WHOLE)
    kept = done.record.mse_by_period(SOLO_NOTHING_SHARED)
    assert kept is not None
    np.testing.assert_allclose(kept.mean(axis=0), daily, rtol=1e-3)
    assert NOTHING_SHARED not in done.record.mse and done.folder is not None
    summary = done.folder.read_summary()
    assert summary["sharing"]["compared_with"] == SOLO_NOTHING_SHARED
    said = facts(summary)["Federation"]
    assert "than that of Solo and local experts (nothing shared)" in said
    assert "personal model" not in said


def test_several_steps_ahead_no_forecast_made_in_training_counts(panel: Path) -> None:
    dataset = Store().dataset(settings_of(panel, NOTHING))
    sharing = settings_of(panel, NOTHING).sharing
    found = evaluate(dataset, sharing, horizon=6)
    assert found.count[:, 0].max() == 24 - 5 and found.count[:, 1].max() == 24


def test_noise_on_the_sums_changes_a_mixture(panel: Path) -> None:
    settings = settings_of(panel, BOTH)
    dataset = Store().dataset(settings)
    noisy = replace(settings.sharing, noise=4.0)
    plain, one, same, other = (
        evaluate(dataset, sharing, seed=seed).squared
        for sharing, seed in ((settings.sharing, 0), (noisy, 0), (noisy, 0), (noisy, 1))
    )
    assert (one == same).all() and not np.allclose(one, other) and not np.allclose(one, plain)


# -- changes -----------------------------------------------------------------------------------


def errors(ids: str, std: list[float], *squared: list[float]) -> Errors:
    days = np.array(squared)
    return Errors(tuple(ids), np.array(std), days, np.isfinite(days).astype(float))


def test_changes_are_means_over_clients_in_units_of_the_whole_training() -> None:
    window = Window(slice(0, 2), "days")
    found = Found({"s": (window,)}, (0,), 0.5, std={("s", 0): {"a": 2.0, "b": 1.0}})
    found.there["s", 0] = {"a", "b"}
    # Client a was scaled by 1 instead of 2: a quarter of its errors counts.
    found.errors["s", 0, ALL, Case("both")] = errors("ab", [1, 1], [4, 8], [1, 1])
    found.errors["s", 0, ALL, Case("none")] = errors("ab", [2, 1], [2, 2], [2, 1])
    change = found.change("s", window, Pair(Case("both"), Case("none")))
    assert change is not None
    assert (change.mse, change.base) == ((1.5 + 1) / 2, (2 + 1.5) / 2)
    assert change.better == 1.0 and (change.clients, change.days) == (2, 2)
    assert change.percent == pytest.approx(100 * (2.5 / 3.5 - 1)) and not change.significant
    assert cell(change) == "(-28.6 %)" and cell(None) == "–"
    assert found.change("s", window, Pair(Case("x"), Case("none"))) is None
    [new] = newcomers("ab", 0.5, 0)
    assert found.who("s", 0, new=True) == (new,)
    found.there["s", 0] -= {new}
    assert found.who("s", 0, new=True) == () and found.lost == 1


def test_a_conclusion_names_the_best_and_the_worst_place() -> None:
    rows = {
        "one": {"x": Change(0.9, 1.0, 0.8, 9, 0.01, 7, 0.02)},
        "two": {"x": Change(1.1, 1.0, 0.2, 9, 0.01, 7, 0.2)},
    }
    assert conclusion("both sums", rows) == (
        "With both sums the MSE is lower in 1 of 2 comparisons, significantly in 1, and higher in"
        " 1, significantly in 0. Best: -10.0 % (one; lower for 80 % of the clients, p = 0.010 over"
        " 9 clients, p = 0.020 over 7 days). Worst: +10.0 % (two)."
    )


def test_windows_carry_their_dates(panel: Path) -> None:
    dataset = Store().dataset(settings_of(panel, NOTHING))
    assert Window.of(dataset, 0, 6).name == "16-21 Nov"
    assert Window.of(dataset, 5, 6).name == "21 Nov"
    assert Window.of(dataset, 0, 16).name == "16 Nov-1 Dec"


def test_newcomers_do_not_look_back_further_than_a_period() -> None:
    assert within_a_period("1-3/1p-1,1p,1p+1,2p/7p", 24) == "3,2,1/24,23"


def test_a_table_asks_only_for_the_mixtures_it_needs() -> None:
    plan = Plan(("history",), (3,), 0.5, (1, 6), (4.0,), ("solo",), (ALL,))
    assert plan.histories == [ALL, 3] and len(plan.cases(3)) == len(plan.cases(ALL)) == 4
    plan = replace(plan, tables=("horizon", "noise", "methods"))
    names = {case.name for case in plan.cases(ALL)}
    assert plan.histories == [ALL] and "both sums shared, noise 4" in names
    assert {"nothing shared, 6 steps ahead", "nothing shared, with solo"} <= names
    assert Group("s", 0, 3, 9, "", "", 24).name == "history of 3"


# -- the command -------------------------------------------------------------------------------


def test_federation_writes_tables_with_conclusions_and_resumes(
    fuels: Fuels, panel: Path, tmp_path: Path
) -> None:
    words = [
        "experiment",
        "federation",
        "--data",
        str(panel),
        "--split",
        "15/3/3",
        "--threads",
        "1",
    ]
    words += ["--rounds", "1", "--set", "model.hidden=4", "--option", "methods=fuels"]
    words += ["--option", "days=3", "--option", "horizons=6", "--option", "noise=4"]
    code, _, err = fuels(*words)
    assert code == 0, err
    folder = tmp_path / "runs" / "experiments" / "federation"
    page = (folder / "federation.md").read_text()
    for name in ("sums", "history", "horizon", "noise", "methods"):
        assert (folder / f"federation-{name}.csv").is_file()
    assert page.count("With both sums the MSE is lower in") == 3
    assert "| city, 16-18 Nov |" in page and "and both sums and any model" not in page
    assert (folder / "federation.png").stat().st_size > 300
    with (folder / "federation-changes.csv").open() as file:
        changes = {(row["table"], row["row"], row["column"]): row for row in csv.DictReader(file)}
    whole = changes["sums", "city, 16-18 Nov", "both sums"]
    assert whole["clients"] == "12" and whole["days"] == "3"
    assert changes["history", "city, 16-18 Nov", "3 days"]["clients"] == "6"
    assert changes["methods", "FUELS and both sums", "city, 19-21 Nov"]["days"] == "3"
    # Without noise, one step ahead, the tables agree.
    for table, column in (("horizon", "1 step"), ("noise", "0")):
        assert changes[table, "city, 16-18 Nov", column]["MSE with"] == whole["MSE with"]

    code, _, err = fuels(*words)
    assert code == 0 and err.count("(already done)") == 2 + 16  # runs and mixtures
    assert (folder / "federation.md").read_text() == page


@pytest.mark.parametrize(
    ("option", "match"),
    [
        ("days=2.5", "whole numbers of at least 1"),
        ("share=1", "one number between 0 and 1"),
        ("days=300", "a history of 300 is longer than the 40 periods of training"),
        ("noise=-1", "noise takes numbers of at least 0"),
        ("tables=summs", "unknown summs; did you mean sums"),
        ("methods=fedx", "fedx"),
        ("method-days=0", "takes whole numbers of at least 1, or all"),
    ],
)
def test_wrong_options_are_one_sentence(fuels: Fuels, option: str, match: str) -> None:
    code, _, err = fuels("experiment", "federation", "--clients", "4", "--option", option)
    assert code == 1 and match in " ".join(err.split()) and "Traceback" not in err
