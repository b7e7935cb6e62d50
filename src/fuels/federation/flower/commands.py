"""Flower's own commands, as this package calls them and as `--show` prints them."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fuels.config import Settings, to_dict
from fuels.errors import FuelsError
from fuels.federation.flower.parties import ServerFolder, SiteFolder
from fuels.version import not_installed

# The name of the server in Flower's config.toml. Flower reads it as the path of an app where the
# working directory has a project of that name, so it is one that no folder has.
CONNECTION = "fuels:server"
# Python without the working directory in its path: a `fuels` there would be taken for this package.
MODULE = [sys.executable, "-P", "-m"]
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
ENV = "/usr/bin/env"  # a unit file wants the whole path of what it starts
HASTE = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}  # seconds; Flower's default is one


def program(name: str) -> str:
    """Flower's commands stand beside the Python that runs this."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise FuelsError(not_installed(name, "flower"))
    return str(path)


def server_environment(folder: ServerFolder) -> dict[str, str]:
    home = {"FLWR_HOME": str(folder.home), "FUELS_SERVER": str(folder.path)}
    return {**QUIET, **home, "PATH": search_path()}


def site_environment(folder: SiteFolder) -> dict[str, str]:
    return {**QUIET, **HASTE, "FLWR_HOME": str(folder.home), "PATH": search_path()}


def search_path() -> str:
    """Where Flower's programs find each other: beside the Python that runs this."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.defpath])


def superlink(folder: ServerFolder) -> list[str]:
    config = folder.config
    return [
        program("flower-superlink"),
        "--host", "127.0.0.1",
        "--port", str(config.control_port),
        "--ssl-ca-certfile", str(folder.ca),
        "--ssl-certfile", str(folder.certificate),
        "--ssl-keyfile", str(folder.key),
        "--database", str(folder.database),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip


def door(folder: ServerFolder) -> list[str]:
    """Not Flower's: what stands between the network and the SuperLink."""
    return [*MODULE, "fuels.federation.flower.door", str(folder.path)]


def steward(folder: ServerFolder) -> list[str]:
    """Not Flower's: what registers the sites' keys and takes up a run that was cut off."""
    return [*MODULE, "fuels.federation.flower.steward", str(folder.path)]


def clerk(folder: SiteFolder) -> list[str]:
    """Not Flower's: what has the models loaded and answers for the processes of the SuperNode."""
    return [*MODULE, "fuels.federation.flower.clerk", str(folder.path)]


def supernode(folder: SiteFolder, data: str, port: int) -> list[str]:
    values = {"folder": str(folder.path)} | ({"data": data} if data else {})
    for value in values.values():
        if '"' in value or "\\" in value:
            raise FuelsError(f"{value}: Flower cannot be given a path with a quote or backslash")
    return [
        program("flower-supernode"),
        "--superlink", folder.config.server,
        "--root-certificates", str(folder.ca),
        "--auth-supernode-private-key", str(folder.key),
        "--node-config", " ".join(f'{key}="{value}"' for key, value in values.items()),
        "--host", "127.0.0.1",
        "--port", str(port),
    ]  # fmt: skip


def start_run(folder: ServerFolder, config: str) -> list[str]:
    """`config`: the path of a run config, or what `inline` makes of one."""
    return [
        program("flwr"), "run", str(folder.app), CONNECTION,
        "--run-config", config, "--format", "json",
    ]  # fmt: skip


def stop_run(run_id: str) -> list[str]:
    return [program("flwr"), "stop", run_id, CONNECTION, "--format", "json"]


def list_nodes() -> list[str]:
    return [program("flwr"), "supernode", "list", CONNECTION, "--format", "json"]


def register(key: Path, name: str) -> list[str]:
    return [
        program("flwr"), "supernode", "register", str(key), CONNECTION,
        "--name", name, "--format", "json",
    ]  # fmt: skip


def unregister(node_id: str) -> list[str]:
    return [program("flwr"), "supernode", "unregister", node_id, CONNECTION, "--format", "json"]


def run_config(run: str, settings: Settings) -> dict[str, Any]:
    """The settings as a Flower run config; `serving.settings_of` reads it back."""
    values = {
        section: {key: _plain(inner) for key, inner in value.items()}
        if isinstance(value, dict)
        else value
        for section, value in to_dict(settings).items()
        if section != "data"
    }
    return {**values, "options": json.dumps(dict(settings.options)), "run": run}


def inline(settings: Settings) -> str:
    """The settings as the text of Flower's --run-config, which needs no file.

    Without a name: Flower's number of the run names its folder.
    """
    words = []
    for key, value in run_config("", settings).items():
        inner = value if isinstance(value, dict) else {"": value}
        words += [f"{key}.{name}".strip(".") + f"={_word(inner[name])}" for name in inner]
    return " ".join(words)


def _word(value: Any) -> str:
    """A value as TOML that Flower finds in a line: text without the quote it stands in."""
    if not isinstance(value, str):
        return json.dumps(value)
    quote = "'" if '"' in value or "\\" in value else '"'
    if quote in value:
        raise FuelsError(f"Flower cannot be given a text with both kinds of quotes: {value}")
    return f"{quote}{value}{quote}"


def _plain(value: Any) -> Any:
    """Flower's run config has no lists: words between commas, as on the command line."""
    return ",".join(str(item) for item in value) if isinstance(value, list) else value


def write_run_config(path: Path, run: str, settings: Settings) -> None:
    path.write_text(tomli_w.dumps(run_config(run, settings)), encoding="utf-8")


def write_connection(folder: ServerFolder) -> None:
    """Flower's config.toml, which tells its commands where the server is."""
    folder.home.mkdir(parents=True, exist_ok=True)
    config = folder.config
    content = {
        "superlink": {
            "default": CONNECTION,
            CONNECTION: {
                "address": f"127.0.0.1:{config.control_port}",
                "root-certificates": str(folder.ca),
            },
        }
    }
    temporary = folder.home / f"config.toml.{os.getpid()}.tmp"
    temporary.write_text(tomli_w.dumps(content), encoding="utf-8")
    temporary.replace(folder.home / "config.toml")  # whole at any time: other commands may read it


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with what `shown` prints of it."""
    return {**os.environ, **extra}


def shown(command: Sequence[str], extra: Mapping[str, str]) -> str:
    """A command with its environment, ready to be pasted into a shell or a unit file."""
    return shlex.join([ENV, *(f"{key}={value}" for key, value in extra.items()), *command])


def call(command: Sequence[str], folder: ServerFolder, timeout: float = 60) -> dict[str, Any]:
    """Run one of Flower's commands that answer in JSON; {"success": false, ...} if it failed.

    It runs in Flower's own folder. Flower looks for apps in the working directory, and may rewrite
    the pyproject.toml of one it finds.
    """
    write_connection(folder)
    try:
        done = subprocess.run(
            command,
            cwd=folder.home,
            env=environment(server_environment(folder)),
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return {"success": False, "error-message": f"no answer within {timeout:g} s"}
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        text = " ".join((done.stderr or done.stdout).split())[-300:]
        return {"success": False, "error-message": text}
    return answer if isinstance(answer, dict) else {"success": False}


def free_port() -> int:
    """A port of this machine that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
