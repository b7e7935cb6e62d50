"""FUELS on real traffic: a small version of the run that the README reports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fuels.config import Settings, merge
from fuels.evaluation.references import references
from fuels.evaluation.scores import score
from fuels.runs.build import load_dataset
from helpers.commands import Fuels

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "milan.py"


def milan(real_data: Path, **changes: object) -> Settings:
    source = str(real_data / "milan_net_441cells_hourly.npz")
    settings = merge(Settings(), {"data": {"source": source}}, "test")
    return merge(settings, changes, "test")


def test_all_cells_but_one_take_part(real_data: Path) -> None:
    dataset = load_dataset(milan(real_data))
    assert len(dataset.ids) == 440 and list(dataset.left_out) == ["4570"]
    assert (dataset.split.train, dataset.split.val, dataset.split.test) == (960, 1224, 1487)


def test_the_drawn_cells_and_days(real_data: Path) -> None:
    settings = milan(real_data, data={"clients": 100}, windows={"split": "40/0/11"})
    dataset = load_dataset(settings)
    live = np.array(load_dataset(milan(real_data)).ids)
    expected = np.random.default_rng(0).choice(live, 100, replace=False)
    assert dataset.ids == tuple(sorted(expected))
    times = dataset.times("test")
    assert str(times[0]) == "2013-12-11T00:00:00" and str(times[-1]) == "2013-12-21T23:00:00"


def test_references_as_measured(real_data: Path) -> None:
    settings = milan(real_data, data={"clients": 100}, windows={"split": "40/0/11"})
    dataset = load_dataset(settings)
    mse = {
        name: score(dataset, "test", forecast).mse.mean()
        for name, forecast in references(dataset, "test").items()
    }
    assert mse == pytest.approx(
        {
            "last value": 0.1061,
            "one period ago": 0.2384,
            "one week ago": 0.1739,
            "ridge": 0.0618,
            "ridge + time of period": 0.0499,
        },
        abs=1e-4,
    )


def test_fuels_beats_what_sees_the_same(real_data: Path, fuels: Fuels) -> None:
    """A small version of what the README reports; benchmarks/milan.py does all of it."""
    data = str(real_data / "milan_net_441cells_hourly.npz")
    size = "--clients 30 --split 40/0/11 --rounds 20 --seed 0 --preset paper"
    code, out, err = fuels("run", "--data", data, *size.split(), "--out", "r", "--no-plots")
    assert code == 0, err
    summary = json.loads(Path("r/summary.json").read_text())
    mse = {name: scores["mse"] for name, scores in summary["scores"].items()}
    assert all(name in out for name in mse)
    # After 20 rounds FUELS is at 0.0587, ahead of all that see what it sees (ridge: 0.0609).
    assert mse["FUELS"] < min(0.0600, mse["ridge"], mse["last value"])
    assert summary["per_client_and_round"]["numbers_up"] == 6144


@pytest.mark.nightly
@pytest.mark.parametrize("preset", ["paper", "best"])
def test_eighty_rounds_reach_the_bound(real_data: Path, preset: str) -> None:
    """MSE at most 0.056 and below the references, through the command as users call it."""
    data = real_data / "milan_net_441cells_hourly.npz"
    command = [sys.executable, BENCHMARK, data, "--rounds", "80", "--presets", preset]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("| holds |")
