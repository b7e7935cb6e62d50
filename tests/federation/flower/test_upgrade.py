"""A newer version of this package: the app that is submitted follows it, and old runs continue."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fuels.config import Settings
from fuels.federation.flower import commands, flower_app, runs, supervisor
from fuels.federation.flower.flower_app import settings_of, update_app
from fuels.federation.flower.folders import ServerFolder
from fuels.federation.flower.inbox import Time
from fuels.federation.flower.provisioning import provision
from fuels.federation.flower.runs import new_run
from fuels.federation.flower.server import serve
from fuels.federation.flower.status import status
from fuels.storage.run_folder import RunFolder
from fuels.version import DISTRIBUTION, __version__
from helpers.flower_world import MemoryNetwork

pytest.importorskip("flwr")

OLD = Path(__file__).parents[2] / "data_files" / "federation-0.1.0"


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

    fused: dict[str, Any] = get_fused_config_from_dir(server.app, handed_over(server, run))
    return fused


def handed_over(server: ServerFolder, run: str) -> dict[str, Any]:
    """The run config that is submitted, as `section.key`."""
    override = tomllib.loads((server.runs / run / "flower.toml").read_text())
    return {
        f"{key}.{inner}" if inner else key: value
        for key, section in override.items()
        for inner, value in (section.items() if isinstance(section, dict) else [("", section)])
    }


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


def test_a_run_of_version_0_1_0_continues_as_that_version_would_have(tmp_path: Path) -> None:
    """The federation was stopped after round 2 of 4; that version's own results are stored."""
    root = Path(shutil.copytree(OLD, tmp_path / "metro"))
    server = ServerFolder(root)
    assert (status(server)["run"], status(server)["round"]) == ("run", 2)
    settings = settings_of(handed_over(server, "run"))
    network = MemoryNetwork(root, list(server.config.sites), settings)
    serve(network, server, "run", settings, Time(network.clock, network.sleep))
    assert {number for _, kind, number, _ in network.sent if kind == "train"} == {3, 4}

    expected = [json.loads(line) for line in (OLD / "expected.jsonl").read_text().splitlines()]
    found = RunFolder(server.runs / "run").history()
    assert len(found) == len(expected) == 4
    for line, before in zip(found, expected, strict=True):
        assert line["failures"] == before.pop("failures") == []
        assert {key: line[key] for key in before} == pytest.approx(before, rel=1e-5)
    made = pl.concat(
        pl.read_parquet(root / "sites" / site / "runs" / "run" / "forecasts.parquet")
        for site in ("north", "south")
    )
    before = pl.read_csv(OLD / "expected.csv")
    assert made["client"].to_list() == before["client"].to_list()
    np.testing.assert_allclose(made["forecast"], before["forecast"], rtol=1e-4)
