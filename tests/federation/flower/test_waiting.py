"""Too few sites for a while: a round waits for them, draws others, and closes in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.config import Training
from fuels.errors import FuelsError
from fuels.federation.codec import decode
from fuels.federation.flower.runs import Current
from fuels.federation.loop import Loop
from fuels.federation.refusals import Refusals
from fuels.randomness import SELECTION, generator
from helpers import flower_world
from helpers.flower_world import LIMIT, NEVER, SITES, World, settings


class KilledError(BaseException):
    """The server ends at once, as with kill -9."""


def at_training(world: World, number: int, act: Any, before: bool = False) -> None:
    """Something happens, once, when a round's letters go out, or instead of that."""
    original, done = world.network.send, [False]

    def send(contents: Any, kind: str, n: int, ttl: float) -> list[str]:
        now = (kind, n) == ("train", number) and not done[0]
        done[0] = done[0] or now
        if now and before:
            act()
        tickets = original(contents, kind, n, ttl)
        if now and not before:
            act()
        return tickets

    world.network.send = send  # type: ignore[method-assign]


def letters(world: World, site: str, number: int) -> int:
    return sum((s, k, n) == (site, "train", number) for s, k, n, _ in world.network.sent)


# -- waiting ---------------------------------------------------------------------------------------


def test_a_cut_of_minutes_at_two_of_three_sites_ends_no_run(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=3), deadline=600.0, attempts=10)
    away: list[float] = []
    at_training(world, 1, lambda: away.append(world.network.time))
    world.network.connected = lambda: {"east"} if away and world.network.time < 400 else set(SITES)  # type: ignore[method-assign]
    assert [line["clients"] for line in world.run()] == [6, 6, 6]
    assert 400 <= world.network.time < 402  # asked as soon as they were back
    assert letters(world, "east", 2) == 1


def test_a_run_ends_only_after_all_its_attempts_lasted_a_deadline(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=3), deadline=600.0, attempts=3)
    at_training(world, 1, lambda: world.network.there.intersection_update({"east"}))
    with pytest.raises(FuelsError, match="round 2: 1 of 3 sites replied, 2 are needed"):
        world.run()
    assert 1800 <= world.network.time < 1803


def test_a_site_that_fails_at_once_is_asked_again_after_a_pause(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=3), deadline=600.0, quorum=1.0)
    world.network.fate = lambda who, kind, n, reply: (
        (0.0, "disk full")
        if (who, kind, n) == ("north", "train", 2) and world.network.time < 150
        else (0.0, reply)
    )
    history = world.run()
    assert [line["clients"] for line in history] == [6, 6, 6]
    assert history[1]["failures"] == ["north: disk full"]  # once, however often it was
    assert letters(world, "north", 2) == 4 and 180 <= world.network.time < 182


def test_a_round_names_who_failed_in_any_of_its_attempts(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=3), deadline=10.0, attempts=3)
    world.network.fate = lambda who, kind, n, reply: (
        (0.0, "disk full")
        if who != "east" and (kind, n) == ("train", 2) and world.network.time < 10
        else (0.0, reply)
    )
    history = world.run()
    assert [line["clients"] for line in history] == [6, 6, 6]
    assert history[1]["failures"] == ["north: disk full", "south: disk full"]


def test_a_resumed_run_waits_for_its_sites_before_it_draws(tmp_path: Path) -> None:
    """All were restarted, and the sites need a minute more than the server."""
    whole = World(tmp_path / "whole", settings(rounds=4, selection=0.34))
    world = World(tmp_path / "fed", settings(rounds=4, selection=0.34), join=120.0)

    def killed() -> None:
        raise KilledError

    at_training(world, 3, killed, before=True)
    with pytest.raises(KilledError):
        world.run()
    world.network.connected = lambda: set(SITES) if world.network.time >= 60 else set()  # type: ignore[method-assign]
    assert world.run() == whole.run()
    assert Current(world.server).read()["state"] == "finished"
    assert 60 <= world.network.time < 62


# -- drawing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gone", "taken out", "mute"])
def test_where_few_are_drawn_a_dead_site_ends_no_run(tmp_path: Path, how: str) -> None:
    """One of six clients per round; east is gone after round 1, and every draw goes on."""
    world = World(tmp_path / "fed", settings(rounds=12, selection=0.17), attempts=2)
    if how == "mute":  # Flower lists it as connected, and nothing ever comes
        world.network.fate = lambda who, kind, n, reply: (
            NEVER if who == "east" and n > 1 else 0.0,
            reply,
        )
    elif how == "gone":
        at_training(world, 1, lambda: world.network.there.discard("east"))
    else:
        at_training(world, 1, lambda: world.take_out("east"))
    history = world.run()
    assert [line["clients"] for line in history] == [6] + [1] * 11
    last = history[-1]["failures"]  # who cannot be drawn is named all the same
    named = {"gone": ["east: not connected"], "mute": ["east: no reply since it was last asked"]}
    assert last == named.get(how, [])
    if how == "mute":  # one deadline until it is known, and then it is not drawn any more
        assert sum(letters(world, "east", n) for n in range(2, 13)) == 1
        assert world.network.time < 2 * 10.5
    else:
        assert letters(world, "east", 6) == 0 and world.network.time == 0.0


def test_a_mute_site_that_speaks_again_is_drawn_again(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=30, selection=0.17), attempts=2)
    world.network.fate = lambda who, kind, n, reply: (
        NEVER if who == "east" and 1 < n < 10 else 0.0,
        reply,
    )
    world.run()
    assert sum(letters(world, "east", n) for n in range(12, 31)) > 2


