"""Starts and stops the processes of a server or a site, which do not outlive it."""

from __future__ import annotations

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

from fuels.data.sources import find_files, located
from fuels.errors import FuelsError
from fuels.federation.audit import fingerprint
from fuels.federation.flower import commands, database
from fuels.federation.flower.access import check_access
from fuels.federation.flower.child_process import bind_to_parent
from fuels.federation.flower.folders import ServerFolder, SiteFolder, key_of, log, set_up_log
from fuels.federation.flower.records import audit
from fuels.version import __version__

ENDING = 60.0  # seconds that a stopped run, or a process, has to end
LOOK = 0.2  # seconds between two checks of a server's processes
SHORTEST, LONGEST = 1.0, 10.0  # seconds before a SuperNode that ended is started again
STOPPING = 20.0  # seconds that a process of a demo has to end
ACCESS_EVERY = 15.0  # seconds between two questions of a site whether it is let in
CLOCK = 2.0  # seconds that the clocks may differ without a warning
LAUNCH = [*commands.MODULE, "fuels.federation.flower.processes"]


def run_server(folder: ServerFolder) -> None:
    """Run the SuperLink, the gateway and the supervisor until a signal arrives or one of them ends.

    If one ends, the others are stopped and a FuelsError names it, because a server with a missing
    part could pass for a working one. A service manager then restarts all parts, and an interrupted
    run continues.
    """
    parts = {
        "SuperLink": commands.superlink(folder),
        "gateway": commands.gateway(folder),
        "supervisor": commands.supervisor(folder),
    }
    need_ports(folder)
    folder.state.mkdir(parents=True, exist_ok=True)
    database.check(folder.database)
    database.shrink(folder.database)
    audit(folder).add("server started", version=__version__)
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
                        f"the {name} ended (status {child.returncode}), so the server stops; for"
                        f" the reason see the lines above or {folder.state}/supervisor.log"
                    )
    finally:
        (folder.state / "ready").unlink(missing_ok=True)
        end(list(reversed(running.values())))  # the supervisor first: it resumes what ends


