"""Who takes part: sites that come late, come back, or say of themselves what cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.config import merge
from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, decode, encode
from fuels.federation.flower.folders import Rules
from fuels.federation.flower.members import LONGEST_NAME, Members
from helpers.flower_world import LIMIT, SITES, World, fate, settings

PROPORTION = {"windows": {"split": ""}}  # the parts of a longer series are longer


class KilledError(BaseException):
    """The server ends at once, as with kill -9."""


def connect(world: World, there: dict[int, set[str]]) -> None:
    """From the training of a round on, these sites are there."""
    original = world.network.send

    def send(contents: Any, kind: str, number: int, ttl: float) -> list[str]:
        if kind == "train" and number in there:
            world.network.there = there[number]
        return original(contents, kind, number, ttl)

    world.network.send = send  # type: ignore[method-assign]


def kill_at(world: World, kind: str, number: int) -> None:
    """The server is killed, once, when it would hear of what it asked."""
    original = world.network.collect
    done: list[bool] = []

    def collect(tickets: Any) -> Any:
        if not done and any((k, n) == (kind, number) for _, k, n, _ in world.network.sent):
            done.append(True)
            raise KilledError
        return original(tickets)

    world.network.collect = collect  # type: ignore[method-assign]


# -- late ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fuels", "fedavg", "fedrep", "fedda"])
def test_a_late_site_joins_whatever_the_method(tmp_path: Path, method: str) -> None:
    options = {"week": 1} if method == "fedda" else {}
    chosen = replace(settings(method, rounds=4, selection=1.0), options=options)
    world = World(tmp_path / "fed", chosen)
    for file in world.root.glob("sites/*/site.toml"):
        file.write_text(file.read_text().replace("raw_derived = false", "raw_derived = true"))
    world.network.there = {"north", "south"}
    connect(world, {1: set(SITES)})
    history = world.run()
    assert [line["clients"] for line in history] == [4, 4, 6, 6]
    assert all(line["failures"] == [] for line in history)
    assert history[-1]["val_mse"] is not None


@pytest.mark.parametrize(("method", "killed"), [("fuels", 2), ("fuels", 3), ("fedavg", 3)])
def test_the_server_is_killed_around_the_round_beside_which_a_site_joined(
    tmp_path: Path, method: str, killed: int
) -> None:
    """East joins beside round 2; killed in it or in the next, the run goes on as if nothing was."""
    whole = World(tmp_path / "whole", settings(method, rounds=5))
    world = World(tmp_path / "fed", settings(method, rounds=5))
    for each in (whole, world):
        each.network.there = {"north", "south"}
        connect(each, {1: set(SITES)})
    whole.run()
    kill_at(world, "train", killed)
    with pytest.raises(KilledError):
        world.run()
    history = world.run()
    assert [line["clients"] for line in history] == [4, 4, 6, 6, 6]
    assert history == whole.history()


def test_a_late_site_with_a_longer_series_counts(tmp_path: Path) -> None:
    """What a site may claim follows what it said itself, and not who was there first."""
    world = World(tmp_path / "fed", merge(settings("fedavg", rounds=4), PROPORTION, "test"))
    world.give_data("east", days=24)
    world.network.there = {"north", "south"}
    connect(world, {1: set(SITES)})
    history = world.run()
    assert [line["clients"] for line in history] == [4, 4, 6, 6]
    assert history[2]["failures"] == []
    samples = {
        site: decode(c, LIMIT).arrays["samples"].tolist()
        for site, kind, number, c in world.network.got
        if (kind, number) == ("train", 4)
    }
    assert samples["east"][0] > 2 * samples["north"][0]


def test_a_site_that_comes_back_with_other_data_says_so_again(tmp_path: Path) -> None:
    """North lost its state in round 2 and has more days when it is back, beside round 3."""
    world = World(tmp_path / "fed", merge(settings(rounds=6), PROPORTION, "test"))
    connect(world, {2: {"south", "east"}, 3: set(SITES)})
    original = world.network.send

    def send(contents: Any, kind: str, number: int, ttl: float) -> list[str]:
        if (kind, number) == ("train", 3):
            (world.root / "sites" / "north" / "runs" / "run" / "state.safetensors").unlink()
            world.give_data("north", days=24)
        return original(contents, kind, number, ttl)

    world.network.send = send  # type: ignore[method-assign]
    history = world.run()
    hellos = [
        number for site, kind, number, _ in world.network.got if (site, kind) == ("north", "hello")
    ]
    assert hellos == [0, 4]
    assert [line["clients"] for line in history][-2:] == [6, 6]
    assert history[-1]["failures"] == []


def test_a_resumed_run_asks_again_who_is_there(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=3))
    kill_at(world, "train", 2)
    with pytest.raises(KilledError):
        world.run()
    world.run()
    hellos = [(site, number) for site, kind, number, _ in world.network.got if kind == "hello"]
    assert sorted(hellos) == sorted([(site, n) for site in SITES for n in (0, 2)])


@pytest.mark.parametrize(
    ("method", "options"), [("fuels", {"periodic": False}), ("fedda", {"week": 1})]
)
def test_unequal_training_parts_are_refused_where_the_size_of_uploads_follows_them(
    tmp_path: Path, method: str, options: dict[str, Any]
) -> None:
    chosen = replace(merge(settings(method, rounds=3), PROPORTION, "test"), options=options)
    world = World(tmp_path / "fed", chosen)
    for file in world.root.glob("sites/*/site.toml"):
        file.write_text(file.read_text().replace("raw_derived = false", "raw_derived = true"))
    world.give_data("east", days=24)
    history = world.run()  # the size that most have is the run's
    assert history[0]["clients"] == 4 and len(history) == 3
    told = [line["failures"][0] for line in history]
    assert all("east: introduction refused: the training part" in text for text in told)
    late = World(tmp_path / "late", chosen)
    for file in late.root.glob("sites/*/site.toml"):
        file.write_text(file.read_text().replace("raw_derived = false", "raw_derived = true"))
    late.give_data("east", days=24)
    late.network.there = {"north", "south"}
    connect(late, {1: set(SITES)})
    history = late.run()
    assert "east" not in {site for site, kind, *_ in late.network.got if kind == "train"}
    refused = [text for line in history for text in line["failures"]]
    assert refused and all("east: introduction refused: the training part" in t for t in refused)


def asked_in(world: World, number: int) -> set[str]:
    """The clients that were asked to train in a round."""
    letters = [c for _, kind, n, c in world.network.sent if (kind, n) == ("train", number)]
    return {client for content in letters for client in decode(content, LIMIT).facts["asked"]}


def test_where_few_are_chosen_a_joiner_gives_its_prototype_first(tmp_path: Path) -> None:
    """East joins beside round 2; with a share of 0.3 the draw would leave most out of round 3."""
    world = World(tmp_path / "fed", settings(rounds=4, selection=0.3))
    world.network.there = {"north", "south"}
    connect(world, {1: set(SITES)})
    world.run()
    assert asked_in(world, 3) >= {"c", "f"}
    assert [len(asked_in(world, n)) for n in (1, 2, 4)] == [4, 1, 2]
    assert world.state()["known"].all()


@pytest.mark.parametrize("killed", [False, True])
def test_where_few_are_chosen_a_first_upload_that_failed_is_asked_for_again(
    tmp_path: Path, killed: bool
) -> None:
    world = World(tmp_path / "fed", settings(rounds=3, selection=0.3))
    world.network.fate = fate(1, "north", becomes=lambda reply: reply[:40])
    if killed:  # who was never heard is known after a restart
        kill_at(world, "train", 2)
        with pytest.raises(KilledError):
            world.run()
        world.network.sent.clear()
    history = world.run()
    assert history[0]["clients"] == 4
    assert asked_in(world, 2) >= {"a", "d"}
    assert len(asked_in(world, 3)) == 2 and world.state()["known"].all()


# -- what a site may say of itself -----------------------------------------------------------------


def hello(**facts: Any) -> Envelope:
    return Envelope("hello", "run", 0, "north", {"clients": ["a"], "train_periods": 5, **facts})


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"clients": []}, "names no clients"),
        ({"clients": ["a", "a"]}, "or the same one twice"),
        ({"clients": "a"}, "not a list of strings"),
        ({"clients": [f"c{i}" for i in range(11)]}, "11 clients; at most 10 are accepted"),
        ({"clients": [""]}, "an unacceptable name"),
        ({"clients": ["x" * (LONGEST_NAME + 1)]}, "an unacceptable name"),
        ({"clients": ["a\nround 3: all is well"]}, "an unacceptable name"),
        ({"train_periods": 0}, "the length of its training part"),
        ({"train_periods": "5"}, "the length of its training part"),
        ({"train_periods": True}, "the length of its training part"),
        ({"train_periods": 101}, "101 periods; at most 100 are accepted"),
        ({"clients": ["a", "s"]}, "client 's' belongs to site south"),
        ({"clients": ["b"]}, "it joined this run with client 'a', which is now missing"),
    ],
)
def test_an_introduction_that_cannot_be(facts: dict[str, Any], reason: str) -> None:
    members, rules = Members(), Rules(most_clients=10, most_periods=100)
    members.introduce("north", ("a",), 5)
    members.introduce("south", ("s",), 5)
    with pytest.raises(FuelsError, match=reason):
        members.check("north", hello(**facts), rules)
    assert members.clients == ("a", "s") and members.train_periods == 5


def test_the_newest_introduction_counts() -> None:
    members = Members()
    members.introduce("north", ("a",), 5)
    members.introduce("north", *members.check("north", hello(clients=["a", "b"]), Rules()))
    assert members.of("north") == ("a", "b") and members.periods == {"north": 5}
    longer = hello(clients=["a", "b"], train_periods=9)
    members.introduce("north", *members.check("north", longer, Rules()))
    assert members.train_periods == 9


def test_a_site_that_claims_too_much_does_not_join_and_the_others_train(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=2), most_periods=50)

    def boast(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        if (who, kind) != ("north", "hello"):
            return 0.0, reply
        envelope = decode(reply, LIMIT)
        return 0.0, encode(replace(envelope, facts={**envelope.facts, "train_periods": 10**6}))

    world.network.fate = boast
    history = world.run()
    assert [line["clients"] for line in history] == [4, 4]
    assert "at most 50 are accepted" in history[0]["failures"][0]
    (reason,) = world.summary()["refused"]["north"]
    assert reason.startswith("it claims a training part of * periods")


def test_a_site_cannot_introduce_itself_as_another(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=1))

    def false(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        if (who, kind) != ("north", "hello"):
            return 0.0, reply
        return 0.0, encode(replace(decode(reply, LIMIT), site="south"))

    world.network.fate = false
    assert world.run()[0]["clients"] == 4
    assert "key is another site's" in next(iter(world.summary()["refused"]["north"]))


# -- false claims ----------------------------------------------------------------------------------


def claim(site: str, **facts: Any) -> Any:
    """A site says of itself what is not so."""

    def decide(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        if (who, kind) != (site, "hello"):
            return 0.0, reply
        envelope = decode(reply, LIMIT)
        return 0.0, encode(replace(envelope, facts={**envelope.facts, **facts}))

    return decide


def consenting(root: Path, method: str, options: dict[str, Any], rounds: int = 2) -> World:
    chosen = replace(settings(method, rounds=rounds, selection=1.0), options=options)
    world = World(root, chosen)
    for file in world.root.glob("sites/*/site.toml"):
        file.write_text(file.read_text().replace("raw_derived = false", "raw_derived = true"))
    return world


@pytest.mark.parametrize("periods", [1, 3999])
@pytest.mark.parametrize(
    ("method", "options"), [("fuels", {"periodic": False}), ("fedda", {"week": 1})]
)
def test_one_false_length_ends_no_run(
    tmp_path: Path, method: str, options: dict[str, Any], periods: int
) -> None:
    """The others train as if the site that lies were not there, and it learns why."""
    world, alone = (consenting(tmp_path / name, method, options) for name in ("fed", "alone"))
    world.network.fate = claim("east", train_periods=periods)
    alone.network.there = {"north", "south"}
    history = world.run()
    assert [line["clients"] for line in history] == [4, 4]
    (reason,) = history[0]["failures"]
    assert reason.startswith("east: introduction refused: ") and "training p" in reason
    assert set(world.summary()["refused"]) == {"east"}
    alone.run()
    assert set(world.state()) == set(alone.state())
    for name, part in alone.state().items():
        np.testing.assert_array_equal(world.state()[name], part)


def test_where_no_length_is_that_of_most_the_run_does_not_begin(tmp_path: Path) -> None:
    world = consenting(tmp_path / "fed", "fuels", {"periodic": False})
    world.network.there = {"north", "east"}
    world.network.fate = claim("east", train_periods=9)
    with pytest.raises(FuelsError, match=r"by a majority of sites \(periods: east 9, north 5\)"):
        world.run()
    assert {kind for _, kind, *_ in world.network.got} == {"hello"}


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"clients": [f"c{i}" for i in range(10**5)]}, "names * clients; at most * are accepted"),
        ({"clients": [f"c{i}" for i in range(10**6)]}, "the message has * bytes; at most *"),
        (
            {"clients": [f"c{i}" for i in range(5 * 10**5)]},
            "the header of the message is truncated",
        ),
        ({"train_periods": 10**18}, "training part of * periods; at most * are accepted"),
        ({"train_periods": 1e18}, "it does not state the length of its training part"),
    ],
)
def test_a_site_that_announces_the_impossible_weighs_nothing(
    tmp_path: Path, facts: dict[str, Any], reason: str
) -> None:
    world, alone = (World(tmp_path / n, settings("fedavg", rounds=2)) for n in ("fed", "alone"))
    world.network.fate = claim("east", **facts)
    alone.network.there = {"north", "south"}
    assert [line["clients"] for line in world.run()] == [4, 4]
    assert all(reason in told for told in world.summary()["refused"]["east"])
    alone.run()
    for name, part in alone.state().items():
        np.testing.assert_array_equal(world.state()[name], part)


def test_only_the_claim_to_others_clients_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=2))
    world.network.fate = claim("north", clients=["a", "b", "d"])  # b is south's
    world.network.there = {"south", "east"}
    connect(world, {1: set(SITES)})
    history = world.run()
    assert [line["clients"] for line in history] == [4, 4]
    assert "client 'b' belongs to site south" in history[1]["failures"][0]
    assert asked_in(world, 1) | asked_in(world, 2) == {"b", "c", "e", "f"}
    assert {s for s, k, *_ in world.network.sent if k == "train"} == {"south", "east"}


@pytest.mark.parametrize("killed", [1, 2])
def test_after_a_restart_the_first_owner_keeps_its_clients(tmp_path: Path, killed: int) -> None:
    """South is away when the server comes back, in round 1 or 2, and east claims its clients."""
    world = World(tmp_path / "fed", settings(rounds=3))
    kill_at(world, "train", killed)
    with pytest.raises(KilledError):
        world.run()
    world.network.there = {"north", "east"}
    world.network.fate = claim("east", clients=["b", "c", "e", "f"])
    connect(world, {killed: set(SITES)})
    world.network.sent.clear()
    history = world.run()
    told = [text for line in history for text in line["failures"]]
    assert any("east: introduction refused: client 'b' belongs to site south" in t for t in told)
    for site, kind, _, content in world.network.sent:
        if kind == "train" and site == "east":
            assert set(decode(content, LIMIT).facts["asked"]) == {"c", "f"}
    assert history[-1]["clients"] == 6
