"""The end of a run, whoever is there for it: always a summary, and models for whoever comes back.

Also how long a round may take when a site is silent.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fuels.cli.federation import federation_app
from fuels.errors import FuelsError
from fuels.federation.flower import runs
from fuels.federation.flower.runs import Current
from fuels.storage.run_folder import RunFolder
from helpers.flower_world import NEVER, SITES, World, settings

Answered = tuple[float, bytes | str]


def silent_at(world: World, site: str, *kinds: str) -> None:
    def decide(who: str, kind: str, number: int, reply: bytes) -> Answered:
        return (NEVER if who == site and kind in kinds else 0.0), reply

    world.network.fate = decide


def finishes(world: World) -> list[str]:
    return sorted(site for site, kind, *_ in world.network.sent if kind == "finish")


def invoke(world: World, command: str, *options: str) -> Result:
    return CliRunner().invoke(federation_app, [command, str(world.server.path), *options])


def folder(world: World) -> RunFolder:
    return RunFolder(world.server.runs / "run")


def test_a_site_that_introduces_itself_at_the_end_holds_nothing_up(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=2))
    world.network.there = {"north", "south"}
    original = world.network.send

    def send(contents: Any, kind: str, number: int, ttl: float) -> list[str]:
        if kind == "train" and number == 1:
            world.network.there = set(SITES)
        return original(contents, kind, number, ttl)

    def decide(who: str, kind: str, number: int, reply: bytes) -> Answered:
        """East says who it is while the others are writing their models."""
        return (3.0 if kind == "hello" and who == "east" else 0.0) + (
            5.0 if kind == "finish" else 0.0
        ), reply

    world.network.send = send  # type: ignore[method-assign]
    world.network.fate = decide
    world.run()
    assert finishes(world) == ["north", "south"]
    assert world.summary()["unconfirmed"] == []
    assert world.summary()["sites"] == {"north": 2, "south": 2}
    assert not folder(world).checkpoint.exists()


@pytest.mark.parametrize("method", ["fuels", "fedavg"])
def test_a_site_gone_at_the_end_is_named_and_gets_its_models_later(
    tmp_path: Path, method: str
) -> None:
    world = World(tmp_path / "fed", settings(method, rounds=2))
    silent_at(world, "east", "finish")
    world.run()
    assert world.summary()["unconfirmed"] == ["east"]
    assert world.summary()["rounds"] == 2 and folder(world).checkpoint.exists()
    current = Current(world.server).read()
    assert (current["state"], current["unconfirmed"]) == ("finished", ["east"])
    shown = invoke(world, "status").output
    assert "east has not confirmed" in shown and f"{world.server.path} --resume" in shown
    told = json.loads(invoke(world, "status", "--json").stdout)
    assert (told["state"], told["unconfirmed"]) == ("finished", ["east"])
    page, own = folder(world).report, world.root / "sites" / "east" / "runs" / "run" / "report.html"
    assert "east has not confirmed" in page.read_text()
    world.network.sent.clear()
    world.network.there = {"north", "east"}  # south has its models and is not needed again
    silent_at(world, "nobody")
    world.run()
    assert finishes(world) == ["east"]
    assert world.summary()["unconfirmed"] == [] and not folder(world).checkpoint.exists()
    assert Current(world.server).read()["unconfirmed"] == []
    assert "has not confirmed" not in page.read_text() and "3 sites" in page.read_text()
    assert "What left this site in this run" in own.read_text()
    assert RunFolder(world.root / "sites" / "east" / "runs" / "run").models.exists()
    world.network.sent.clear()
    world.run()
    assert world.network.sent == []  # nothing is left to do


@pytest.mark.parametrize("as_json", [False, True])
def test_a_run_that_leaves_a_site_without_models_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    """The training is over and its results are there; a script must still notice."""
    world = World(tmp_path / "fed", settings(rounds=2))
    silent_at(world, "east", "finish")
    monkeypatch.setattr(runs, "need_server", lambda _: None)
    monkeypatch.setattr(runs, "new_run", lambda *_: "run")
    monkeypatch.setattr(runs, "start", lambda _: world.run())
    options = ["--json"] if as_json else []
    result = invoke(world, "run", *options)
    assert isinstance(result.exception, FuelsError) and result.exit_code == 1
    assert "east has not confirmed that the models were saved" in str(result.exception)
    assert f"fuels federation run {world.server.path} --resume" in str(result.exception)
    if as_json:
        found = json.loads(result.stdout)
        assert found["unconfirmed"] == ["east"] and found["rounds"] == 2
        assert found["run"] == "run" and found["folder"] == str(world.server.runs / "run")
    else:
        assert "run run is finished" in result.stdout
    silent_at(world, "nobody")
    again = invoke(world, "run", "--resume", *options)
    assert again.exit_code == 0, again.output


def test_nobody_waits_at_the_end_for_a_site_that_was_silent_before(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=2))
    ended: list[float] = []
    original = world.network.send

    def send(contents: Any, kind: str, number: int, ttl: float) -> list[str]:
        if kind == "finish":
            ended.append(world.network.time)
        return original(contents, kind, number, ttl)

    def decide(who: str, kind: str, number: int, reply: bytes) -> Answered:
        """East dies in round 2; the others take two seconds to write their models."""
        gone = who == "east" and number == 2
        return (NEVER if gone else 2.0 if kind == "finish" else 0.0), reply

    world.network.send = send  # type: ignore[method-assign]
    world.network.fate = decide
    world.run()
    assert finishes(world) == ["east", "north", "south"]  # asked it is: it may only be slow
    assert world.network.time - ended[0] <= 2.5
    assert world.summary()["unconfirmed"] == ["east"]


def test_a_slow_site_has_as_long_to_confirm_as_the_others_take(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=2))

    def decide(who: str, kind: str, number: int, reply: bytes) -> Answered:
        late = kind == "train" and (who, number) == ("east", 2)
        return (11.0 if late else 3.0 if kind == "finish" else 0.0), reply

    world.network.fate = decide
    world.run()
    assert world.summary()["unconfirmed"] == []


def test_nobody_waits_for_a_site_that_is_gone_meanwhile(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=2))
    silent_at(world, "east", "finish")
    original = world.network.collect
    looks: list[float] = []

    def collect(tickets: Sequence[str]) -> dict[str, bytes | FuelsError]:
        if finishes(world):
            looks.append(world.network.time)
            if len(looks) == 3:
                world.network.there = {"north", "south"}
        return original(tickets)

    world.network.collect = collect  # type: ignore[method-assign]
    world.run()
    assert looks[-1] - looks[0] <= 2.0  # the deadline is ten seconds
    assert world.summary()["unconfirmed"] == ["east"]


def test_a_site_taken_out_of_the_federation_is_not_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=2))
    silent_at(world, "east", "finish")
    world.run()
    assert world.summary()["unconfirmed"] == ["east"]
    world.take_out("east")
    world.run()
    assert world.summary()["unconfirmed"] == [] and not folder(world).checkpoint.exists()
    assert world.summary()["sites"] == {"east": 2, "north": 2, "south": 2}


def test_refusals_at_both_ends_are_counted(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=1))

    def garbage(who: str, kind: str, number: int, reply: bytes) -> Answered:
        return 0.0, b"no message" if (who, kind) == ("east", "finish") else reply

    world.network.fate = garbage
    world.run()
    sent = world.summary()["counters"]["messages"]
    world.run()
    summary = json.loads(folder(world).summary.read_text())
    assert sum(summary["refused"]["east"].values()) == summary["counters"]["refused"] == 2
    assert summary["counters"]["messages"] == sent + 1


# -- while it lasts --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fuels", "fedavg", "fedrep"])
def test_a_silent_site_costs_a_round_one_deadline(tmp_path: Path, method: str) -> None:
    world = World(tmp_path / "fed", settings(method, rounds=3))
    at: dict[int, float] = {}
    original = world.network.send

    def send(contents: Any, kind: str, number: int, ttl: float) -> list[str]:
        if kind == "train":
            at[number] = world.network.time
        return original(contents, kind, number, ttl)

    def decide(who: str, kind: str, number: int, reply: bytes) -> Answered:
        """North hangs in round 2, and is back with the next."""
        return (NEVER if (who, number) == ("north", 2) else 0.0), reply

    world.network.send = send  # type: ignore[method-assign]
    world.network.fate = decide
    history = world.run()
    assert [line["clients"] for line in history] == [6, 4, 6]
    assert 10.0 <= at[3] - at[2] <= 12.0
