"""A server that came back without runs/, and runs that plain `flwr run` submitted."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuels.config import Settings
from fuels.errors import FuelsError
from fuels.federation.flower import commands, runs, status, supervisor
from fuels.federation.flower.folders import ServerFolder
from fuels.federation.flower.provisioning import provision
from fuels.federation.flower.runs import Current
from fuels.federation.flower.server import refuse, serve
from helpers.flower_world import World, fuels, settings

pytest.importorskip("flwr")


@pytest.fixture
def server(tmp_path: Path) -> ServerFolder:
    provision(tmp_path / "metro", "metro", ["north"], "127.0.0.1", commands.free_port(),
          control_port=commands.free_port())  # fmt: skip
    return ServerFolder(tmp_path / "metro")


def hurry(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    """A supervisor that looks every 100 seconds, at a server that listens."""
    now = iter(range(0, 10**6, 100))
    monkeypatch.setattr(supervisor.time, "sleep", sleep)
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: next(now))
    monkeypatch.setattr(supervisor, "is_listening", lambda _: True)
    monkeypatch.setattr(supervisor, "register_keys", lambda _: True)


@pytest.mark.parametrize("was", ["running", "submitted"])
def test_a_run_whose_folder_is_gone_is_over(server: ServerFolder, was: str) -> None:
    run = runs.new_run(server, Settings())
    Current(server).write(state=was)
    shutil.rmtree(server.runs)
    told = json.loads(fuels("federation", "status", server.path, "--json").stdout)
    assert (told["run"], told["state"], told["round"], told["rounds"]) == (run, "failed", 0, 0)
    assert "cannot continue: start a new one" in told["reason"]
    with pytest.raises(FuelsError, match="is missing, so this run cannot continue"):
        fuels("federation", "run", server.path, "--resume")
    with pytest.raises(FuelsError, match="no run is in progress"):
        fuels("federation", "stop", server.path)


def test_without_its_folder_a_run_does_not_stand_in_the_way_of_a_new_one(
    server: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.new_run(server, Settings())
    shutil.rmtree(server.runs)
    monkeypatch.setattr(runs, "is_listening", lambda _: True)
    monkeypatch.setattr(commands, "call", lambda *_: {"success": True, "run-id": "1"})
    fuels("federation", "run", server.path, "--detach")
    assert Current(server).read()["state"] == "submitted"


def test_without_a_server_no_run_is_left_behind(server: ServerFolder) -> None:
    with pytest.raises(
        FuelsError, match="the server does not answer: start it with fuels server start "
    ):
        fuels("federation", "run", server.path, "--detach")
    assert not server.runs.exists() and Current(server).read() == {}
    runs.new_run(server, Settings())
    Current(server).write(state="stopped")
    with pytest.raises(FuelsError, match="the server does not answer"):
        fuels("federation", "run", server.path, "--resume")
    assert Current(server).read()["state"] == "stopped"  # it can still go on later


@pytest.mark.parametrize("over", ["finished", "stopped", "failed"])
def test_the_status_of_a_run_that_was_over_needs_no_folder(server: ServerFolder, over: str) -> None:
    runs.new_run(server, Settings())
    Current(server).write(state=over)
    shutil.rmtree(server.runs)
    assert json.loads(fuels("federation", "status", server.path, "--json").stdout)["state"] == over


def test_the_supervisor_does_not_take_up_what_is_not_there(
    server: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OverError(Exception):
        pass

    looks = []

    def sleep(_: float) -> None:
        looks.append(1)
        if len(looks) > 5:
            raise OverError

    hurry(monkeypatch, sleep)
    submitted: list[str] = []
    monkeypatch.setattr(supervisor, "submit", lambda _: submitted.append("run") or "")
    runs.new_run(server, Settings())
    Current(server).write(state="running")
    with pytest.raises(OverError):
        supervisor.supervise(server)
    assert submitted  # it is taken up as long as it is there
    submitted.clear()
    looks.clear()
    shutil.rmtree(server.runs)
    with pytest.raises(OverError):
        supervisor.supervise(server)
    assert submitted == [] and Current(server).read()["state"] == "failed"


def test_a_run_that_always_ends_at_once_has_failed_after_some_tries(
    server: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that ends in between begins the count anew."""

    class OverError(Exception):
        pass

    run = runs.new_run(server, Settings())
    submitted: list[str] = []

    def submit(_: ServerFolder) -> str:
        submitted.append(run)
        if len(submitted) == 4:
            (server.runs / run / "metrics.jsonl").write_text('{"round": 1}\n')
        return ""

    def sleep(_: float) -> None:
        if Current(server).read()["state"] == "failed" or len(submitted) > 20:
            raise OverError

    hurry(monkeypatch, sleep)
    monkeypatch.setattr(supervisor, "submit", submit)
    Current(server).write(state="running")
    with pytest.raises(OverError):
        supervisor.supervise(server)
    assert len(submitted) == 4 + supervisor.TRIES
    current = Current(server).read()
    assert current["state"] == "failed"
    assert "resumed 5 times and ended each time without finishing a round" in current["reason"]


