"""Starts the process that runs the rounds, in place of Flower's own process for that alone."""

from __future__ import annotations

import subprocess
import threading
import time

import httpx
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

from fuels.errors import FuelsError
from fuels.federation.flower import commands
from fuels.federation.flower.child_process import bind_to_parent
from fuels.federation.flower.folders import ServerFolder, log
from fuels.federation.flower.runs import is_listening

POLL = 0.5  # seconds between two looks for a run
NAME = "fuels-supervisor"  # to the SuperLink


class Launcher(threading.Thread):
    """Starts a ServerApp for every run that the SuperLink has accepted."""

    def __init__(self, folder: ServerFolder) -> None:
        super().__init__(name="launcher", daemon=True)
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []

    def run(self) -> None:
        while not is_listening(self.folder):
            time.sleep(POLL)
        client = RuntimeHttpClient.from_server_address(
            server_address=f"127.0.0.1:{self.folder.config.control_port}",
            insecure=False,
            root_certificates=self.folder.ca.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name=NAME)],
        )
        request = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        while True:
            self.started = [child for child in self.started if child.poll() is None]  # no zombies
            try:
                found = client.AcquireTask(request)
                if found.HasField("task") and found.token:
                    self.start_app(found.token)
            except httpx.HTTPError as error:
                log.warning("the SuperLink does not say which runs wait: %s", error)
            except (FuelsError, OSError) as error:
                log.error("the rounds cannot be run: %s", error)
            time.sleep(POLL)

    def start_app(self, token: str) -> None:
        child = subprocess.Popen(
            commands.server_app(self.folder, token),
            stdout=subprocess.DEVNULL,  # its log is server.log
            stderr=subprocess.DEVNULL,
            preexec_fn=bind_to_parent,
        )
        self.started.append(child)