def test_clients_never_heard_of_are_no_part_of_the_quorum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five sites with one client each; two are mute from the start, and one is drawn per round."""
    sites = {f"s{i}": [client] for i, client in enumerate("abcde")}
    monkeypatch.setattr(flower_world, "SITES", sites)
    world = World(tmp_path / "fed", settings(rounds=5, selection=0.2), attempts=3)
    world.network.fate = lambda who, kind, n, reply: (
        NEVER if who in ("s3", "s4") and kind == "train" else 0.0,
        reply,
    )
    assert [line["clients"] for line in world.run()] == [3, 1, 1, 1, 1]


class Somebody:
    """A transport of six clients that is never asked to train."""

    clients = tuple("abcdef")


class Plain:
    """What the loop needs of a method for drawing."""

    @staticmethod
    def complete(training: Training) -> Training:
        return training

    @staticmethod
    def server(clients: tuple[str, ...]) -> None:
        return None


def test_the_draw_is_of_those_that_can_be_reached_and_of_all_if_all_can() -> None:
    def loop(reachable: str) -> Any:
        made: Any = Loop
        training = Training(selection=0.34)
        return made(Plain, Somebody(), training, 3, Refusals(), lambda: set(reachable))

    everyone = np.array(sorted("abcdef"))
    for number in range(2, 12):
        drawn = generator(3, SELECTION, number).choice(np.arange(6), 2, replace=False)
        assert loop("abcdef").select(number) == tuple(sorted(everyone[drawn]))
        assert set(loop("bd").select(number)) < {"b", "d"}
        assert len(loop("").select(number)) == 2
    again = {loop("abcdef").select(2, attempt) for attempt in range(1, 8)}
    assert len(again) > 2


def asked_of(world: World, site: str, number: int) -> list[set[str]]:
    letters = [c for s, k, n, c in world.network.sent if (s, k, n) == (site, "train", number)]
    return [set(decode(content, LIMIT).facts["asked"]) for content in letters]


def test_a_site_drawn_again_repeats_its_answer_whichever_of_its_clients_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """North trains in the first attempt and is not heard; the second asks for more of its."""
    draws = {1: ("a",), 2: ("a", "d")}
    select = Loop.select
    monkeypatch.setattr(
        Loop, "select", lambda loop, n, k: draws[k] if n == 2 else select(loop, n, k)
    )
    world = World(tmp_path / "fed", settings(rounds=3))
    lost: list[int] = []

    def decide(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        if (kind, number) != ("train", 2) or lost:
            return 0.0, reply
        lost.append(number)
        return NEVER, reply

    world.network.fate = decide
    history = world.run()
    assert asked_of(world, "north", 2) == [{"a"}, {"a", "d"}]
    assert [line["clients"] for line in history] == [6, 1, 6]
    assert history[1]["failures"] == ["north: no reply within 10 s"]  # of the first attempt
    assert world.summary()["refused"] == {}


@pytest.mark.parametrize("second", [("d",), ("a",)])
def test_a_site_drawn_again_for_others_trains_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: tuple[str, ...]
) -> None:
    """The server is killed while north trains one client, and then draws perhaps the other."""
    draw = [("a",)]
    select = Loop.select
    monkeypatch.setattr(
        Loop, "select", lambda loop, n, k: draw[0] if n == 2 else select(loop, n, k)
    )
    world = World(tmp_path / "fed", settings(rounds=2))

    def killed() -> None:
        raise KilledError

    at_training(world, 2, killed)
    with pytest.raises(KilledError):
        world.run()
    draw[0] = second
    history = world.run()
    assert [line["clients"] for line in history] == [6, 1] and history[1]["failures"] == []
    first, again = (c for s, k, n, c in world.network.got if (s, k, n) == ("north", "train", 2))
    assert decode(again, LIMIT).facts["clients"] == list(second)
    assert (first == again) == (second == ("a",))


# -- closing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("trained", "most"), [(9.0, 15.0), (2.0, 11.0)])
def test_a_site_that_dies_after_its_upload_holds_a_round_up_once_and_is_named(
    tmp_path: Path, trained: float, most: float
) -> None:
    world = World(tmp_path / "fed", settings("fedavg", rounds=3))
    world.network.fate = lambda who, kind, n, reply: (
        NEVER
        if (who, n, kind) == ("north", 2, "evaluate")
        else (trained if (n, kind) == (2, "train") else 0.0),
        reply,
    )
    history = world.run()
    assert history[1]["failures"] == ["north: no reply to evaluate"]
    assert history[1]["clients"] == 6 and history[1]["val_mse"] is not None
    assert 10.0 <= world.network.time <= most


def test_the_newest_of_two_late_uploads_stands_in(tmp_path: Path) -> None:
    """In round 3 north's upload of round 2 comes at 21 s, that of round 1 at 23 s."""
    world = World(tmp_path / "fed", settings(rounds=4), quorum=0.3)
    due = {1: 23.0, 2: 11.0, 3: NEVER}
    world.network.fate = lambda who, kind, n, reply: (
        due.get(n, 0.0) if (who, kind) == ("north", "train") else 0.0,
        reply,
    )
    history = world.run()
    assert [line["clients"] for line in history] == [4, 4, 6, 6]
    assert not any("stale" in text for line in history for text in line["failures"])
