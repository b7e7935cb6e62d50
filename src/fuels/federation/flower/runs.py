"""The current run of a server: create it, submit it to Flower, and check whether it is running."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import socket
import time
from typing import Any

from fuels.config import Engine, Settings
from fuels.errors import FuelsError
from fuels.federation.flower import commands, flower_app
from fuels.federation.flower.flower_app import update_app
from fuels.federation.flower.folders import ServerFolder
from fuels.privacy.sensitivity import Unit
from fuels.storage.config_file import read_config, write_toml

CONFIG, SUMMARY = "config.toml", "summary.json"  # of a run folder
ENDING = 60.0  # seconds that a stopped run has to end
ACTIVE = ("running", "submitted")  # states of a run that is not over


class Current:
    """The server's current run, for its operator and for the supervisor, which resumes it."""

    def __init__(self, folder: ServerFolder) -> None:
        self.path = folder.current

    def read(self) -> dict[str, Any]:
        if not self.path.exists():
            return {}
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise FuelsError(f"{self.path}: damaged; delete it to start a new run")
        return found

    def write(self, **changes: Any) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps({**self.read(), **changes}, indent=2) + "\n")
        temporary.replace(self.path)


def submit(folder: ServerFolder) -> str:
    """Submit the current run to Flower; returns "" or the reason why it was not accepted."""
    current = Current(folder)
    run = current.read()["run"]
    update_app(folder)
    config = str(folder.runs / run / "flower.toml")
    answer = commands.call(commands.start_run(folder, config), folder)
    if not answer.get("success"):
        return str(answer.get("error-message", "no reason given"))
    current.write(flower_run=str(answer["run-id"]))
    return ""


def is_live(folder: ServerFolder, run: str) -> bool:
    """Whether this run is current and its live series is what was started last."""
    found = Current(folder).read()
    return found.get("run") == run and bool(found.get("live"))


def is_busy(folder: ServerFolder) -> bool:
    """Whether a process is running the rounds at this moment."""
    if not folder.busy.exists():
        return False
    with folder.busy.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def current_run(folder: ServerFolder) -> dict[str, Any]:
    """The current run; if its folder is missing, the run is marked as failed."""
    current = Current(folder)
    found = current.read()
    if found.get("state") not in ACTIVE:
        return found
    missing = not (folder.runs / str(found["run"]) / "flower.toml").is_file()
    if missing and not is_busy(folder):
        current.write(state="failed", reason=gone(folder, str(found["run"])))
    return current.read()


def gone(folder: ServerFolder, run: str) -> str:
    return f"{folder.runs / run} is missing, so this run cannot continue: start a new one"


def is_listening(folder: ServerFolder) -> bool:
    """Whether the SuperLink and its gateway accept connections."""
    config = folder.config
    host = "127.0.0.1" if config.host == "0.0.0.0" else config.host
    try:
        for address in (("127.0.0.1", config.control_port), (host, config.port)):
            socket.create_connection(address, timeout=2).close()
    except OSError:
        return False
    return True


def need_server(folder: ServerFolder) -> None:
    """Refuse a run that no server would receive, before its folder is created."""
    if not is_listening(folder):
        raise FuelsError(
            f"the server does not answer: start it with fuels server start {folder.path}"
        )


def new_run(folder: ServerFolder, settings: Settings) -> str:
    """Write a new run's folder and make it the current one; returns its name."""
    found = current_run(folder)
    if found.get("state") in ACTIVE:
        raise FuelsError(
            f"run {found['run']} is not finished: stop it with fuels federation stop, or continue"
            " it with fuels federation run --resume"
        )
    while True:
        moment = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
        run = f"{settings.method}-{moment}"
        if not (folder.runs / run).exists():
            break
        time.sleep(0.1)  # a run was started within this second
    (folder.runs / run).mkdir(parents=True)
    write_toml(folder.runs / run / CONFIG, settings, Engine())
    flower_app.write_run_config(folder.runs / run / "flower.toml", run, settings)
    Current(folder).write(run=run, state="submitted", reason="", flower_run="", live=False)
    return run


def start(folder: ServerFolder, *, live: bool = False) -> None:
    """Submit the current run, or its live series, unless it is in progress."""
    if is_busy(folder) and Current(folder).read().get("state") == "running":
        return
    end = time.monotonic() + ENDING
    while is_busy(folder):  # a run that was stopped a moment ago
        if time.monotonic() > end:
            raise FuelsError(f"{folder.path}: the previous run is still ending; try again later")
        time.sleep(0.2)
    Current(folder).write(state="submitted", reason="", live=live)
    reason = submit(folder)
    if reason:
        Current(folder).write(state="failed", reason=reason)
        raise FuelsError(f"Flower did not accept the run: {reason}")


def stop(folder: ServerFolder, reason: str) -> None:
    """Stop the current run or its live series, which is in progress."""
    number = str(Current(folder).read().get("flower_run", ""))
    Current(folder).write(state="stopped", reason=reason)
    refused = commands.stop(folder, number)
    if refused and is_busy(folder):  # it may have ended in the meantime
        raise FuelsError(f"Flower did not stop the run: {refused}")


def start_live(folder: ServerFolder) -> str:
    """Start the live series of the current run, unless it is in progress; returns its run."""
    found = current_run(folder)
    run = str(found.get("run", ""))
    if not run:
        raise FuelsError(f"{folder.path}: there is no run yet: start one with fuels federation run")
    if found.get("state") not in ACTIVE or not found.get("live"):
        if found.get("state") in ACTIVE:
            raise FuelsError(f"run {run} is in progress; start the series when it has finished")
        path = folder.runs / run
        if not (path / SUMMARY).is_file():
            raise FuelsError(f"run {run} is not finished: continue it with --resume")
        settings = read_config(path / CONFIG)[0]
        if settings.privacy.epsilon and settings.privacy.unit == Unit.CLIENT:
            raise FuelsError(
                f"run {run} has no budget for a live series: with privacy.unit = client, each step"
                " would spend it again"
            )
        if not settings.sharing.live_mean:
            raise FuelsError(
                f"run {run} was trained without sharing.live_mean, so its forecasts would not use a"
                " live mean"
            )
    start(folder, live=True)
    return run


def revoked(site: str) -> str:
    """The message about a key that was removed from server.toml and added again."""
    return (
        f"site {site} cannot connect: its key was revoked, and Flower never accepts a revoked key"
        " again; create a new one at the site with fuels site renew-key and register it at the"
        " server with fuels server admit"
    )
