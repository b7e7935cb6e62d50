"""Past forecasts in a run folder: which count, how many are kept, damage, full disks."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fuels.experts.personal_model import Forecast
from fuels.forecasting import issued
from fuels.forecasting.folder import LEARNED
from fuels.forecasting.issued import KEPT, NAMES, read_issued, record
from fuels.forecasting.saved_run import SavedRun
from helpers.live import NOW, copied, follow, hours, whole_panel

HOUR = np.timedelta64(3600, "s")
START = np.datetime64("2024-01-01T00:00:00", "s")


def run_in(folder: Path) -> SavedRun:
    """As much of a run as recording needs."""
    models: Any = SimpleNamespace(step_seconds=3600, period=24)
    return SavedRun(folder, None, None, models, None)  # type: ignore[arg-type]


def forecast(step: int, value: float, ids: tuple[str, ...] = ("a", "b"), h: int = 2) -> Forecast:
    """Made when the values of `step` hours were known."""
    values = np.full((len(ids), h), value)
    band = np.stack([values])
    times = START + (step + np.arange(1, h + 1)) * HOUR
    return Forecast(ids, times, values, None, (), (80.0,), band - 1, band + 1)


def test_the_newest_forecast_of_a_step_counts(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    record(run, forecast(3, 1.0), now=100)
    record(run, forecast(4, 2.0), now=200)
    record(run, forecast(3, 5.0, ids=("c", "b"), h=3), now=300)
    found = read_issued(tmp_path)
    assert found is not None and found.ids == ("a", "b", "c") and found.horizon == 3
    assert found.cutoffs.tolist() == (START + np.array([3, 4]) * HOUR).tolist()
    assert found.issued.tolist() == [300, 200]
    nan = np.nan
    np.testing.assert_array_equal(found.made[0, 0], [[1, 1, nan], [5, 5, 5], [5, 5, 5]])
    np.testing.assert_array_equal(found.made[1, 2], [[3, 3, nan], [3, 3, nan], [nan, nan, nan]])


def test_old_files_are_deleted(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    for day in range(KEPT + 3):
        record(run, forecast(24 * day + 5, day), now=day)
    assert len(list((tmp_path / "live").glob(NAMES))) == KEPT
    found = read_issued(tmp_path)
    assert found is not None and found.made[:, 0, 0, 0].tolist() == [*range(3, KEPT + 3)]


def test_damage_costs_one_file_and_is_reported(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    record(run, forecast(3, 1.0), now=100)
    (path,) = (tmp_path / "live").glob(NAMES)
    path.write_bytes(path.read_bytes()[:-3])
    record(run, forecast(4, 2.0), now=200)
    assert "fuels monitor will lack the forecasts in it" in run.notes[0]
    found = read_issued(tmp_path)
    assert found is not None and found.issued.tolist() == [200]


def test_a_full_disk_is_reported_and_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_in(tmp_path)
    record(run, forecast(3, 1.0), now=100)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(issued, "replace_state", full)
    record(run, forecast(4, 2.0), now=200)
    assert "fuels monitor will lack this forecast" in run.unsaved
    found = read_issued(tmp_path)
    assert found is not None and found.issued.tolist() == [100]


def test_what_is_learned_does_not_depend_on_recording(small_run: Path, tmp_path: Path) -> None:
    one, many = copied(small_run, tmp_path / "one"), copied(small_run, tmp_path / "many")
    panel = whole_panel()
    SavedRun.load(one).forecast(hours(panel, NOW, NOW + 5))
    follow(many, panel, NOW, NOW + 5)  # one loaded run for all hours, forecasts recorded
    for name in (LEARNED, "live/values.safetensors"):
        assert (one / name).read_bytes() == (many / name).read_bytes(), name
    found = read_issued(many)
    assert found is not None and len(found.cutoffs) == 5 and read_issued(one) is None
