"""FUELS on real traffic: a small version of the run that the README reports."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from conftest import Fuels
from fuels.build import load_dataset
from fuels.config import Settings, merge


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


def test_fuels_beats_what_sees_the_same(real_data: Path, fuels: Fuels) -> None:
    """The run that the README reports, a quarter as long: benchmarks/milan.py does all of it."""
    data = str(real_data / "milan_net_441cells_hourly.npz")
    size = "--clients 100 --split 40/0/11 --rounds 20 --seed 0 --preset paper"
    code, out, err = fuels("run", "--data", data, *size.split(), "--out", "r", "--no-plots")
    assert code == 0, err
    summary = json.loads(Path("r/summary.json").read_text())
    mse = {name: scores["mse"] for name, scores in summary["scores"].items()}
    assert all(name in out for name in mse)
    # The references as measured on these 100 cells and days.
    assert mse["last value"] == pytest.approx(0.1061, abs=1e-4)
    assert mse["one period ago"] == pytest.approx(0.2384, abs=1e-4)
    assert mse["one week ago"] == pytest.approx(0.1739, abs=1e-4)
    assert mse["ridge"] == pytest.approx(0.0618, abs=1e-4)
    assert mse["ridge + time of period"] == pytest.approx(0.0499, abs=1e-4)
    # After 20 of 80 rounds FUELS is at 0.0597, ahead of all that see what it sees.
    assert mse["FUELS"] < min(0.061, mse["ridge"], mse["last value"])
    assert summary["per_client_and_round"]["numbers_up"] == 6144
