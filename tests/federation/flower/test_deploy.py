"""The files in deploy/ call commands that exist, with folders that may be written."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fuels.cli.commands import app
from fuels.federation.flower.folders import ServerConfig
from fuels.federation.flower.provisioning import provision

yaml = pytest.importorskip("yaml")
pytest.importorskip("flwr")
DEPLOY = Path(__file__).parents[3] / "deploy"


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
    provision(tmp_path / "metro", "metro", ["north"], "fed.example.org", 9092)
    (tmp_path / "data.parquet").touch()
    kind, verb, _, *options = commands()[name]
    folder = tmp_path / "metro" / ("server" if kind == "server" else "sites/north")
    options = [str(tmp_path / "data.parquet") if o.endswith(".parquet") else o for o in options]
    shown = CliRunner().invoke(app, [kind, verb, str(folder), *options, "--show"])
    assert shown.exit_code == 0, shown.output
    assert ("flower-superlink" if kind == "server" else "flower.supernode") in shown.output
    for line in shown.output.splitlines():  # all of it is about this folder, and no other
        assert line.startswith("# ") or str(folder) in line


def verify(path: Path, text: str) -> None:
    """What systemd itself says of a unit."""
    analyse = shutil.which("systemd-analyze")
    if analyse is None:
        pytest.skip("systemd is not installed")
    path.write_text(text)
    command = [analyse, "verify", "--man=no", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["fuels-server.service", "fuels-site.service"])
def test_units_are_complete_and_systemd_takes_them(tmp_path: Path, name: str) -> None:
    section = unit(name)
    folder = shlex.split(section["ExecStart"])[3]
    assert (section["User"], section["Group"]) == ("fuels", "fuels")
    assert section["WorkingDirectory"] == section["ReadWritePaths"] == folder
    guide = (DEPLOY.parent / "docs" / "how-to" / "operate-a-federation.md").read_text()
    for needed in (f"deploy/{name}", folder, "/opt/fuels/bin/pip", "useradd", "systemctl enable"):
        assert needed in guide, needed
    text = (DEPLOY / name).read_text().replace("/opt/fuels/bin/fuels", sys.executable)
    verify(tmp_path / name, text)
    with pytest.raises(AssertionError, match="NoNewPrivilege"):  # it would be noticed
        verify(tmp_path / name, text.replace("NoNewPrivileges", "NoNewPrivilege"))


def test_a_refit_is_scheduled(tmp_path: Path) -> None:
    section = unit("fuels-refit.service")
    program, group, command, folder = shlex.split(section["ExecStart"])
    assert (program, group, command) == ("/opt/fuels/bin/fuels", "federation", "refit")
    assert CliRunner().invoke(app, [group, command, "--help"]).exit_code == 0
    assert section["ReadWritePaths"] == folder == unit("fuels-server.service")["WorkingDirectory"]
    assert (section["Type"], section["TimeoutStartSec"]) == ("oneshot", "infinity")
    timer = (DEPLOY / "fuels-refit.timer").read_text()
    assert "OnCalendar=Sun *-*-* 02:30:00" in timer and "WantedBy=timers.target" in timer
    guide = (DEPLOY.parent / "docs" / "how-to" / "operate-a-federation.md").read_text()
    assert "deploy/fuels-refit.service" in guide and "fuels-refit.timer" in guide
    text = (DEPLOY / "fuels-refit.service").read_text()
    (tmp_path / "fuels-server.service").write_text("[Service]\nExecStart=/bin/true\n")
    verify(tmp_path / "fuels-refit.service", text.replace(program, sys.executable))
    verify(tmp_path / "fuels-refit.timer", timer)


@pytest.mark.parametrize("kind", ["server", "site"])
def test_lines_that_are_shown_become_units(tmp_path: Path, kind: str) -> None:
    """Also with signs that systemd reads in its own way: % and $ are doubled."""
    root = tmp_path / "100% of $metro"
    provision(root, "metro", ["north"], "fed.example.org", 9092)
    (tmp_path / "data.parquet").touch()
    folder = root / ("server" if kind == "server" else "sites/north")
    data = ["--data", str(tmp_path / "data.parquet")] if kind == "site" else []
    shown = CliRunner().invoke(app, [kind, "start", str(folder), *data, "--show"])
    lines = [line for line in shown.output.splitlines() if not line.startswith("#")]
    assert len(lines) == 3
    for number, line in enumerate(lines):
        doubled = line.replace("%", "%%").replace("$", "$$")
        text = f"[Service]\nExecStart={doubled}\n"
        verify(tmp_path / f"line{number}.service", text)


def test_containers_are_complete() -> None:
    for name, folder in (("server", "/server"), ("north", "/site")):
        service = services()[name]
        assert service["user"] == "1000:1000" and service["working_dir"] == folder
        assert service["command"][2] == folder and service["restart"] == "always"
    image = (DEPLOY / "Dockerfile").read_text()
    assert "useradd --uid 1000" in image and 'ENTRYPOINT ["fuels"]' in image


def test_folders_can_be_written_and_data_only_read() -> None:
    for name, folder in (("fuels-server.service", "server"), ("fuels-site.service", "site")):
        section = unit(name)
        assert shlex.split(section["ExecStart"])[3] == section["ReadWritePaths"]
        assert section["ReadWritePaths"].endswith(folder)
        assert section["Restart"] == "always"
        # All else is read-only, wherever the data lie; a path that is not there stops a unit.
        assert section["ProtectSystem"] == "strict" and "ReadOnlyPaths" not in section
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
    lines = (root / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    for name in ("flwr", "cryptography", "httpx", "uvicorn", "torch", "numpy", "numba", "polars"):
        assert metadata.version(name).partition("+")[0] == pins[name], name


def test_nothing_is_copied_into_the_image_that_is_not_named() -> None:
    """A layer keeps what was copied, also private keys that a later line deletes."""
    lines = [line.split() for line in (DEPLOY / "Dockerfile").read_text().splitlines()]
    copied = [name for line in lines if line[:1] in (["COPY"], ["ADD"]) for name in line[1:-1]]
    assert sorted(copied) == ["LICENSE", "README.md", "constraints.txt", "pyproject.toml", "src"]
    assert all((DEPLOY.parent / name).exists() for name in copied)


def test_the_servers_port_is_open_and_no_other() -> None:
    port = ServerConfig().port
    assert services()["server"]["ports"] == [f"{port}:{port}"]
    assert "ports" not in services()["north"]
