"""The processes of a server: all of them or none, and a word about which one ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fuels.errors import FuelsError
from fuels.federation.flower import commands, processes
from fuels.federation.flower.folders import ServerFolder, SiteFolder
from fuels.federation.flower.processes import LAUNCH, descendants, is_alive
from fuels.federation.flower.provisioning import provision
from helpers.cluster import kill

pytest.importorskip("flwr")
STAYS = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"


@pytest.fixture
def server(tmp_path: Path) -> ServerFolder:
    port = commands.free_port()
    provision(
        tmp_path / "fed", "fed", ["north"], "127.0.0.1", port, control_port=commands.free_port()
    )
    return ServerFolder(tmp_path / "fed")


@pytest.fixture
def parts(server: ServerFolder, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Stand-ins for the three processes, which write down their ids; tests may replace one."""
    chosen = {
        name: [sys.executable, "-c", STAYS, str(server.state / f"{name}.pid")]
        for name in ("superlink", "gateway", "supervisor")
    }
    for name in chosen:
        monkeypatch.setattr(commands, name, lambda _, name=name: chosen[name])
    return chosen


def ids(server: ServerFolder, names: list[str]) -> list[int]:
    files = [server.state / f"{name}.pid" for name in names]
    wait(lambda: all(file.exists() and file.read_text() for file in files))
    return [int(file.read_text()) for file in files]


def wait(what: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


@pytest.mark.parametrize("name", ["superlink", "gateway", "supervisor"])
def test_one_that_ends_is_named_and_ends_the_others(
    server: ServerFolder, parts: dict[str, list[str]], name: str
) -> None:
    others = [other for other in parts if other != name]
    waiting = f"import pathlib, time; d = pathlib.Path({str(server.state)!r})\n"
    for other in others:
        waiting += f"while not (d / '{other}.pid').exists(): time.sleep(0.05)\n"
    parts[name] = [sys.executable, "-c", f"{waiting}raise SystemExit(7)"]
    shown = "SuperLink" if name == "superlink" else name
    with pytest.raises(FuelsError, match=rf"the {shown} ended \(status 7\)"):
        processes.run_server(server)
    assert not any(is_alive(number) for number in ids(server, others))


def test_told_to_stop_it_ends_all_without_an_error(
    server: ServerFolder, parts: dict[str, list[str]]
) -> None:
    def stop() -> None:
        ids(server, list(parts))
        (server.state / "ready").touch()
        os.kill(os.getpid(), signal.SIGTERM)

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    thread = threading.Thread(target=stop)
    thread.start()
    try:
        processes.run_server(server)
    finally:
        thread.join()
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)
    assert not any(is_alive(number) for number in ids(server, list(parts)))
    assert not (server.state / "ready").exists()  # nobody takes it for one that is there


def test_those_that_do_not_end_are_killed_with_all_they_started_after_one_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    inner = deaf + STAYS
    outer = f"{deaf}subprocess.run([sys.executable, '-c', {inner!r}, sys.argv[1]])"
    files = [tmp_path / "one", tmp_path / "two"]
    children = [processes.begin([sys.executable, "-c", outer, str(f)], os.environ) for f in files]
    wait(lambda: all(file.exists() and file.read_text() for file in files))
    monkeypatch.setattr(processes, "ENDING", 2.0)
    began = time.monotonic()
    processes.end(children)
    assert 2.0 <= time.monotonic() - began < 3.9  # not one wait after the other
    assert [child.returncode for child in children] == [-signal.SIGKILL] * 2
    wait(lambda: not any(is_alive(int(file.read_text())) for file in files), 5)


def test_a_site_that_is_told_to_stop_kills_what_does_not(
    server: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = SiteFolder(server.path.parent / "sites" / "north")
    files = [site.path / "supernode.id", site.path / "worker.id"]
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + STAYS
    for name, script, file in zip(("supernode", "worker"), (deaf, STAYS), files, strict=True):
        command = [sys.executable, "-c", script, str(file)]
        monkeypatch.setattr(commands, name, lambda *_, command=command: command)
    monkeypatch.setattr(processes, "ENDING", 1.0)

    def stop() -> None:
        wait(lambda: all(file.exists() and file.read_text() for file in files))
        os.kill(os.getpid(), signal.SIGTERM)

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    thread = threading.Thread(target=stop)
    thread.start()
    try:
        processes.run_site(site, "synthetic:tiny")
    finally:
        thread.join()
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)
    assert not any(is_alive(int(file.read_text())) for file in files)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel offers nothing like it")
