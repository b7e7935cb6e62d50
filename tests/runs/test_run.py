"""Whole runs: the folder they leave, equal results for equal settings, resuming after a kill."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fuels.config import Engine, Settings
from fuels.data.panel import Panel
from fuels.data.sample import Sample, paper_branches
from fuels.model.network import build_network
from fuels.report.facts import facts
from fuels.runs.build import build
from fuels.runs.settings import resolve
from fuels.storage.checkpoint import load_state, save_state
from fuels.storage.config_file import read_config
from fuels.storage.models import load_models
from fuels.storage.run_folder import RunFolder
from helpers.panels import make_panel
from helpers.runs import do_run, results, small

BOTH = pytest.mark.parametrize("preset", ["paper", "best"])


def test_the_run_folder_is_complete(tmp_path: Path, panel: Panel) -> None:
    outcome = do_run(tmp_path / "r", small(), panel)
    folder = tmp_path / "r"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rounds"] == 4 and summary["data"]["clients"] == 5
    assert set(summary["scores"]) >= {"FUELS", "last value", "ridge", "one period ago"}
    assert [line["round"] for line in outcome.history] == [1, 2, 3, 4]
    assert not (folder / "checkpoint.safetensors").exists()
    frame = pl.read_parquet(folder / "forecasts.parquet")
    assert frame.columns == ["client", "time", "actual", "forecast"]
    assert len(frame) == 5 * 3 * 24
    column = frame.filter(pl.col("client") == "c2")["actual"].to_numpy()
    np.testing.assert_allclose(column, panel.values[9 * 24 :, 2], rtol=1e-5)
    assert not (folder / "weights.parquet").exists()  # of experts, and here are none
    settings, _ = read_config(folder / "config.toml")
    assert resolve(settings) == resolve(small())


def test_summary_counts_what_the_paper_counts(tmp_path: Path) -> None:
    outcome = do_run(
        tmp_path / "r",
        Settings(training=replace(small().training, rounds=2)),
        make_panel(clients=4),
    )
    sent = outcome.summary["per_client_and_round"]
    assert sent["numbers_up"] == 6144
    assert sent["bytes_up"] == 4 * 6144
    assert sent["numbers_down"] == 2 * 6144
    assert outcome.summary["parameters_per_client"] == 100865


@BOTH
@pytest.mark.parametrize("method", ["fuels", "fedavg", "solo"])
def test_same_seed_same_bytes(tmp_path: Path, panel: Panel, method: str, preset: str) -> None:
    for name in "ab":
        do_run(tmp_path / name, small(preset, method=method), panel)
    assert results(tmp_path / "a") == results(tmp_path / "b")
    do_run(tmp_path / "c", small(preset, method=method, seed=1), panel)
    same = results(tmp_path / "a").items() & results(tmp_path / "c").items()
    assert {name for name, _ in same} <= {"server.safetensors"}  # Solo has nothing on a server


@BOTH
def test_threads_and_client_order_change_nothing(tmp_path: Path, preset: str) -> None:
    panel, settings = make_panel(clients=19), small(preset)
    do_run(tmp_path / "one", settings, panel, threads=1)
    do_run(tmp_path / "two", settings, panel, threads=2)
    do_run(tmp_path / "five", settings, panel, threads=5)
    do_run(tmp_path / "shuffled", settings, panel.take(np.random.default_rng(1).permutation(19)))
    for name in ("two", "five", "shuffled"):
        assert results(tmp_path / name) == results(tmp_path / "one")


@pytest.mark.parametrize("method", ["fuels", "fedavg"])
def test_selection_trains_a_share(tmp_path: Path, method: str) -> None:
    settings = small(method=method, training={"selection": 0.5})
    outcome = do_run(tmp_path / "r", settings, make_panel(clients=6))
    assert [line["clients"] for line in outcome.history] == [6, 3, 3, 3]


def test_late_joiners(tmp_path: Path) -> None:
    """Absent at first, they train in the round they join and get prototypes from the next one."""
    # A low percentile calls few alike, so that everybody has somebody unlike it.
    settings = small(training={"late": "0.5@3"}, options={"beta": 10})
    outcome = do_run(tmp_path / "r", settings, make_panel(clients=10))
    assert [line["clients"] for line in outcome.history] == [5, 5, 10, 10]
    down = [line["numbers_down"] for line in outcome.history]
    size = 2 * 24 * 8
    assert down[0] == 0 and down[2] == size / 2 and down[3] == size


@BOTH
@pytest.mark.parametrize("clients", [1, 2])
def test_too_few_clients_warn_once_and_go_on(tmp_path: Path, clients: int, preset: str) -> None:
    reason = "nothing to share" if clients == 1 else "no dissimilar client"
    with pytest.warns(UserWarning, match=reason) as seen:
        outcome = do_run(tmp_path / "r", small(preset), make_panel(clients=clients))
    assert len([w for w in seen if reason in str(w.message)]) == 1
    assert np.isfinite(outcome.summary["scores"]["FUELS"]["mse"])


@BOTH
def test_equal_clients_warn_and_go_on(tmp_path: Path, preset: str) -> None:
    panel = make_panel(clients=1)
    same = replace(panel, values=np.repeat(panel.values, 4, axis=1), ids=("a", "b", "c", "d"))
    with pytest.warns(UserWarning, match="no dissimilar client"):
        outcome = do_run(tmp_path / "r", small(preset), same)
    assert np.isfinite(outcome.summary["scores"]["FUELS"]["mse"])


def test_without_validation_the_last_model_is_kept(tmp_path: Path, panel: Panel) -> None:
    outcome = do_run(tmp_path / "r", small(windows={"split": "8/0/3"}), panel)
    assert outcome.summary["kept_model"] == "last"
    assert outcome.history[-1]["val_mse"] is None


SILENT = "the last one, because the validation part has no observed value with known inputs"
LATE = {"training": {"late": "0.5@9"}}  # after the last round


@pytest.mark.parametrize(
    ("method", "changes", "silent", "summary", "screen"),
    [
        ("fuels", {}, [], "best on the validation part", "the best one on the validation part"),
        ("fuels", {}, [0, 1, 2, 3], "last", SILENT),
        ("fedavg", {}, [0, 1, 2, 3], "last", SILENT),
        (
            "fuels",
            {},
            [2],
            "best on the validation part for 3 of 4 clients, last for 1 of 4 clients",
            f"the best one on the validation part, for 3 of 4 clients; {SILENT}, for 1 of 4",
        ),
        # One model for all: the best round is that of the mean error, whoever is in it.
        ("fedavg", {}, [2], "best on the validation part", "the best one on the validation part"),
        ("fedavg", LATE, [], "best on the validation part", "the best one on the validation part"),
        (
            "fuels",
            LATE,
            [],
            "best on the validation part for 2 of 4 clients, untrained for 2 of 4 clients",
            "the best one on the validation part, for 2 of 4 clients; the initial one,"
            " because they never trained, for 2 of 4 clients",
        ),
    ],
)
def test_the_screen_and_the_summary_name_the_model_that_was_kept(
    tmp_path: Path, method: str, changes: Any, silent: list[int], summary: str, screen: str
) -> None:
    """A validation part without an observed value is no better than none."""
    panel = make_panel(clients=4)
    panel.values[7 * 24 : 9 * 24, silent] = np.nan
    do_run(tmp_path / "r", small(method=method, **changes), panel)
    written = RunFolder(tmp_path / "r").read_summary()
    assert written["kept_model"] == summary
    assert facts(written)["Model kept"].startswith(screen)


def test_without_a_test_part_nothing_is_said_to_be_compared(tmp_path: Path, panel: Panel) -> None:
    said: list[str] = []

    def tell(words: str) -> AbstractContextManager[None]:
        said.append(words)
        return nullcontext()

    outcome = do_run(tmp_path / "r", small(windows={"split": "7/2/0"}), panel, announce=tell)
    assert said == []
    assert facts(outcome.summary)["No errors"].startswith("there is no test part")


def test_observed_values_without_known_inputs_are_not_called_unobserved(tmp_path: Path) -> None:
    """In the only day of the test part the days before it, which its inputs need, are missing."""
    panel = make_panel(clients=4)
    panel.values[7 * 24 : 11 * 24] = np.nan
    outcome = do_run(tmp_path / "r", small(windows={"split": "7/4/1"}), panel)
    assert not outcome.scores
    assert facts(outcome.summary)["No errors"] == (
        "the test part has no observed value with known inputs, so there is nothing to compare"
    )


def test_rounds_name_the_best_one_among_the_same_clients(tmp_path: Path) -> None:
    """As training does that stops when patience ends, and as a resumed display does."""
    settings = small(training={"rounds": 6, "late": "0.5@6"})
    outcome = do_run(tmp_path / "r", settings, make_panel(clients=6))
    assert [line["best_round"] for line in outcome.history][-1] == 6
    assert outcome.history[-1]["val_mse"] > min(line["val_mse"] for line in outcome.history)


def test_a_client_silent_in_validation_keeps_its_last_model(tmp_path: Path) -> None:
    panel = make_panel(clients=4)
    panel.values[7 * 24 : 9 * 24, 2] = np.nan
    do_run(tmp_path / "r", small(), panel)
    models = load_state(tmp_path / "r" / "models.safetensors")[0]["model/decoder"]
    start = build_network("gru", 4, Sample(paper_branches(24, 3, 3), 24)).initial(0)["decoder"]
    assert all(np.abs(row - start).max() > 1e-4 for row in models)


def test_late_joiners_do_not_fool_early_stopping(tmp_path: Path) -> None:
    """The mean error jumps when others join: that is no reason to stop."""
    settings = small(training={"rounds": 12, "patience": 2, "late": "0.5@6"})
    outcome = do_run(tmp_path / "r", settings, make_panel(clients=6))
    assert len(outcome.history) > 8


def test_early_stopping(tmp_path: Path, panel: Panel) -> None:
    settings = small(training={"rounds": 60, "patience": 2, "learning_rate": 0.3})
    outcome = do_run(tmp_path / "r", settings, panel)
    val = [line["val_mse"] for line in outcome.history]
    assert len(val) < 60 and min(val) == val[-3]


def test_warm_start_begins_where_the_other_ended(tmp_path: Path, panel: Panel) -> None:
    do_run(tmp_path / "first", small(training={"rounds": 30, "keep": "last"}), panel)
    cold = do_run(tmp_path / "cold", small(training={"rounds": 1}), panel)
    warm = do_run(
        tmp_path / "warm",
        small(training={"rounds": 1, "warm_start": str(tmp_path / "first")}),
        panel,
    )
    loss = "loss_prediction"
    assert warm.history[0][loss] < 0.7 * cold.history[0][loss]


def test_saved_models_know_their_head(tmp_path: Path, panel: Panel) -> None:
    settings = small(model={"head": "sum"})
    outcome = do_run(tmp_path / "run", settings, panel)
    folder = RunFolder(tmp_path / "run")
    models = load_models(folder.models)
    assert models.network.sizes == build_network("gru", 4, models.sample, "sum").sizes
    with build(settings, Engine(threads=1), panel) as job:
        again = job.site.forecast(models.parts, "test")
    np.testing.assert_array_equal(again, outcome.forecasts["FUELS"])
    assert read_config(folder.config)[0].model.head == "sum"
    # A folder from before there was a choice says nothing of it.
    do_run(tmp_path / "usual", small(training={"rounds": 1}), panel)
    usual = RunFolder(tmp_path / "usual")
    assert "head" not in usual.config.read_text()
    arrays, facts = load_state(usual.models)
    del facts["head"]
    save_state(usual.models, arrays, facts)
    assert load_models(usual.models).head == "concat"


def test_a_client_without_activity_in_the_test_part_is_noted(tmp_path: Path, panel: Panel) -> None:
    panel.values[9 * 24 :, 2] = 7.0
    with pytest.warns(UserWarning, match="^c2 takes part, but its errors say little"):
        do_run(tmp_path / "r", small(training={"rounds": 1}), panel)
