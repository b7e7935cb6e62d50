"""Forecasts of a run that receives the live mean from a federation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fuels.config import PRESETS, Engine, Settings, merge
from fuels.data.panel import Panel
from fuels.data.synthetic import synthesise
from fuels.data.writers import write_panel
from fuels.forecasting.contributions import LiveClients
from fuels.forecasting.saved_run import SavedRun
from fuels.runs.run import run
from fuels.sharing.received import FILE, ReceivedMean
from fuels.storage.run_folder import RunFolder

NEW = 6  # newest steps, in another file


@pytest.fixture(scope="module")
def panel() -> Panel:
    return replace(synthesise("net", clients=12, days=21, seed=5), coordinates=None)


@pytest.fixture(scope="module")
def finished(panel: Panel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("received")
    write_panel(replace(panel, values=panel.values[:-NEW]), folder / "old.parquet")
    settings = merge(Settings(), {"preset": "best", **PRESETS["best"]}, "preset")
    changes = {
        "data": {"source": str(folder / "old.parquet")},
        "windows": {"split": "16/0/4"},
        "model": {"hidden": 4},
        "training": {"rounds": 1},
    }
    run(merge(settings, changes, "test"), Engine(threads=1), RunFolder(folder / "run"), plots=False)
    return folder / "run"


@pytest.fixture(autouse=True)
def without_mean(finished: Path) -> None:
    (finished / FILE).unlink(missing_ok=True)


def newest(panel: Panel, steps: int = NEW) -> Panel:
    return replace(panel, values=panel.values[-steps:], start=panel.times[-steps])


def forecast(folder: Path, new: Panel, wait: float = 0.0) -> tuple[np.ndarray, list[str]]:
    made, notes = SavedRun.load(folder, forget=True).forecast(new, wait=wait)
    return made.values[:, 0], notes


def receive(folder: Path, without: int = 0) -> None:
    """All sums of the clients' values, except those of the newest steps."""
    clients = LiveClients(folder)
    panel = clients.panel
    found = ReceivedMean.begin(clients.ids, panel.start + panel.standard_offset, panel.step)
    for time in panel.times[: panel.length - without]:
        values, local = clients.at(time), time + panel.standard_offset
        count = np.array([float((~np.isnan(values)).sum())])
        total = np.array([np.nansum(values)])
        found = found.contributed(local, values).with_sums(local, total, count)
    found.save(folder / FILE)


def test_received_sums_give_the_forecasts_of_computed_ones(finished: Path, panel: Panel) -> None:
    computed, _ = forecast(finished, newest(panel))
    receive(finished)
    received, _ = forecast(finished, newest(panel))
    assert np.allclose(received, computed, rtol=1e-5)


def test_without_the_newest_sum_there_are_other_forecasts(finished: Path, panel: Panel) -> None:
    computed, _ = forecast(finished, newest(panel))
    receive(finished, without=1)
    others, notes = forecast(finished, newest(panel))
    assert np.isfinite(others).all()
    assert not np.allclose(others, computed, rtol=1e-4)
    assert not any("live mean" in note for note in notes)
    others, notes = forecast(finished, newest(panel), wait=0.2)
    assert any("did not arrive within 0.2 s" in note for note in notes)


def test_a_wait_ends_when_the_sum_is_there(finished: Path, panel: Panel) -> None:
    forecast(finished, newest(panel))
    receive(finished)
    _, notes = forecast(finished, newest(panel), wait=600.0)
    assert not any("did not arrive" in note for note in notes)


def test_a_damaged_file_costs_only_the_live_mean(finished: Path, panel: Panel) -> None:
    (finished / FILE).write_bytes(b"damaged")
    values, notes = forecast(finished, newest(panel))
    assert np.isfinite(values).all()
    assert any("do not use the live mean" in note for note in notes)


def test_implausible_and_missing_values_are_not_contributed(finished: Path, panel: Panel) -> None:
    new = newest(panel)
    values = new.values.copy()
    values[-1, 0], values[-1, 1] = 1e9, np.nan
    forecast(finished, replace(new, values=values))
    clients = LiveClients(finished)
    assert clients.newest() == panel.times[-1]
    assert np.flatnonzero(np.isnan(clients.at(panel.times[-1]))).tolist() == [0, 1]
    assert np.abs(clients.at(panel.times[-1])[2:]).max() <= 4.0
    assert np.isnan(clients.at(panel.times[-1] + panel.step)).all()