def test_a_damaged_note_of_the_current_run_is_one_sentence(server: ServerFolder) -> None:
    server.current.write_text("{half a")
    with pytest.raises(FuelsError, match="damaged; delete it to start a new run"):
        fuels("federation", "status", server.path)


# -- submitted by Flower's own command -------------------------------------------------------------


def test_the_run_at_work_is_the_one_that_is_stopped(tmp_path: Path) -> None:
    """A second one that is refused since this one is at work leaves Flower's number alone."""
    world = World(tmp_path / "fed", settings(rounds=1))
    seen: list[dict[str, Any]] = []
    original = world.network.send

    def send(*arguments: Any) -> list[str]:
        seen.append(Current(world.server).read())
        return original(*arguments)

    world.network.send = send  # type: ignore[method-assign]
    serve(world.network, world.server, "flower-5", settings(rounds=1), world.time, flower_run="5")
    assert {(note["run"], note["state"], note["flower_run"]) for note in seen} == {
        ("flower-5", "running", "5")
    }
    before = Current(world.server).read()
    with pytest.MonkeyPatch.context() as patch, world.server.busy.open("w") as lock:
        patch.setattr("fuels.federation.flower.server.sleep", lambda _: None)
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(FuelsError, match="another run is in progress"):
            serve(world.network, world.server, "flower-6", settings(), world.time, flower_run="6")
    assert Current(world.server).read() == before


def test_a_run_with_settings_that_cannot_be_is_not_taken_up_again(server: ServerFolder) -> None:
    run = runs.new_run(server, Settings())
    refuse(server, "flower-7", "somebody else's")
    assert Current(server).read()["state"] == "submitted"
    refuse(server, run, "run config: unknown setting training.roundz")
    current = Current(server).read()
    assert current["state"] == "failed" and "roundz" in current["reason"]


def test_what_flower_has_not_begun_is_shown_and_stopped(
    server: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    flower_runs = {"5": "running", "77": "pending"}
    stopped: list[str] = []

    def stop(_: ServerFolder, number: str) -> str:
        stopped.append(number)
        flower_runs.pop(number)
        return ""

    monkeypatch.setattr(status, "unfinished", lambda _: dict(flower_runs))
    monkeypatch.setattr(status, "is_listening", lambda _: True)
    monkeypatch.setattr(status, "states", lambda _: {})
    monkeypatch.setattr(commands, "stop", stop)
    runs.new_run(server, Settings())
    Current(server).write(state="running", flower_run="5")
    told = fuels("federation", "status", server.path).output
    assert "Flower's run 77: pending" in told and "run 5" not in told
    assert "other runs (77)" in fuels("federation", "stop", server.path).output
    assert stopped == ["5"]
    assert "Flower's run 77 is stopped" in fuels("federation", "stop", server.path).output
    with pytest.raises(FuelsError, match="no run is in progress"):
        fuels("federation", "stop", server.path)
