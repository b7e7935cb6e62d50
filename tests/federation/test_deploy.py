"""The files in deploy/ call commands that exist, with folders that may be written."""

from __future__ import annotations

import configparser
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fuels.cli.commands import app
from fuels.federation.flower.found import found
from fuels.federation.flower.parties import ServerConfig

yaml = pytest.importorskip("yaml")
pytest.importorskip("flwr")
DEPLOY = Path(__file__).parents[2] / "deploy"


def unit(name: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(DEPLOY / name)
    return parser["Service"]


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return found


def container() -> dict[str, Any]:
    manifest = yaml.safe_load((DEPLOY / "kubernetes-site.yaml").read_text())
    found: dict[str, Any] = manifest["spec"]["template"]["spec"]["containers"][0]
    return found


def commands() -> dict[str, list[str]]:
    """What each file starts, without the program's own name."""
    return {
        "server unit": shlex.split(unit("fuels-server.service")["ExecStart"])[1:],
        "site unit": shlex.split(unit("fuels-site.service")["ExecStart"])[1:],
        "composed server": services()["server"]["command"],
        "composed site": services()["north"]["command"],
        "site in a pod": container()["args"],
    }


@pytest.mark.parametrize("name", commands())
def test_commands_are_those_of_this_program(tmp_path: Path, name: str) -> None:
    """With the folders of a federation in place of theirs, each prints what it would start."""
    found(tmp_path / "metro", "metro", ["north"], "fed.example.org", 9092)
    (tmp_path / "data.parquet").touch()
    kind, verb, _, *options = commands()[name]
    folder = tmp_path / "metro" / ("server" if kind == "server" else "sites/north")
    options = [str(tmp_path / "data.parquet") if o.endswith(".parquet") else o for o in options]
    shown = CliRunner().invoke(app, [kind, verb, str(folder), *options, "--show"])
    assert shown.exit_code == 0, shown.output
    assert ("flower-superlink" if kind == "server" else "flower-supernode") in shown.output


def test_folders_can_be_written_and_data_only_read() -> None:
    for name, folder in (("fuels-server.service", "server"), ("fuels-site.service", "site")):
        section = unit(name)
        assert shlex.split(section["ExecStart"])[3] == section["ReadWritePaths"]
        assert section["ReadWritePaths"].endswith(folder)
        assert section["Restart"] == "always"
    site = services()["north"]
    assert "./metro/sites/north:/site" in site["volumes"]
    assert f"./north.parquet:{site['command'][-1]}:ro" in site["volumes"]
    mounts = {m["mountPath"]: m.get("readOnly", False) for m in container()["volumeMounts"]}
    assert mounts == {"/site": False, "/data": True}


def test_the_image_has_the_versions_that_the_tests_run_with() -> None:
    root = DEPLOY.parent
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    (install,) = [line for line in text.splitlines() if "pip install" in line]
    assert "-c /src/constraints.txt" in install and '"/src[flower]"' in install
    assert "COPY . /src" in text and not (root / ".dockerignore").exists()
    lines = (root / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    for name in ("flwr", "cryptography", "httpx", "uvicorn", "torch", "numpy", "numba", "polars"):
        assert metadata.version(name).partition("+")[0] == pins[name], name


def test_the_servers_port_is_open_and_no_other() -> None:
    port = ServerConfig().port
    assert services()["server"]["ports"] == [f"{port}:{port}"]
    assert "ports" not in services()["north"]
