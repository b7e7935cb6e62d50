"""Starting the two kinds of processes of a federation, and handing a run to it."""

from __future__ import annotations

import datetime
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fuels.config import Engine, Settings, write_toml
from fuels.errors import FuelsError
from fuels.federation.flower import commands
from fuels.federation.flower.lifeline import bind_to_parent
from fuels.federation.flower.parties import Current, ServerFolder, SiteFolder, log, set_up_log
from fuels.federation.flower.steward import ACTIVE, is_busy, is_listening, standing, submit

ENDING = 60.0  # seconds that a stopped run, or a process, has to end
LOOK = 0.2  # seconds between two looks at the parts of a server
SHORTEST, LONGEST = 1.0, 10.0  # seconds before a SuperNode that ended is started again


def keep_server(folder: ServerFolder) -> None:
    """Run the SuperLink, its door and its steward until told to stop, or until one of them ends.

    Then the others are ended too, and FuelsError says which one it was: half a server would look
    like a whole one. A service manager starts all of it again, and an interrupted run goes on.
    """
    parts = {
        "SuperLink": commands.superlink(folder),
        "door": commands.door(folder),
        "steward": commands.steward(folder),
    }
    need_ports(folder)
    folder.state.mkdir(parents=True, exist_ok=True)
    (folder.state / "ready").unlink(missing_ok=True)
    environment = commands.environment(commands.server_environment(folder))
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in parts.items():
            running[name] = begin(command, environment)
        while not stopping.wait(LOOK):
            for name, child in running.items():
                if child.poll() is not None:
                    raise FuelsError(
                        f"the {name} ended (status {child.returncode}) and the server with it: the"
                        f" lines before this one, or {folder.state}/steward.log, say why"
                    )
    finally:
        (folder.state / "ready").unlink(missing_ok=True)
        end(list(reversed(running.values())))  # the steward first: it takes up what ends


def begin(
    command: list[str], environment: Mapping[str, str], pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start a process with a group of its own, which does not outlive this one."""
    return subprocess.Popen(
        command,
        env=environment,
        pass_fds=pass_fds,
        start_new_session=True,
        preexec_fn=bind_to_parent,
    )


def need_ports(folder: ServerFolder) -> None:
    """Refuse in words what would end the SuperLink or the door a moment later."""
    config = folder.config
    for key, host, port in (
        ("port", config.host, config.port),
        ("control_port", "127.0.0.1", config.control_port),
    ):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                reason = error.strerror or str(error)
                raise FuelsError(
                    f"{folder.config_file}: {key} {port} on {host} cannot be listened on"
                    f" ({reason.lower()}); does this server run already?"
                ) from None


def end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask processes to end, all at once, and wait; those that do not in time are killed."""
    for child in children:
        child.terminate()
    latest = time.monotonic() + ENDING
    for child in children:
        try:
            child.wait(max(0.0, latest - time.monotonic()))
        except subprocess.TimeoutExpired:
            kill_group(child)
            child.wait()


def kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kill a process with all that it started and left behind, in its own group."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def keep_site(folder: SiteFolder, data: str) -> None:
    """Run the SuperNode and the clerk, and start them again when they end, until told to stop.

    A SuperNode gives up when the server does not know its key yet, and both may be killed. If this
    process is, they end with it; the SuperNode inherits the lock besides, so that a site is never
    started twice where the kernel cannot do that.
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
            child = begin(command, environment, pass_fds=[lock.fileno()])
            (folder.state / "supernode.pid").write_text(str(child.pid))
            return child

        def clerk() -> subprocess.Popen[bytes]:
            return begin(commands.clerk(folder), environment)

        kept = [Kept("clerk", clerk), Kept("SuperNode", supernode)]
        stopping = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        for process in kept:
            process.start()
        stopping.wait()
        stop(kept)


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
            kill_group(child)
            if not self.stopping.is_set():
                pause = SHORTEST if time.monotonic() - began > LONGEST else min(2 * pause, LONGEST)
                log.warning("the %s ended (status %d): again in %g s", self.name, status, pause)
                self.stopping.wait(pause)


def stop(kept: Sequence[Kept]) -> None:
    """End what is kept, all at once, and start none of it again."""
    for process in kept:
        with process.lock:
            process.stopping.set()
    end([process.child for process in kept if process.child is not None])
    for process in kept:
        process.join()


def site_data(folder: SiteFolder, data: str) -> str:
    """The data source as the SuperNode gets it, checked to be there."""
    if data and not data.startswith("synthetic:"):
        data = str(Path(data).resolve())
    source = folder.config_for(data).data.source
    if not source.startswith("synthetic:") and not Path(source).exists():
        raise FuelsError(f"{source}: no such data file")
    return data


def need_server(folder: ServerFolder) -> None:
    """Refuse in words what nobody would take, before there is a run that waits for it."""
    if not is_listening(folder):
        raise FuelsError(f"the server does not answer: fuels server start {folder.path}")


def new_run(folder: ServerFolder, settings: Settings) -> str:
    """Write a new run's folder and make it the current one; returns its name."""
    found = standing(folder)
    if found.get("state") in ACTIVE:
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
    try:
        if kind == "server":
            keep_server(ServerFolder(Path(folder)))
        else:
            keep_site(SiteFolder(Path(folder)), data[0] if data else "")
    except FuelsError as error:
        log.error("%s", error)
        sys.exit(1)


if __name__ == "__main__":
    main()
