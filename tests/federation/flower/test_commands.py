"""The commands behind the server do the same from every working directory."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fuels.federation.flower import commands
from fuels.federation.flower.folders import ServerFolder
from fuels.federation.flower.processes import LAUNCH
from fuels.federation.flower.provisioning import provision

pytest.importorskip("flwr")

APP = """\
[project]
name = "fuels"
version = "1.0.0"
[tool.flwr.app]
publisher = "me"
[tool.flwr.app.components]
serverapp = "fuels.server:app"
clientapp = "fuels.client:app"
[tool.flwr.federations]
default = "mine"
[tool.flwr.federations.mine]
address = "127.0.0.1:1"
"""
COMMANDS = {
    "register": commands.register(Path("north.pub"), "north"),
    "unregister": commands.unregister("3"),
    "list": commands.list_nodes(),
    "stop": commands.stop_run("4"),
}


@pytest.fixture
def server(tmp_path: Path) -> ServerFolder:
    """A server that does not run, so that Flower's answer names the address it has tried."""
    port = commands.free_port()
    provision(tmp_path / "metro", "metro", ["north"], "127.0.0.1", port, control_port=port)
    return ServerFolder(tmp_path / "metro")


def in_a_place_with(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder below which there is a Flower app of this name."""
    (place / name).mkdir(parents=True)
    (place / name / "pyproject.toml").write_text(APP)
    monkeypatch.chdir(place)
    return place / name / "pyproject.toml"


def address(server: ServerFolder) -> str:
    return f"Using SuperLink: {commands.CONNECTION} (127.0.0.1:{server.config.control_port})"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_project_below_the_working_directory_is_not_taken_for_the_connection(
    name: str, server: ServerFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one with the connection's name; Flower would comment out its federations."""
    key = str(server.path.parent / "sites" / "north" / "site.pub")
    command = [key if word == "north.pub" else word for word in COMMANDS[name]]
    project = in_a_place_with(commands.CONNECTION, tmp_path / "here", monkeypatch)
    answer = commands.call(command, server)
    assert address(server) in answer["error-message"]
    assert "Connection to the SuperLink is unavailable" in answer["error-message"]
    assert project.read_text() == APP


def test_a_shown_command_can_be_pasted_in_the_parent_of_a_clone(
    server: ServerFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = in_a_place_with("fuels", tmp_path / "here", monkeypatch)
    line = commands.shown(commands.stop_run("4"), commands.server_environment(server))
    done = subprocess.run(shlex.split(line), capture_output=True, text=True, timeout=60)
    assert address(server) in json.loads(done.stdout)["error-message"]
    assert project.read_text() == APP


def test_answers_are_read_where_colours_are_forced(
    server: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook; Flower prints JSON with Rich."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    code = 'from rich.console import Console; Console().print_json(data={"success": True, "n": 3})'
    assert commands.call([sys.executable, "-c", code], server) == {"success": True, "n": 3}


def test_a_package_in_the_working_directory_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """As in src/ of another checkout."""
    (tmp_path / "fuels").mkdir()
    (tmp_path / "fuels" / "__init__.py").write_text("raise SystemExit('another fuels')")
    done = subprocess.run(
        [*LAUNCH, "server", "nowhere"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(commands.__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "nowhere: not a server folder" in done.stderr and done.returncode == 1
