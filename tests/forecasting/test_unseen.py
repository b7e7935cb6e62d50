"""`fuels forecast` for clients that the run has never seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fuels.config import PRESETS, Engine, Settings, merge
from fuels.data.panel import Panel
from fuels.data.synthetic import synthesise
from fuels.data.writers import write_panel
from fuels.forecasting.saved_run import SavedRun
from fuels.runs.run import run
from fuels.storage.run_folder import RunFolder

DAYS, NEW = 24, 72  # the newest steps are in another file


@pytest.fixture(scope="module")
def panel() -> Panel:
    return synthesise("net", clients=13, days=DAYS, seed=5)


@pytest.fixture(scope="module")
def folder(panel: Panel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of all clients but the last one, on all data but the newest."""
    folder = tmp_path_factory.mktemp("unseen")
    known = panel.take(np.arange(12))
    old = replace(known, values=known.values[:-NEW], coordinates=None)
    write_panel(old, folder / "old.parquet")
    settings = merge(Settings(), {"preset": "best", **PRESETS["best"]}, "preset")
    changes = {
        "data": {"source": str(folder / "old.parquet")},
        "windows": {"split": "18/0/3"},
        "model": {"hidden": 4},
        "training": {"rounds": 1},
    }
    settings = merge(settings, changes, "test")
    run(settings, Engine(threads=1), RunFolder(folder / "run"), plots=False)
    return folder


def newest(panel: Panel, hours: int = NEW) -> Panel:
    """The newest steps; of the last client only some hours."""
    values = panel.values[-NEW:].copy()
    values[: NEW - hours, -1] = np.nan
    return replace(panel, values=values, start=panel.times[-NEW], coordinates=None)


def forecast(folder: Path, panel: Panel) -> tuple[dict[str, np.ndarray], list[str]]:
    saved = SavedRun.load(folder / "run", forget=True)
    made, notes = saved.forecast(panel, 2)
    assert made.lower is not None and made.upper is not None
    assert (made.lower[0] <= made.upper[0]).all()
    return dict(zip(made.ids, made.values, strict=True)), notes


def test_three_days_are_enough(folder: Path, panel: Panel) -> None:
    stranger = panel.ids[-1]
    made, notes = forecast(folder, newest(panel))
    assert set(made) == set(panel.ids)
    assert any(stranger in note and "without a model" in note for note in notes)
    values = panel.values[-NEW:, -1]
    assert np.isfinite(made[stranger]).all()
    assert values.min() - values.std() < made[stranger][0] < values.max() + values.std()


def test_fewer_days_are_not(folder: Path, panel: Panel) -> None:
    made, notes = forecast(folder, newest(panel, NEW - 1))
    assert set(made) == set(panel.ids[:-1])
    assert not any("without a model" in note for note in notes)


def test_the_others_matter_to_a_client_without_a_model(folder: Path, panel: Panel) -> None:
    """Its forecast uses the live mean, and the others' forecasts do not depend on it."""
    made, _ = forecast(folder, newest(panel))
    higher = newest(panel)
    higher.values[-1, :-1] += 2 * panel.values[:, :-1].std(axis=0)
    other, _ = forecast(folder, higher)
    assert made[panel.ids[-1]][0] != other[panel.ids[-1]][0]
    without, _ = forecast(folder, newest(panel, 1))
    for client in panel.ids[:-1]:
        np.testing.assert_array_equal(made[client], without[client])


def test_the_command_prints_its_forecast(fuels, folder: Path, panel: Panel) -> None:  # type: ignore[no-untyped-def]
    write_panel(newest(panel), Path("new.parquet"))
    code, out, err = fuels("forecast", str(folder / "run"), "--data", "new.parquet", "--forget")
    assert code == 0, err
    assert panel.ids[-1] in set(pl.read_csv(out.encode())["client"].cast(pl.String))
    assert "no model" not in err
