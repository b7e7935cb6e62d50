"""Forecasts every hour: what a run remembers, learns late, and survives."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.config import PRESETS, Engine, Settings, merge
from fuels.data.panel import Panel
from fuels.data.synthetic import synthesise
from fuels.experts.personal_model import OneChain, chains_by_name, forecast_chain
from fuels.forecasting import memory, saved_run, states
from fuels.forecasting.folder import LEARNED
from fuels.forecasting.saved_run import SavedRun
from fuels.forecasting.table import long_frame
from fuels.runs.run import run
from fuels.storage.checkpoint import load_state
from fuels.storage.run_folder import RunFolder
from helpers.commands import FUELS

DAYS, HOURS = 17, 28  # of the run's own data, and after them


@pytest.fixture(scope="module")
def panel() -> Panel:
    whole = synthesise("net", clients=10, days=DAYS + 32, seed=3)
    return replace(whole, values=np.round(whole.values, 2), coordinates=None)


@pytest.fixture(scope="module")
def made(panel: Panel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of preset best, with shared sums, on the first days; some last values are missing."""
    folder = tmp_path_factory.mktemp("hourly")
    settings = merge(Settings(), {"preset": "best", **PRESETS["best"]}, "preset")
    changes = {
        "windows": {"split": "12/0/5"},
        "model": {"hidden": 32},
        "training": {"rounds": 1},
    }
    settings = merge(settings, changes, "test")
    own = hours(panel, 0, DAYS * 24)
    own.values[-3:, 4] = np.nan
    run(settings, Engine(threads=1), RunFolder(folder / "run"), panel=own, plots=False)
    return folder / "run"


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def hours(panel: Panel, first: int, last: int, clients: slice = slice(None)) -> Panel:
    """Some steps of some clients."""
    values = panel.values[first:last, clients].copy()
    return replace(panel, values=values, ids=panel.ids[clients], start=panel.times[first])


def forecast(folder: Path, new: Panel | None, horizon: int = 1) -> np.ndarray:
    made, _ = SavedRun.load(folder).forecast(new, horizon)
    assert made.lower is not None and made.upper is not None
    return np.concatenate([made.values[None], made.lower, made.upper])


def state(folder: Path) -> dict[str, Any]:
    """Everything that was learned, and the values behind it."""
    arrays, facts = load_state(folder / LEARNED)
    values, more = load_state(folder / "live" / "values.safetensors")
    return {**arrays, **values, "facts": facts, "more": more}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def deliveries(panel: Panel, count: int) -> Iterator[Panel]:
    """Files as they arrive hour by hour: gaps, late, revised and repeated rows, single clients."""
    rng, start = np.random.default_rng(0), DAYS * 24
    late: dict[int, list[tuple[int, int]]] = {}  # by hour of arrival: step, client
    for hour in range(count):
        step = start + hour
        new = hours(panel, step - 2, step + 1)  # two hours repeated
        for client in np.flatnonzero(rng.random(len(panel.ids)) < 0.1):
            new.values[-1, client] = np.nan
            delay = int(rng.choice([1, 3, 13]))
            late.setdefault(hour + delay, []).append((step, int(client)))
        if hour % 10 != 3:  # now and then nothing arrives in time
            yield new
        for when, client in late.pop(hour, []):
            yield hours(panel, when, when + 1, slice(client, client + 1))
        if hour == 5:
            yield hours(panel, start - 3, start, slice(4, 5))  # the values that the run lacked
        if hour == 12:
            wrong = hours(panel, step - 5, step - 4, slice(2, 4))
            yield replace(wrong, values=wrong.values * 1.5)
        if hour == 20:  # corrected
            yield hours(panel, step - 13, step - 12, slice(2, 4))
    for place in sorted(late):  # what is still under way
        for when, client in late[place]:
            yield hours(panel, when, when + 1, slice(client, client + 1))
    yield hours(panel, start, start + count)  # and all of it once more


