"""Flower's own commands, as this package calls them and as `--show` prints them.

Two lists, and the end of a run, are requested from the SuperLink directly: the commands for them
take seconds to start, on a busy machine a minute, and do not print the keys of nodes. Flower and
libraries for HTTP are imported only for that: processes that only start others need 30 MB less.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import ssl
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fuels.errors import FuelsError
from fuels.federation.flower.folders import ServerFolder, SiteFolder, key_of
from fuels.version import not_installed

# The server's name in Flower's config.toml. Flower takes it for the path of an app if the working
# directory has a project of that name, so no folder can have this one.
CONNECTION = "fuels:server"
# Python without the working directory in its path: a `fuels` there would be taken for this package.
MODULE = [sys.executable, "-P", "-m"]
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
ENV = "/usr/bin/env"  # a unit file needs the full path of what it starts

PROTOBUF = "application/protobuf"
REVOKED = "unregistered"
OVER = "finished"


def program(name: str) -> str:
    """A command of Flower, installed next to this Python."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise FuelsError(not_installed(name, "flower"))
    return str(path)


def server_environment(folder: ServerFolder) -> dict[str, str]:
    home = {"FLWR_HOME": str(folder.home), "FUELS_SERVER": str(folder.path)}
    return {**QUIET, **home, "PATH": search_path()}


def site_environment(folder: SiteFolder) -> dict[str, str]:
    return {**QUIET, "FLWR_HOME": str(folder.home), "PATH": search_path()}


def search_path() -> str:
    """The PATH on which Flower's programs find each other: the folder of this Python."""
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
        "--isolation", "process",  # it starts none: the supervisor does
    ]  # fmt: skip


def server_app(folder: ServerFolder, token: str) -> list[str]:
    """The process that runs the rounds; it may claim the run with this token."""
    return [
        program("flwr-serverapp"),
        "--runtime-api-address", f"127.0.0.1:{folder.config.control_port}",
        "--token", token,
        "--root-certificates", str(folder.ca),
        "--parent-pid", str(os.getpid()),
    ]  # fmt: skip


def gateway(folder: ServerFolder) -> list[str]:
    """Not Flower's: the public port in front of the SuperLink."""
    return [*MODULE, "fuels.federation.flower.gateway", str(folder.path)]


def supervisor(folder: ServerFolder) -> list[str]:
    """Not Flower's: registers the sites' keys and resumes an interrupted run."""
    return [*MODULE, "fuels.federation.flower.supervisor", str(folder.path)]


def worker(folder: SiteFolder) -> list[str]:
    """Not Flower's: trains, for the short-lived processes of the SuperNode."""
    return [*MODULE, "fuels.federation.flower.worker", str(folder.path)]


def supernode(folder: SiteFolder, data: str, port: int) -> list[str]:
    values = {"folder": str(folder.path)} | ({"data": data} if data else {})
    for value in values.values():
        if '"' in value or "\\" in value:
            raise FuelsError(f"{value}: Flower does not accept a path with a quote or backslash")
    return [
        *MODULE, "fuels.federation.flower.supernode",
        "--superlink", folder.config.server,
        "--root-certificates", str(folder.ca),
        "--auth-supernode-private-key", str(folder.key),
        "--node-config", " ".join(f'{key}="{value}"' for key, value in values.items()),
        "--isolation", "process",  # it starts none: the dispatcher takes its messages
        "--host", "127.0.0.1",
        "--port", str(port),
    ]  # fmt: skip


def dispatcher(folder: SiteFolder, port: int) -> list[str]:
    """Not Flower's: takes the SuperNode's messages to the worker."""
    return [*MODULE, "fuels.federation.flower.dispatcher", str(folder.path), str(port)]


def start_run(folder: ServerFolder, config: str) -> list[str]:
    """`config`: the path of a run config, or the text that `inline` makes of one."""
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


def write_connection(folder: ServerFolder) -> None:
    """Flower's config.toml, which holds the server's address for its commands."""
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
    temporary.replace(folder.home / "config.toml")  # atomic: other commands may read it


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment plus the variables that `shown` prints."""
    return {**os.environ, **extra}


def shown(command: Sequence[str], extra: Mapping[str, str]) -> str:
    """A command with its environment, ready for a shell or a unit file."""
    return shlex.join([ENV, *(f"{key}={value}" for key, value in extra.items()), *command])


def call(command: Sequence[str], folder: ServerFolder, timeout: float = 60) -> dict[str, Any]:
    """Run a command of Flower that prints JSON; {"success": false, ...} if it failed.

    It runs in Flower's own folder: Flower looks for apps in the working directory, and may rewrite
    the pyproject.toml of one it finds. Its JSON has no colours, whatever FORCE_COLOR says, which
    notebooks and many build servers set.
    """
    write_connection(folder)
    try:
        done = subprocess.run(
            command,
            cwd=folder.home,
            env=environment({**server_environment(folder), "TERM": "dumb"}),
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
    """A port of this machine that is currently unused."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@dataclass(frozen=True)
class Node:
    """A key as registered with Flower."""

    number: str
    status: str  # registered, online, offline or unregistered


def registered(folder: ServerFolder) -> dict[str, Node]:
    """Every key that is or was registered, with its node."""
    from flwr.proto.control_pb2 import ListNodesResponse

    from fuels.federation.flower.pki import public_key_line

    nodes = _ask(folder, "list-nodes", ListNodesResponse).nodes_info
    return {
        key_of(public_key_line(bytes(node.public_key))): Node(str(node.node_id), str(node.status))
        for node in nodes
    }


def unfinished(folder: ServerFolder) -> dict[str, str]:
    """The runs that Flower has not finished, including those of others: number and status."""
    from flwr.proto.control_pb2 import ListRunsResponse

    runs = _ask(folder, "list-runs", ListRunsResponse).run_dict
    return {
        str(number): str(run.status.status)
        for number, run in runs.items()
        if run.status.status != OVER
    }


def stop(folder: ServerFolder, number: str) -> str:
    """Stop a run of Flower; returns "" or the reason why it was not stopped.

    `flwr stop` does the same, but takes many times as long to start.
    """
    from flwr.proto.control_pb2 import StopRunRequest, StopRunResponse

    try:
        request = StopRunRequest(run_id=int(number or 0)).SerializeToString()
        answer = _ask(folder, "stop-run", StopRunResponse, request)
    except FuelsError as error:
        return str(error)
    return "" if answer.success else "no reason given"


def _ask(folder: ServerFolder, what: str, kind: Any, content: bytes = b"") -> Any:
    import httpx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

    url = f"https://127.0.0.1:{folder.config.control_port}/v1/control/{what}"
    headers = {"content-type": PROTOBUF, "accept": PROTOBUF}
    try:
        context = ssl.create_default_context(cafile=str(folder.ca))
        answer = httpx.post(url, content=content, headers=headers, verify=context, timeout=30)
        answer.raise_for_status()
        return kind.FromString(answer.content)
    except (OSError, httpx.HTTPError, DecodeError) as error:
        raise FuelsError(f"the SuperLink does not answer ({what}): {error}") from None
