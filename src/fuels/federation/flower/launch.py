"""Starting the two kinds of processes of a federation, and handing a run to it."""

from __future__ import annotations

import datetime
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from fuels.config import Engine, Settings, write_toml
from fuels.errors import FuelsError
from fuels.federation.flower import commands
from fuels.federation.flower.parties import Current, ServerFolder, SiteFolder, log, set_up_log
from fuels.federation.flower.steward import is_busy, submit

ENDING = 60.0  # seconds that a stopped run has to end
SHORTEST, LONGEST = 1.0, 10.0  # seconds before a SuperNode that ended is started again


def become_server(folder: ServerFolder) -> NoReturn:
    """Turn this process into the SuperLink, with its door and its steward beside it."""
    command, extra = commands.superlink(folder), commands.server_environment(folder)
    folder.state.mkdir(parents=True, exist_ok=True)
    (folder.state / "ready").unlink(missing_ok=True)
    environment = commands.environment(extra)
    for beside in (commands.door(folder), commands.steward(folder)):
        subprocess.Popen(beside, env=environment)
    os.execve(command[0], command, environment)


def keep_site(folder: SiteFolder, data: str) -> None:
    """Run the SuperNode and the clerk, and start them again when they end, until told to stop.

    A SuperNode gives up when the server does not know its key yet, and both may be killed. The
    lock is inherited by the SuperNode, so that a site is never started twice, even if this process
    is killed.
    """
    data = site_data(folder, data)
    folder.home.mkdir(parents=True, exist_ok=True)
    environment = commands.environment(commands.site_environment(folder))
    with (folder.state / "site.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FuelsError(f"{folder.path}: this site is already running") from None

        def supernode() -> subprocess.Popen[bytes]:
            command = commands.supernode(folder, data, commands.free_port())
            child = subprocess.Popen(
                command, env=environment, pass_fds=[lock.fileno()], start_new_session=True
            )
            (folder.state / "supernode.pid").write_text(str(child.pid))
            return child

        def clerk() -> subprocess.Popen[bytes]:
            return subprocess.Popen(commands.clerk(folder), env=environment, start_new_session=True)

        kept = [Kept("clerk", clerk), Kept("SuperNode", supernode)]
        stopping = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        for process in kept:
            process.start()
        stopping.wait()
        for process in kept:
            process.stop()


class Kept(threading.Thread):
    """A process that is started again when it ends, after a pause, until it is stopped."""

    def __init__(self, name: str, begin: Callable[[], subprocess.Popen[bytes]]) -> None:
        super().__init__(name=name, daemon=True)
        self.begin = begin
        self.child: subprocess.Popen[bytes] | None = None
        self.stopping, self.lock = threading.Event(), threading.Lock()

    def run(self) -> None:
        pause = SHORTEST
        while True:
            with self.lock:  # so that none is started behind the back of `stop`
                if self.stopping.is_set():
                    return
                child = self.child = self.begin()
            began = time.monotonic()
            status = child.wait()
            with suppress(ProcessLookupError):  # what it started and left behind, in its own group
                os.killpg(child.pid, signal.SIGKILL)
            if not self.stopping.is_set():
                pause = SHORTEST if time.monotonic() - began > LONGEST else min(2 * pause, LONGEST)
                log.warning("the %s ended (status %d): again in %g s", self.name, status, pause)
                self.stopping.wait(pause)

    def stop(self) -> None:
        with self.lock:
            self.stopping.set()
            if self.child is not None:
                self.child.terminate()
        self.join()


def site_data(folder: SiteFolder, data: str) -> str:
    """The data source as the SuperNode gets it, checked to be there."""
    if data and not data.startswith("synthetic:"):
        data = str(Path(data).resolve())
    source = folder.config_for(data).data.source
    if not source.startswith("synthetic:") and not Path(source).exists():
        raise FuelsError(f"{source}: no such data file")
    return data


def new_run(folder: ServerFolder, settings: Settings) -> str:
    """Write a new run's folder and make it the current one; returns its name."""
    found = Current(folder).read()
    if found.get("state") in ("running", "submitted"):
        raise FuelsError(
            f"run {found['run']} is not finished: stop it with fuels federation stop, or let it go"
            " on with fuels federation run --resume"
        )
    moment = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    run = f"{settings.method}-{moment}"
    (folder.runs / run).mkdir(parents=True)
    write_toml(folder.runs / run / "config.toml", settings, Engine())
    commands.write_run_config(folder.runs / run / "flower.toml", run, settings)
    Current(folder).write(run=run, state="submitted", reason="", flower_run="")
    return run


def start(folder: ServerFolder) -> None:
    """Submit the current run, unless it is at work."""
    if is_busy(folder) and Current(folder).read().get("state") == "running":
        return
    end = time.monotonic() + ENDING
    while is_busy(folder):  # a run that was stopped a moment ago
        if time.monotonic() > end:
            raise FuelsError(f"{folder.path}: the run before has not ended yet; try again later")
        time.sleep(0.2)
    Current(folder).write(state="submitted", reason="")
    reason = submit(folder)
    if reason:
        Current(folder).write(state="failed", reason=reason)
        raise FuelsError(f"the server did not take the run: {reason}")


def main() -> None:
    """`server DIR` or `site DIR [DATA]`: what the commands of the same names do."""
    set_up_log()
    kind, folder, *data = sys.argv[1:]
    if kind == "server":
        become_server(ServerFolder(Path(folder)))
    keep_site(SiteFolder(Path(folder)), data[0] if data else "")


if __name__ == "__main__":
    main()