def test_hour_by_hour_equals_one_call(
    made: Path, panel: Panel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each of its writes may be the last thing that a call does."""
    one, many = (Path(shutil.copytree(made, tmp_path / name)) for name in ("one", "many"))
    expected = forecast(one, hours(panel, DAYS * 24 - 3, DAYS * 24 + HOURS))
    killed = 0
    for number, new in enumerate(deliveries(panel, HOURS)):
        if number % 4 == 1:  # die at one of the first three writes, then do it again
            with monkeypatch.context() as patched:
                die_at(number // 4 % 3, patched)
                try:
                    forecast(many, new)
                except Killed:
                    killed += 1
        found = forecast(many, new)
    assert killed > 5
    np.testing.assert_array_equal(found, expected)
    assert_same(state(many), state(one))
    for name in {path.name for path in (one / "live").glob("state-*")}:
        for left, right in zip(*(load_state(f / "live" / name) for f in (one, many)), strict=True):
            assert_same(left, right)
    longer = forecast(many, None, 3)  # other horizons too
    np.testing.assert_array_equal(longer, forecast(one, None, 3))
    np.testing.assert_array_equal(longer[:, :, :1], expected)


def test_a_forecast_does_not_depend_on_how_many_are_made(made: Path) -> None:
    """To the last bit, for every expert."""
    saved = SavedRun.load(made)
    ensemble = saved.ensemble
    assert ensemble is not None
    ensemble.block = saved_run.BLOCK
    history = ensemble.with_live_mean(saved.memory().history())
    first, last = history.length - 30, history.length
    many = ensemble.horizons[1].pool.forecasts(history, first, last)
    made_at_once = forecast_chain(ensemble.models, history, first, last, block=ensemble.block)
    many["model"] = next(made_at_once)
    assert len(many) > 30
    for step in range(first, last):
        single = ensemble.horizons[1].pool.forecasts(history, step, step + 1)
        chain = forecast_chain(ensemble.models, history, step, step + 1, block=ensemble.block)
        single["model"] = next(chain)
        for name, forecasts in single.items():
            np.testing.assert_array_equal(forecasts[:, 0], many[name][:, step - first], name)
    remembered, names, block = OneChain(), ensemble.model_names, ensemble.block
    spans = (first, last - 9), (first + 3, last), (last - 5, last + 1), (first - 2, last)
    for begin, end in spans:
        asked = ensemble.models, names, history, begin, end, block
        both = remembered(*asked), chains_by_name(*asked)
        for h, given, alone in zip(range(3), *both, strict=False):
            for name in names:
                same = given(begin + h, end + h)[name], alone(begin + h, end + h)[name]
                np.testing.assert_array_equal(*same)


def test_it_does_not_matter_when_old_values_are_dropped(
    made: Path, panel: Panel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gaps, and a client that is silent for a while, around the first value that is kept."""
    panel = replace(panel, values=panel.values.copy())
    panel.values[DAYS * 24 - 100 : DAYS * 24 + 200, 1] = np.nan
    panel.values[7::24, 2] = np.nan  # since the end of the run
    panel.values[23 * 24 : 25 * 24, 3] = np.nan
    one, many = (Path(shutil.copytree(made, tmp_path / name)) for name in ("one", "many"))
    forecast(one, hours(panel, DAYS * 24, DAYS * 24 + 30 * 24))
    kept = load_state(one / "live" / "values.safetensors")[0]["values"]
    assert len(kept) == (DAYS + 30) * 24  # nothing was dropped
    monkeypatch.setattr(memory, "LEAST", 2)
    for day in range(DAYS, DAYS + 30, 6):
        found = forecast(many, hours(panel, day * 24, (day + 6) * 24))
    kept = load_state(many / "live" / "values.safetensors")[0]["values"]
    assert DAYS * 24 <= len(kept) < (DAYS + 7) * 24
    np.testing.assert_array_equal(found, forecast(one, None))
    found, expected = (load_state(folder / LEARNED)[0] for folder in (many, one))
    assert_same(found, expected)
    again = forecast(many, None, 2)  # fitted on what the run itself has kept
    assert np.isfinite(again).all()


@pytest.mark.nightly
def test_hours_with_real_kills(made: Path, panel: Panel, tmp_path: Path) -> None:
    """200 hours, some of them killed by the system at any moment of a call."""
    one, many = (Path(shutil.copytree(made, tmp_path / name)) for name in ("one", "many"))
    count, rng, killed = 200, np.random.default_rng(1), 0
    expected = forecast(one, hours(panel, DAYS * 24 - 3, DAYS * 24 + count))
    command = [*FUELS, "forecast", str(many), "--data", str(tmp_path / "new.parquet")]
    took = None
    for number, new in enumerate(deliveries(panel, count)):
        if number % 10 == 9:
            long_frame(new).write_parquet(tmp_path / "new.parquet")
            begun = time.monotonic()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            try:
                process.wait(None if took is None else rng.uniform(0.3, 1) * took)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                killed += 1
            assert process.wait() in (0, -signal.SIGKILL)
            took = took or time.monotonic() - begun
        found = forecast(many, new)
    assert killed > 5
    np.testing.assert_array_equal(found, expected)
    assert_same(state(many), state(one))


class Killed(BaseException):
    pass


def die_at(write: int, patched: pytest.MonkeyPatch) -> None:
    """Stop at a write: half of the file is written under its temporary name."""
    left = [write]

    def replace_state(path: Path, *content: Any) -> None:
        if left[0] == 0:
            path.with_name(path.name + ".tmp").write_bytes(b"half")
            raise Killed
        left[0] -= 1
        replace_now(path, *content)

    replace_now = saved_run.replace_state
    for module in (saved_run, states):
        patched.setattr(module, "replace_state", replace_state)
    patched.setattr("fuels.storage.panels.replace_state", replace_state)
