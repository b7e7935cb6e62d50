"""What --show prints is what runs: a federation started from these lines alone trains."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fuels.cli.commands import app
from fuels.config import PRESETS, Settings, merge
from fuels.federation.flower import commands, flower_app
from fuels.federation.flower.flower_app import federated, settings_of
from fuels.federation.flower.folders import ServerFolder
from fuels.federation.flower.processes import Processes
from fuels.federation.flower.provisioning import provision
from fuels.federation.flower.runs import Current
from fuels.storage.run_folder import RunFolder
from helpers.flower_world import few_days, write_panel

pytest.importorskip("flwr")

SMALL = ("--rounds", "1", "--set", "model.hidden=8", "--set", "windows.split=8/2/2")


def lines(*arguments: object) -> list[list[str]]:
    """The commands that --show prints, as a unit file would start them."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--show"])
    assert result.exit_code == 0, result.output
    shown = [line for line in result.stdout.splitlines() if not line.startswith("#")]
    assert all(line.startswith("/usr/bin/env ") for line in shown)
    return [shlex.split(line) for line in shown]


@pytest.fixture
def metro(tmp_path: Path) -> Path:
    path, port = tmp_path / "metro", commands.free_port()
    provision(path, "metro", ["north"], "127.0.0.1", port, control_port=commands.free_port())
    write_panel(tmp_path / "panel.csv", ["a", "b"])
    site = path / "sites" / "north" / "site.toml"
    site.write_text(few_days(site.read_text()))
    return path


def test_every_process_of_a_party_is_shown(metro: Path) -> None:
    server = lines("server", "start", metro)
    assert len(server) == 3 and str(commands.program("flower-superlink")) in server[0]
    for command, name in zip(server[1:], ("gateway", "supervisor"), strict=True):
        assert f"fuels.federation.flower.{name}" in command
    site = lines("site", "start", metro / "sites" / "north", "--data", metro.parent / "panel.csv")
    assert len(site) == 3
    for command, name in zip(site, ("worker", "supernode", "dispatcher"), strict=True):
        assert any(name in word for word in command)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"preset": "best", **PRESETS["best"]},
        {"options": {"tau": 0.05, "noise": "laplace"}, "windows": {"holidays": "2024-12-25"}},
    ],
)
def test_a_shown_run_needs_no_file_and_means_the_same(changes: dict[str, object]) -> None:
    from flwr.common.config import parse_config_args

    chosen = federated(merge(Settings(), changes, "test"), "test")
    assert settings_of(parse_config_args([flower_app.inline(chosen)])) == chosen


def test_a_shown_run_names_files_that_exist(metro: Path) -> None:
    (command,) = lines("federation", "run", metro, *SMALL)
    for word in command:
        if word.startswith("/") and "=" not in word:
            assert Path(word).exists(), word
    assert not (metro / "server" / "runs").exists()


@pytest.mark.operations
def test_a_federation_of_shown_commands_trains(metro: Path) -> None:
    """With hardly any environment, as a service manager starts them."""
    server, data = ServerFolder(metro), metro.parent / "panel.csv"
    bare = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    processes = Processes(metro)

    def start(command: list[str]) -> None:
        name = f"process-{len(processes.running)}"
        with (metro / f"{name}.log").open("wb") as log:
            child = subprocess.Popen(command, env=bare, cwd="/", stdout=log, stderr=log)
        processes.running[name] = child

    try:
        for command in lines("server", "start", metro):
            start(command)
        wait(lambda: (server.state / "ready").exists())
        port = str(commands.free_port())
        for command in lines("site", "start", metro / "sites" / "north", "--data", data):
            start([port if word == "9094" else word for word in command])
        (command,) = lines("federation", "run", metro, *SMALL)
        done = subprocess.run(command, env=bare, cwd="/", capture_output=True, timeout=120)
        answer = json.loads(done.stdout)
        assert answer["success"], answer
        wait(lambda: Current(server).read().get("state") in ("finished", "failed"))
        processes.check()
    finally:
        processes.stop()
    current = Current(server).read()
    assert current["state"] == "finished", current
    assert current["flower_run"] == str(answer["run-id"])
    assert [line["clients"] for line in RunFolder(server.runs / current["run"]).history()] == [2]
    assert RunFolder(metro / "sites" / "north" / "runs" / current["run"]).models.exists()
    # The same run can be resumed: what that shows names a file that is there now.
    (again,) = lines("federation", "run", metro, "--resume")
    config = Path(again[again.index("--run-config") + 1])
    assert f'run = "{current["run"]}"' in config.read_text()


def wait(what: Callable[[], bool], seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.2)