def test_a_program_that_is_not_ours_does_not_outlive_the_server(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time\n"
        "from fuels.federation.flower.processes import bind_to_parent\n"
        f"command = [sys.executable, '-c', {STAYS!r}, {str(tmp_path / 'pid')!r}]\n"
        "subprocess.Popen(command, start_new_session=True, preexec_fn=bind_to_parent)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script])
    file = tmp_path / "pid"
    wait(lambda: file.exists() and bool(file.read_text()))
    child = int(file.read_text())
    assert is_alive(child)
    parent.kill()
    parent.wait()
    wait(lambda: not is_alive(child), 5)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel offers nothing like it")
def test_what_a_site_started_does_not_outlive_it(server: ServerFolder) -> None:
    """Only `fuels site start` itself is killed; stand-ins take the place of what it starts."""
    site = server.path.parent / "sites" / "north"
    script = (
        "import sys; from pathlib import Path\n"
        "from fuels.federation.flower import commands, folders, processes\n"
        f"stays = [sys.executable, '-c', {STAYS!r}]\n"
        f"commands.supernode = lambda *_: [*stays, {str(site / 'supernode.id')!r}]\n"
        f"commands.worker = lambda *_: [*stays, {str(site / 'worker.id')!r}]\n"
        f"processes.run_site(folders.SiteFolder(Path({str(site)!r})), 'synthetic:tiny')\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script])
    files = [site / "supernode.id", site / "worker.id"]
    try:
        wait(lambda: all(file.exists() and file.read_text() for file in files))
        below = [int(file.read_text()) for file in files]
        assert all(is_alive(number) for number in below)
    finally:
        parent.kill()
        parent.wait()
    wait(lambda: not any(is_alive(number) for number in below), 5)


@pytest.mark.parametrize("key", ["port", "control_port"])
def test_a_port_that_is_in_use_is_named(server: ServerFolder, key: str) -> None:
    port = getattr(server.config, key)
    with socket.create_server(("127.0.0.1", port)):
        result = subprocess.run([*LAUNCH, "server", str(server.path)], capture_output=True,
                                text=True, timeout=120)  # fmt: skip
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert f"cannot listen on {key} {port} of 127.0.0.1 (address already" in result.stderr


def test_an_address_of_another_machine_is_named(server: ServerFolder) -> None:
    text = server.config_file.read_text()
    server.config_file.write_text(text.replace('host = "127.0.0.1"', 'host = "192.0.2.1"'))
    with pytest.raises(FuelsError, match=r"cannot listen on port \d+ of 192\.0\.2\.1"):
        processes.run_server(server)


def runs(number: int, name: str) -> bool:
    """Whether a process is that program; one that has just ended is none."""
    try:
        text = Path(f"/proc/{number}/cmdline").read_text()
    except OSError:
        return False
    program = "".join(text.split("\0")[1:2])
    return name in program or f"fuels.federation.flower.{name}" in text


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("processes", ("flwr", "numpy", "polars", "torch")),
        ("gateway", ("polars", "torch")),
        ("supervisor", ("polars", "torch")),
        ("supernode", ("polars", "torch")),
        ("dispatcher", ("polars", "torch")),
    ],
)
def test_processes_that_only_pass_messages_on_load_no_large_libraries(
    module: str, without: tuple[str, ...]
) -> None:
    code = f"import sys, fuels.federation.flower.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert f"fuels.federation.flower.{module}" in loaded
    assert not loaded & set(without)


@pytest.mark.operations
@pytest.mark.parametrize("name", ["gateway", "supervisor", "flower-superlink"])
def test_a_real_one_that_is_killed_ends_the_server(server: ServerFolder, name: str) -> None:
    log = server.path / "output"
    with log.open("w") as file:
        process = subprocess.Popen([*LAUNCH, "server", str(server.path)], stdout=file, stderr=file)
    try:
        wait(lambda: (server.state / "ready").exists(), 120)
        below = descendants(process.pid)
        (number,) = [n for n in below if runs(n, name)]
        kill(number)
        assert process.wait(90) == 1
    finally:
        if process.poll() is None:
            kill(process.pid)
            process.wait()
    shown = "SuperLink" if name == "flower-superlink" else name
    assert f"the {shown} ended (status -9)" in log.read_text()
    wait(lambda: not any(is_alive(n) for n in below), 30)
