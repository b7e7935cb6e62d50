"""`fuels federation demo`: a whole federation in one command, and what is left of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fuels.cli.federation import federation_app
from fuels.errors import FuelsError
from fuels.federation.flower.demo import demo_settings
from fuels.federation.flower.processes import Processes, descendants, is_alive

pytest.importorskip("flwr")
runner = CliRunner()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.operations
def test_it_trains_compares_and_leaves_nothing_behind_within_three_minutes(
    place: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As somebody types it, with three sites and five rounds, in the parent of a clone."""
    clone = tmp_path_factory.mktemp("parent") / "fuels"
    clone.mkdir()
    (clone / "pyproject.toml").write_text('[project]\nname = "fuels"\n')
    monkeypatch.chdir(clone.parent)
    result = runner.invoke(federation_app, ["demo", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    print(f"{found['sites']} sites, {found['rounds']} rounds: {found['seconds']} s")
    assert (found["method"], found["sites"], found["rounds"]) == ("fuels", 3, 5)
    assert 0 < found["seconds"] < 180
    for name in ("val_mse", "test_mse"):
        assert found[name] == pytest.approx(found[f"local_{name}"], rel=0.01)
    assert found["live"]["sites"] == ["site-1", "site-2", "site-3"]
    assert found["live"]["values"] == 12
    assert "round 5 of 5" in result.stderr
    assert list(place.iterdir()) == []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert str(place) not in command.read_text(errors="replace")
        except OSError:  # it has just ended
            continue


def test_what_it_started_and_what_that_started_has_ended(tmp_path: Path) -> None:
    """A grandchild in its own session leaves a moment after its parent, as Flower's do."""
    script = (
        "import os, subprocess, sys, time\n"
        "child = 'import os, time\\nwhile os.getppid() == %d: time.sleep(0.1)\\ntime.sleep(1)'\n"
        "subprocess.Popen([sys.executable, '-c', child % os.getpid()], start_new_session=True)\n"
        "open('up', 'w').close(); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path)
    while not (tmp_path / "up").exists():
        time.sleep(0.05)
    processes = Processes(tmp_path)
    processes.running["server"] = parent
    below = descendants(parent.pid)
    assert len(below) == 1 and is_alive(below[0])
    processes.stop()
    assert parent.poll() is not None and not is_alive(below[0])


def test_what_failed_stays_and_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(root: Path, *_: Any) -> None:
        root.mkdir()
        (root / "server.log").write_text("the reason")
        raise FuelsError("server ended")

    monkeypatch.setattr("fuels.federation.flower.demo.run_demo", fail)
    result = runner.invoke(federation_app, ["demo"])
    assert isinstance(result.exception, FuelsError)
    (folder,) = place.iterdir()
    assert (folder / "demo" / "server.log").read_text() == "the reason"
    assert str(result.exception).endswith(
        f"server ended; the folders and logs of the demo are in {folder / 'demo'}"
    )


def test_it_can_be_read_by_a_program(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"val_mse": 0.5, "test_mse": 0.4, "local_val_mse": 0.5, "local_test_mse": 0.4}
    found["seconds"] = 71.5
    monkeypatch.setattr("fuels.federation.flower.demo.run_demo", lambda *_: found)
    result = runner.invoke(federation_app, ["demo", "--json", "--sites", "2", "--rounds", "2"])
    assert result.exit_code == 0, result.output
    expected = {"method": "fuels", "sites": 2, "rounds": 2, **found}
    assert json.loads(result.stdout) == expected


def test_it_can_be_read_by_people(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"val_mse": 0.505, "test_mse": 0.4, "local_val_mse": 0.5, "local_test_mse": 0.4}
    given: dict[str, Any] = {**found, "seconds": 71.5, "masked": {"rounds": 5}}
    monkeypatch.setattr("fuels.federation.flower.demo.run_demo", lambda *_: given)
    result = runner.invoke(federation_app, ["demo"])
    assert result.exit_code == 0, result.output
    assert re.findall(r"([+-][\d.]+)%", result.output) == ["+1.000", "+0.000"]
    assert "finished in 72 s; all processes have ended" in result.output
    assert "masked uploads: the server sees sums only, 5 rounds" in result.output


def test_uploads_are_masked_if_the_method_and_the_number_of_sites_allow_it() -> None:
    chosen = [
        demo_settings(*which) for which in (("fedavg", 2, 3), ("fedavg", 2, 2), ("fuels", 2, 3))
    ]
    assert [settings.privacy.masked for settings in chosen] == [True, False, False]


def test_an_interrupted_demo_is_removed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(root: Path, *_: Any) -> None:
        root.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr("fuels.federation.flower.demo.run_demo", interrupt)
    runner.invoke(federation_app, ["demo"])
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--method", "fuel"], "unknown method"),
        (["--keep", "."], "this folder exists; name a new one"),
    ],
)
def test_what_cannot_be_begins_nothing(place: Path, arguments: list[str], reason: str) -> None:
    result = runner.invoke(federation_app, ["demo", *arguments])
    assert isinstance(result.exception, FuelsError) and reason in str(result.exception)
    assert list(place.iterdir()) == []
