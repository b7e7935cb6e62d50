"""Runs that stop and go on: kills, full disks, folders in use, other data or settings."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.config import Engine, Settings, to_dict
from fuels.data.panel import Panel
from fuels.errors import FuelsError
from fuels.runs.build import build
from fuels.runs.run import origin, run
from fuels.runs.settings import resolve, same_settings
from fuels.storage.checkpoint import load_state
from fuels.storage.run_folder import RunFolder
from helpers.panels import make_panel
from helpers.runs import do_run, results, small

BOTH = pytest.mark.parametrize("preset", ["paper", "best"])


def test_two_runs_cannot_share_a_folder(tmp_path: Path, panel: Panel) -> None:
    folder = RunFolder(tmp_path / "r")
    with folder.held(), pytest.raises(FuelsError, match="another process"):
        run(small(), Engine(threads=1), RunFolder(tmp_path / "r"), panel=panel, plots=False)


def test_changed_settings_are_refused_on_resume(tmp_path: Path, panel: Panel) -> None:
    settings, engine = small(), Engine(threads=1)
    folder = RunFolder(tmp_path / "r")
    folder.begin(settings, engine)
    with build(settings, engine, panel) as job:
        done = job.loop.step()
        arrays, facts = job.loop.state()
        folder.save(done, arrays, {**facts, **origin(job)})
    with pytest.raises(FuelsError, match="settings have changed"):
        run(small(options={"tau": 1}), engine, folder, panel=panel, resume=True, plots=False)


def test_a_folder_in_use_is_refused(tmp_path: Path, panel: Panel) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "note.txt").write_text("mine")
    with pytest.raises(FuelsError, match="not empty"):
        do_run(tmp_path / "r", small(), panel)
    assert (tmp_path / "r" / "note.txt").read_text() == "mine"


def test_other_data_are_refused_on_resume(tmp_path: Path, panel: Panel) -> None:
    settings, engine = small(), Engine(threads=1)
    folder = RunFolder(tmp_path / "r")

    class Stop:
        def on_round(self, done: object) -> None:
            raise KeyboardInterrupt

    class Watch:
        def __enter__(self) -> Stop:
            return Stop()

        def __exit__(self, *_: object) -> None:
            return None

    with pytest.raises(KeyboardInterrupt):
        run(settings, engine, folder, panel=panel, watch=lambda *_: Watch(), plots=False)
    other = replace(panel, values=panel.values + 1e-3 * np.arange(5))
    with pytest.raises(FuelsError, match="data have changed"):
        run(settings, engine, folder, panel=other, resume=True, plots=False)
    run(settings, engine, folder, panel=panel, resume=True, plots=False)
    do_run(tmp_path / "whole", settings, panel)
    assert results(tmp_path / "r") == results(tmp_path / "whole")


def test_a_full_disk_loses_nothing(tmp_path: Path, panel: Panel, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """When a checkpoint cannot be written the run stops in words, and the one before is intact."""
    import fuels.storage.checkpoint as checkpoint

    settings, engine = small(), Engine(threads=1)
    folder = RunFolder(tmp_path / "r")
    real, calls = checkpoint.write_arrays, []

    def full(*args: object, **kwargs: object) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint, "write_arrays", full)
    with pytest.raises(FuelsError, match="No space left on device"):
        run(settings, engine, folder, panel=panel, plots=False)
    assert load_state(folder.checkpoint)[1]["round"] == 2
    run(settings, engine, folder, panel=panel, resume=True, plots=False)
    do_run(tmp_path / "whole", settings, panel)
    assert results(tmp_path / "r") == results(tmp_path / "whole")


def test_rounds_without_a_checkpoint_are_trained_again(
    tmp_path: Path, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where saving is slow only the first round and the last are saved: the end is the same."""
    import fuels.storage.checkpoint as checkpoint

    monkeypatch.setattr("fuels.storage.journal.QUICK", -1.0)
    monkeypatch.setattr("fuels.runs.run.SAVING", 1e-9)
    settings, engine, folder = small(), Engine(threads=1), RunFolder(tmp_path / "r")
    real = checkpoint.write_arrays

    def stopping(*given: Any) -> None:
        real(*given)
        if len(folder.history()) == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(checkpoint, "write_arrays", stopping)
        run(settings, engine, folder, panel=panel, plots=False)
    assert load_state(folder.checkpoint)[1]["round"] == 1 and len(folder.history()) == 4
    run(settings, engine, folder, panel=panel, resume=True, plots=False)
    do_run(tmp_path / "whole", settings, panel)
    assert results(tmp_path / "r") == results(tmp_path / "whole")