def begin(
    command: list[str], environment: Mapping[str, str], pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start a process in a new group; it does not outlive this one."""
    return subprocess.Popen(
        command,
        env=environment,
        pass_fds=pass_fds,
        start_new_session=True,
        preexec_fn=bind_to_parent,
    )


def need_ports(folder: ServerFolder) -> None:
    """Refuse a port that is in use, before the SuperLink or the gateway fails on it."""
    config = folder.config
    for key, host, port in (
        ("port", config.host, config.port),
        ("control_port", "127.0.0.1", config.control_port),
        ("metrics_port", "127.0.0.1", config.metrics_port),  # 0: none, which is always free
    ):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                reason = error.strerror or str(error)
                raise FuelsError(
                    f"{folder.config_file}: cannot listen on {key} {port} of {host}"
                    f" ({reason.lower()}); is this server already running?"
                ) from None


def end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Terminate processes together and wait; those that do not end in time are killed."""
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
    """Kill a process and everything that it left running in its group."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def run_site(folder: SiteFolder, data: str) -> None:
    """Run the SuperNode and the worker, restarting them when they end, until a signal arrives.

    A SuperNode gives up if the server does not know its key yet, and both may be killed. They end
    with this process; the SuperNode also inherits the lock, so that a site is never started twice
    where the kernel cannot end them.
    """
    from fuels.federation.flower.dispatcher import Dispatcher  # imports Flower: a server need not

    data = site_data(folder, data)
    folder.home.mkdir(parents=True, exist_ok=True)
    environment = commands.environment(commands.site_environment(folder))
    with (folder.state / "site.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FuelsError(f"{folder.path}: this site is already running") from None
        public = folder.public_key.read_text() if folder.public_key.is_file() else ""
        key = fingerprint(key_of(public)) if public else "not in the folder"
        audit(folder).add("site started", version=__version__, key=key)

        dispatcher = Dispatcher(folder)

        def supernode() -> subprocess.Popen[bytes]:
            port = commands.free_port()
            command = commands.supernode(folder, data, port)
            child = begin(command, environment, pass_fds=[lock.fileno()])
            dispatcher.port = port
            (folder.state / "supernode.pid").write_text(str(child.pid))
            return child

        def worker() -> subprocess.Popen[bytes]:
            return begin(commands.worker(folder), environment)

        kept = [
            RestartedProcess("worker", worker),
            RestartedProcess("SuperNode", supernode, lambda: explain(folder)),
        ]
        stopping = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        if port := folder.config.metrics_port:
            start_metrics(port, folder, kept)
        for process in kept:
            process.start()
        dispatcher.start()
        threading.Thread(target=end_refused, args=(folder, kept[1], stopping), daemon=True).start()
        stopping.wait()
        stop(kept)


def start_metrics(port: int, folder: SiteFolder, kept: Sequence[RestartedProcess]) -> None:
    from fuels.federation.flower import metrics  # loads NumPy, which a server's own process lacks

    def parts() -> dict[str, bool]:
        return {each.name: each.child is not None and each.child.poll() is None for each in kept}

    metrics.start(
        port,
        lambda: metrics.site_metrics(folder, parts()),
        lambda: metrics.site_health(parts()),
        folder.config_file,
    )


def explain(folder: SiteFolder) -> None:
    """Log why the server refuses this site, if it does, and a clock that differs from its own."""
    try:
        reason, ahead = check_access(folder)
    except (FuelsError, OSError, ValueError) as error:
        log.warning("%s", error)
        return
    if reason:
        log.error("the server at %s refuses this site: %s", folder.config.server, reason)
    if abs(ahead) > CLOCK:
        side = "ahead of" if ahead > 0 else "behind"
        log.warning("this clock is %.0f s %s the server's", abs(ahead), side)


def end_refused(folder: SiteFolder, supernode: RestartedProcess, stopping: threading.Event) -> None:
    """Kill a SuperNode that the server refuses: by itself it would neither go on nor end.

    It is restarted, which shows the reason, until it is let in again.
    """
    while not stopping.wait(ACCESS_EVERY):
        try:
            reason, _ = check_access(folder)
        except (FuelsError, OSError, ValueError):  # the SuperNode itself keeps trying
            continue
        child = supernode.child
        if reason and child is not None and child.poll() is None:
            kill_group(child)


class RestartedProcess(threading.Thread):
    """A process that is restarted after a pause when it ends, until it is stopped."""

    def __init__(
        self,
        name: str,
        begin: Callable[[], subprocess.Popen[bytes]],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.begin, self.ended = begin, ended
        self.child: subprocess.Popen[bytes] | None = None
        self.stopping, self.lock = threading.Event(), threading.Lock()

    def run(self) -> None:
        pause = SHORTEST
        while True:
            with self.lock:  # so that `stop` misses none
                if self.stopping.is_set():
                    return
                child = self.child = self.begin()
            began = time.monotonic()
            status = child.wait()
            kill_group(child)
            if not self.stopping.is_set():
                pause = SHORTEST if time.monotonic() - began > LONGEST else min(2 * pause, LONGEST)
                log.warning(
                    "the %s ended (status %d): restarting it in %g s", self.name, status, pause
                )
                self.ended()
                self.stopping.wait(pause)


def stop(kept: Sequence[RestartedProcess]) -> None:
    """Stop these processes together; none is restarted."""
    for process in kept:
        with process.lock:
            process.stopping.set()
    end([process.child for process in kept if process.child is not None])
    for process in kept:
        process.join()


def site_data(folder: SiteFolder, data: str) -> str:
    """The data source as passed to the SuperNode; it must exist."""
    if data and not data.startswith("synthetic:"):
        data = located(data)
    source = folder.config_for(data).data.source
    if not source.startswith("synthetic:"):
        find_files(source)
    return data


def main() -> None:
    """`server DIR` or `site DIR [DATA]`: what the commands of the same names do."""
    set_up_log()
    kind, folder, *data = sys.argv[1:]
    try:
        if kind == "server":
            run_server(ServerFolder(Path(folder)))
        else:
            run_site(SiteFolder(Path(folder)), data[0] if data else "")
    except FuelsError as error:
        log.error("%s", error)
        sys.exit(1)


class Processes:
    """The processes of a federation on this machine, each with its own log file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self.root / f"{name}.log").open("ab") as log:
            process = subprocess.Popen([*LAUNCH, *arguments], stdout=log, stderr=log)
        self.running[name] = process
        return process

    def check(self) -> None:
        """Raise an error if one of them has ended."""
        for name, process in self.running.items():
            if process.poll() is not None:
                raise FuelsError(f"{name} ended; for the reason see {self.root / f'{name}.log'}")

    def stop(self) -> None:
        """Stop them all, sites before the server, and wait for the processes that they started.

        Flower's own processes exit when they notice that their parent has ended.
        """
        below = [number for p in self.running.values() for number in descendants(p.pid)]
        for process in reversed(self.running.values()):
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(STOPPING)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        end = time.monotonic() + STOPPING
        while any(is_alive(number) for number in below) and time.monotonic() < end:
            time.sleep(0.1)


def descendants(parent: int) -> list[int]:
    """The ids of all processes below one, nearest first; none on systems without /proc."""
    found: list[int] = []
    for tasks in Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            below = tasks.read_text().split()
        except OSError:  # it has just ended
            continue
        for child in map(int, below):
            found += [child, *descendants(child)]
    return found


def is_alive(number: int) -> bool:
    """Whether there is such a process; a zombie does not count."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


if __name__ == "__main__":
    main()
