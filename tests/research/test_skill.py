"""The experiment skill, and what it is made of: records, newcomers, pooled data."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.config import PRESETS, Engine, Settings, merge
from fuels.data.newcomers import newcomers, shorten_histories
from fuels.data.writers import write_panel
from fuels.errors import FuelsError
from fuels.experts.history import history_of
from fuels.methods.registry import METHODS, find_method
from fuels.research.experiments import boosting, skill
from fuels.research.experiments.base import Context
from fuels.research.study.record import Record
from fuels.research.study.store import Store, ensure_run, run_key
from fuels.runs.build import load_dataset
from helpers.commands import Fuels
from helpers.panels import make_panel
from helpers.records import record

needs_lightgbm = pytest.mark.skipif(
    importlib.util.find_spec("lightgbm") is None, reason="LightGBM is not installed"
)
TINY = ["--rounds", "2", "--set", "model.hidden=4", "--threads", "1"]
TINY += ["--set", "options.warm_epochs=2", "--set", "options.week=2"]


def settings_of(**changes: Any) -> Settings:
    base = {"windows": {"split": "14/0/4", "closeness": 3, "periodicity": 1}}
    return merge(merge(Settings(), base, "test"), changes, "test")


def rows_of(path: Path) -> dict[str, list[str]]:
    with path.open() as file:
        return {row[0]: row[1:] for row in csv.reader(file)}


# -- records -----------------------------------------------------------------------------------


def test_a_record_keeps_the_means_of_its_mixture(tmp_path: Path) -> None:
    write_panel(make_panel(clients=2, days=18), tmp_path / "panel.npz")
    changes = {
        "data": {"source": str(tmp_path / "panel.npz")},
        "windows": {"target": "change"},
        "mixture": {"on": True},
        "training": {"rounds": 1},
        "model": {"hidden": 4},
    }
    store = Store(tmp_path / "store")
    made = ensure_run(settings_of(**changes), Engine(threads=1), store).record
    found = Record.read(tmp_path / "store" / f"{made.key}.json")
    assert "FUELS model alone" in found.mse and "FUELS model alone" not in found.references
    mixture = found.mixture
    assert mixture["experts"]["FUELS model"]["mse"] == pytest.approx(
        np.mean(found.mse["FUELS model alone"]), rel=1e-4
    )
    assert mixture["experts"]["last value"]["mse"] == pytest.approx(
        np.mean(found.mse["last value"]), rel=1e-4
    )
    assert 0 <= mixture["model_led"] <= 1 and list(mixture["intervals"]) == ["80", "95"]
    assert mixture["intervals"]["80"]["width"] < mixture["intervals"]["95"]["width"]


def test_a_record_without_a_mixture_is_as_it_was_before(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record("fuels", 0, [1.0, 2.0]).write(path)
    assert "mixture" not in json.loads(path.read_text())
    assert Record.read(path).mixture == {}


# -- newcomers ---------------------------------------------------------------------------------


def test_newcomers_know_the_end_of_training_and_the_others_all_of_it() -> None:
    panel = make_panel(clients=4, days=18)
    settings = settings_of(data={"newcomers": "0.5@3"})
    whole, dataset = load_dataset(settings_of(), panel), load_dataset(settings, panel)
    new = newcomers(whole.ids, 0.5, 0)
    assert len(new) == 2 and dataset.ids == whole.ids and not dataset.left_out
    first = (14 - 3) * 24
    for i, client in enumerate(dataset.ids):
        known = np.flatnonzero(dataset.observed[i])
        assert known[0] == (first if client in new else 0)
        expected = panel.values[first if client in new else 0 : 14 * 24, i]
        assert dataset.mean[i] == pytest.approx(expected.mean())
        assert dataset.std[i] == pytest.approx(expected.std())
        # Windows look back one period: two of the three periods can be learned from.
        learned = dataset.target[i, : 14 * 24].sum()
        assert learned == (2 * 24 if client in new else 13 * 24)
        np.testing.assert_array_equal(dataset.observed[i, 14 * 24 :], whole.observed[i, 14 * 24 :])
    # The values decide the key, so the history of the newcomers does; all of it is the plain run.
    assert run_key(settings, dataset) != run_key(settings_of(), whole)
    longest = settings_of(data={"newcomers": "0.5@14"})
    assert run_key(longest, load_dataset(longest, panel)) == run_key(settings_of(), whole)


def test_who_is_new_is_drawn_by_the_seed_and_never_all() -> None:
    ids = tuple("abcdefgh")
    assert newcomers(ids, 0.5, 1) == newcomers(ids, 0.5, 1) != newcomers(ids, 0.5, 2)
    assert len(newcomers(ids, 0.01, 0)) == 1 and len(newcomers(ids, 0.99, 0)) == 7


@pytest.mark.parametrize("text", ["0.5", "0.5@0", "1@3", "x@3", "0.5@2.5", "0@3"])
def test_newcomers_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(FuelsError, match=r"data\.newcomers must be SHARE@PERIODS"):
        shorten_histories(load_dataset(settings_of(), make_panel(days=18)), text, 0)


def test_windows_that_leave_nothing_to_learn_are_refused() -> None:
    with pytest.raises(FuelsError, match="1 periods are too few for windows that look back 1"):
        load_dataset(settings_of(data={"newcomers": "0.5@1"}), make_panel(days=18))


# -- pooled data -------------------------------------------------------------------------------


@needs_lightgbm
def test_a_pooled_model_learns_and_never_looks_ahead() -> None:
    panel = make_panel(clients=3, days=30)
    dataset = load_dataset(settings_of(windows={"split": "22/3/5"}), panel)
    found = boosting.evaluate_pooled(dataset, (80.0, 95.0), threads=1)
    naive = history_of(dataset).lagged(*dataset.split.part("test"), 1)
    first, last = dataset.split.part("test")
    last_value = float(np.mean((dataset.series[:, first:last] - naive) ** 2))
    assert found.alone.means()["mse"] < 0.5 * last_value
    assert found.mixed.means()["mse"] < 0.5 * last_value
    assert boosting.TITLE in found.mixture.names

    # Values from the middle of the test part on change no forecast of an earlier step.
    history, middle = history_of(dataset), (first + last) // 2
    table = boosting.Samples(history, dataset.calendar, boosting.lags_of(dataset, history))
    model = boosting.fit(table, dataset.split.train, {**boosting.PARAMETERS, "num_threads": 1})
    values = panel.values.copy()
    values[middle:] += 100
    changed = history_of(replace(dataset, panel=replace(panel, values=values)))
    other = boosting.Samples(changed, dataset.calendar, table.lags)
    before, after = (model.forecasts(t, first, last) for t in (table, other))
    np.testing.assert_array_equal(before[:, : middle + 1 - first], after[:, : middle + 1 - first])
    assert not np.array_equal(before, after)


@needs_lightgbm
def test_what_a_pooled_model_sees_by_hand() -> None:
    dataset = load_dataset(settings_of(), make_panel(clients=2, days=18))
    history = history_of(dataset)
    table = boosting.Samples(history, dataset.calendar, (24,))
    step = 5 * 24 + 7  # a Saturday, 07:00
    [first, second] = table.inputs(step, step + 1, change=True)
    newest, day_ago = history.observed[1, step - 1], history.observed[1, step - 24]
    assert second.tolist() == pytest.approx([newest, day_ago - newest, 7, 5, 1, 1])
    assert first[-1] == 0
    target = table.targets(step, step + 1, change=True)[1]
    assert target == pytest.approx(history.observed[1, step] - newest)


# -- skill -------------------------------------------------------------------------------------


def context_of(path: Path, **changes: Mapping[str, Any]) -> Context:
    return Context(sources=("synthetic:net",), clients=4, rounds=50, out=path, changes=changes)


def test_a_preset_keeps_its_rounds_and_the_command_stands_above_it(tmp_path: Path) -> None:
    usual = PRESETS["best"]["training"]["rounds"]
    best = skill.preset_changes(context_of(tmp_path), "best")
    assert best["training"]["rounds"] == min(50, usual) and best["mixture"]["on"]
    few = replace(context_of(tmp_path), rounds=usual - 1)
    assert skill.preset_changes(few, "best")["training"]["rounds"] == usual - 1
    assert skill.preset_changes(context_of(tmp_path), "paper")["training"]["rounds"] == 50
    own = context_of(tmp_path, training={"learning_rate": "0.01"}, windows={"split": "40/0/11"})
    changed = skill.preset_changes(own, "best")
    assert changed["training"]["learning_rate"] == "0.01" and changed["windows"]["lags"]
    assert changed["windows"]["split"] == "40/0/11"
    # FedDA trains with SGD: a learning rate for Adam is not for it.
    fedda = skill.preset_changes(context_of(tmp_path), "best", "fedda")
    assert "learning_rate" not in fedda["training"]


def test_skill_writes_tables_a_figure_and_who_wins(
    fuels: Fuels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_panel(make_panel(clients=3, days=22), tmp_path / "panel.npz")
    words = ["experiment", "skill", "--data", str(tmp_path / "panel.npz"), "--clients", "3", *TINY]
    code, out, err = fuels(*words)
    assert code == 0, err
    folder = tmp_path / "runs" / "experiments" / "skill"
    rows, experts = rows_of(folder / "skill.csv"), rows_of(folder / "skill-experts.csv")
    assert (folder / "skill.png").stat().st_size > 300
    assert {skill.PAPER, skill.BEST, skill.ALONE, skill.EXPERT, "last value"} <= rows.keys()
    assert {f"{find_method(name).title}, preset best" for name in METHODS} <= rows.keys()
    header = rows["forecast"]
    covered, led = header.index("in 80 % (% covered)"), header.index("model led (% of steps)")
    assert 50 < float(rows[skill.BEST][covered]) <= 100 and rows[skill.PAPER][covered] == ""
    assert 0 <= float(rows[skill.BEST][led]) <= 100
    lowest = min(
        float(row[0]) for name, row in experts.items() if name not in ("expert", skill.BEST)
    )
    assert float(rows[skill.EXPERT][0]) == lowest
    page = (folder / "skill.md").read_text()
    assert "the lowest MSE is that of" in page and "the neural expert had the largest" in page
    assert "than that of Solo, preset best (nothing shared), and lower for" in page
    simple = ("last value", "one period ago", "one week ago", "ridge", "ridge + time of period")
    lowest = min(float(rows[name][0]) for name in simple)
    assert ("is below every reference" in page) == (float(rows[skill.BEST][0]) < lowest)
    assert (boosting.TITLE in rows) == boosting.installed()

    monkeypatch.setattr(boosting, "installed", lambda: False)
    code, out, err = fuels(*words)
    assert code == 0 and "LightGBM is not installed" in out, err
    assert boosting.TITLE not in rows_of(folder / "skill.csv")


def test_a_record_without_its_mixture_is_named() -> None:
    with pytest.raises(FuelsError, match="run fuels0 has no results of its mixture"):
        skill.mixture_of(record("fuels", 0, [1.0]))