def _train(folder: Path, settings: Settings) -> None:
    warnings.simplefilter("ignore")
    target = RunFolder(folder)
    resume = target.config.exists()
    panel = make_panel(clients=10)  # enough for sharing
    run(settings, Engine(threads=1), target, panel=panel, resume=resume, plots=False)


@BOTH
@pytest.mark.parametrize("wanted", [4, pytest.param(20, marks=pytest.mark.nightly)])
def test_killed_runs_end_bit_identical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str, wanted: int
) -> None:
    """Killed with -9 at random moments, in checkpoints and while the results are written."""
    settings = small(preset, training={"rounds": 12, "selection": 0.13}, model={"hidden": 24})
    # Processes are forked from one that has only imported, so they start within a moment.
    here = Path(__file__).parent
    places = [str(here), str(here.parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fuels.runs.run", "fuels.kernels.step", "test_resume"])

    def train(folder: Path, rounds: int | None = None, delay: float = 0.0) -> bool:
        """Train in a process of its own; killed some time after a round; whether it was killed."""
        process = context.Process(target=_train, args=(folder, settings))
        process.start()
        log = folder / "metrics.jsonl"
        while rounds is not None and process.is_alive():
            if (len(log.read_bytes().splitlines()) if log.exists() else 0) >= rounds:
                time.sleep(delay)
                process.kill()
                break
            time.sleep(0.001)
        process.join(120)
        assert process.exitcode in (0, -signal.SIGKILL)
        return process.exitcode != 0

    assert not train(tmp_path / "whole")
    moments = random.Random(5)
    kills = 0
    for attempt in range(2 * wanted):
        folder = tmp_path / f"r{attempt}"
        rounds = moments.choice([*range(12), 12, 12, 12])  # after the last one all is written
        kills += train(folder, rounds, moments.uniform(0, 0.3 if rounds == 12 else 0.05))
        if not (folder / "summary.json").exists():
            assert not train(folder)
        assert results(folder) == results(tmp_path / "whole"), f"attempt {attempt}"
        if kills == wanted:
            return
    pytest.fail(f"only {kills} of {2 * wanted} processes could be killed before they ended")


def test_a_lost_checkpoint_does_not_cost_the_log(tmp_path: Path, panel: Panel) -> None:
    """One line without a checkpoint is what a kill in the first round leaves; two are a loss."""
    settings, engine = small(), Engine(threads=1)
    folder = RunFolder(tmp_path / "r")
    folder.begin(settings, engine)
    folder.metrics.write_text('{"round": 1}\n{"round": 2}\n')
    with pytest.raises(FuelsError, match=r"checkpoint\.safetensors is missing, although metrics"):
        run(settings, engine, folder, panel=panel, resume=True, plots=False)
    assert len(folder.history()) == 2
    folder.metrics.write_text('{"round": 1}\n')
    run(settings, engine, folder, panel=panel, resume=True, plots=False)
    assert len(folder.history()) == 4


def test_settings_that_a_run_did_not_know_yet_do_not_stop_it_from_resuming(
    panel: Panel,
) -> None:
    settings = resolve(small())
    stored = json.loads(json.dumps(to_dict(settings)))
    assert same_settings(stored, settings)
    del stored["options"]["filter_start"]  # an option that was added later
    assert same_settings(stored, settings)
    assert not same_settings(stored, resolve(small(options={"filter_start": "positive"})))
    assert not same_settings({**stored, "seed": 1}, settings)
    assert not same_settings({**stored, "unheard": 1}, settings)
    elsewhere = {**stored, "data": {**stored["data"], "source": "other.csv"}}
    assert same_settings(elsewhere, settings, "data") and not same_settings(elsewhere, settings)
