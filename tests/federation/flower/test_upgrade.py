"""A newer version of this package: the app that is submitted follows it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from fuels.config import Settings
from fuels.federation.flower import commands, flower_app, runs, supervisor
from fuels.federation.flower.flower_app import update_app
from fuels.federation.flower.folders import ServerFolder
from fuels.federation.flower.provisioning import provision
from fuels.federation.flower.runs import new_run
from fuels.version import DISTRIBUTION, __version__

pytest.importorskip("flwr")


@pytest.fixture
def older(tmp_path: Path) -> ServerFolder:
    """A server whose app was written by a version that did not know training.rounds."""
    provision(tmp_path / "metro", "metro", ["north"], "127.0.0.1", 9092)
    server = ServerFolder(tmp_path / "metro")
    file = server.app / "pyproject.toml"
    lines = file.read_text().replace(f"=={__version__}", "==0.0.1").splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not line.startswith("rounds = ")))
    return server


def project(server: ServerFolder) -> dict[str, Any]:
    return tomllib.loads((server.app / "pyproject.toml").read_text())


def accepted(server: ServerFolder, run: str) -> dict[str, Any]:
    """The run config as Flower makes it of the app and the file that is handed over."""
    from flwr.common.config import get_fused_config_from_dir

    override = tomllib.loads((server.runs / run / "flower.toml").read_text())
    flat = {
        f"{key}.{inner}" if inner else key: value
        for key, section in override.items()
        for inner, value in (section.items() if isinstance(section, dict) else [("", section)])
    }
    fused: dict[str, Any] = get_fused_config_from_dir(server.app, flat)
    return fused


def test_a_run_is_submitted_with_the_app_of_this_version(
    older: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(older, Settings())
    with pytest.raises(ValueError, match=r"training\.rounds"):  # what Flower says of the old app
        accepted(older, run)
    submitted: list[list[str]] = []

    def call(command: list[str], _: Any) -> dict[str, Any]:
        submitted.append(project(older)["project"]["dependencies"])
        return {"success": True, "run-id": "1"}

    monkeypatch.setattr(commands, "call", call)
    assert runs.submit(older) == ""
    assert submitted == [[f"fuels-forecast[flower]=={__version__}"]]
    assert accepted(older, run)["training.rounds"] == Settings().training.rounds


def test_the_server_writes_it_when_it_starts(
    older: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that plain `flwr run` has it too."""
    monkeypatch.setattr(supervisor, "supervise", lambda _: None)
    monkeypatch.setattr(supervisor.Launcher, "start", lambda _: None)
    monkeypatch.setattr(supervisor, "end_with_parent", lambda: None)
    monkeypatch.setattr("sys.argv", ["supervisor", str(older.path)])
    supervisor.main()
    assert project(older)["project"]["dependencies"] == [f"fuels-forecast[flower]=={__version__}"]
    assert "rounds" in project(older)["tool"]["flwr"]["app"]["config"]["training"]


def test_an_app_that_pins_the_former_name_is_rewritten(older: ServerFolder) -> None:
    """On the package index that name is somebody else's package."""
    file = older.app / "pyproject.toml"
    update_app(older)
    file.write_text(file.read_text().replace(DISTRIBUTION, "fuels"))
    update_app(older)
    assert project(older)["project"]["dependencies"] == [f"fuels-forecast[flower]=={__version__}"]


def test_an_app_of_this_version_stays_as_its_operator_left_it(older: ServerFolder) -> None:
    update_app(older)
    own = older.app / "fuels_app" / "client.py"
    own.write_text("# changed here\n")
    update_app(older)
    assert own.read_text() == "# changed here\n"


@pytest.mark.parametrize("damage", ["", "half a li", "[project]\n", None])
def test_a_damaged_app_is_written_anew(older: ServerFolder, damage: str | None) -> None:
    file = older.app / "pyproject.toml"
    file.unlink() if damage is None else file.write_text(damage)
    update_app(older)
    assert project(older) == flower_app._project()
