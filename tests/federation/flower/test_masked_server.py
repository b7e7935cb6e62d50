"""Masked uploads: the same models as with plain ones, and a server that sees sums only."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.errors import FuelsError
from fuels.federation.codec import decode
from fuels.federation.flower.folders import SiteFolder
from fuels.federation.flower.masked_server import FILE, Plan
from fuels.federation.flower.masked_site import MASKED
from fuels.federation.flower.provisioning import federation_record
from fuels.federation.flower.status import masked_line, status
from fuels.federation.flower.sum_keys import certify
from fuels.methods.fedavg import FedAvg
from fuels.storage.checkpoint import unprefixed
from helpers.flower_world import LIMIT, SITES, World, settings
from helpers.masked import change, chosen, make_world

METHODS = ("fedavg", "fedprox", "fedrep", "perfedavg", "pfedme")


def words(world: World, number: int) -> dict[str, np.ndarray]:
    """What each site sent in a round."""
    return {
        site: decode(content, LIMIT).arrays["words"]
        for site, kind, at, content in world.network.got
        if (kind, at) == ("train", number)
    }


@pytest.mark.parametrize("method", METHODS)
def test_the_model_is_that_of_plain_uploads(tmp_path: Path, method: str) -> None:
    rounds = 2 if method == "fedrep" else 1
    plain = World(tmp_path / "plain", settings(method, rounds))
    lines = plain.run()
    world = make_world(tmp_path / "masked", chosen(method, rounds))
    found = world.run()
    expected, state = plain.state(), world.state()
    assert state.keys() == expected.keys()
    for name in state:
        np.testing.assert_allclose(state[name], expected[name], atol=3e-7, err_msg=name)
    for ours, theirs in zip(found, lines, strict=True):
        assert ours["clients"] == theirs["clients"] == 6 and not ours["failures"]
        assert ours["val_mse"] == pytest.approx(theirs["val_mse"], rel=1e-4)
        assert ours["loss_prediction"] == pytest.approx(theirs["loss_prediction"], rel=1e-4)
    assert world.summary()["masked"] == {"rounds": rounds}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = make_world(tmp_path_factory.mktemp("masked") / "world", chosen(rounds=3))
    world.run()
    return world


def test_the_server_gets_masked_words_and_no_upload(done: World) -> None:
    for site, kind, _, content in done.network.got:
        found = decode(content, LIMIT)
        if kind != "train":
            continue
        assert set(found.arrays) == {"words", "loss/prediction", "val_mse", "val_mae"}, site
        # Uniform over 64 bits: the numbers of a model are small.
        assert np.median(np.abs(found.arrays["words"][:-1] / 2.0**63)) > 0.4
    given = [words(done, number) for number in (1, 2, 3)]
    for site in SITES:  # other masks in each round
        assert not np.isin(given[0][site], given[1][site]).any()
    lines = [json.loads(line) for line in done.server.audit.read_text().splitlines()]
    assert [e["step"] for e in lines if e["event"] == "sum"] == [1, 2, 3]
    lines = SiteFolder(done.root / "sites/north").audit.read_text().splitlines()
    steps = [e["step"] for e in map(json.loads, lines) if e["event"] == "sum"]
    assert steps == [1, 2, 3]


def test_a_lost_reply_is_repeated_byte_for_byte(tmp_path: Path, done: World) -> None:
    world = make_world(tmp_path / "world", chosen(rounds=3), deadline=200.0)
    lose(world, "north", at=2, times=2)
    lines = world.run()
    given = [c for s, kind, n, c in world.network.got if (s, kind, n) == ("north", "train", 2)]
    assert len(given) == 3 and len(set(given)) == 1
    assert [line["clients"] for line in lines] == [6, 6, 6]
    for name, array in done.state().items():
        np.testing.assert_array_equal(world.state()[name], array)


def lose(world: World, site: str, at: int, times: int) -> None:
    left = [times]

    def decide(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        if (who, kind, number) == (site, "train", at) and left[0]:
            left[0] -= 1
            return 0.0, "the worker ended before it could answer"
        return 0.0, reply

    world.network.fate = decide


def failing(site: str, at: int) -> Any:
    """From a round on, a site's process fails after it has trained."""

    def decide(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        lost = (who, kind) == (site, "train") and number >= at
        return 0.0, "its process failed" if lost else reply

    return decide


def plain(site: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes]:
    return 0.0, reply


def test_without_a_site_the_round_waits_for_it_and_then_the_run_stops(
    tmp_path: Path, done: World
) -> None:
    world = make_world(tmp_path / "world", chosen(rounds=3))
    world.network.fate = failing("north", at=2)
    with pytest.raises(
        FuelsError,
        match=r"^round 2: no sum without north; the run stops after 2 attempts and can be resumed$",
    ):
        world.run()
    assert len(world.history()) == 1 and status(world.server)["masked"] == {"rounds": 1}
    book = world.server.audit.read_text()
    assert book.count('"sum failed"') == 2 and '"no sum without north"' in book
    # Resumed, it asks the same sites, which repeat what they sent: the run loses nothing but time.
    world.network.fate = plain
    lines = world.run()
    assert [line["clients"] for line in lines] == [6, 6, 6]
    found = {c for s, kind, n, c in world.network.got if (s, kind, n) == ("south", "train", 2)}
    assert len(found) == 1
    for name, array in done.state().items():
        np.testing.assert_array_equal(world.state()[name], array)
    assert masked_line(world.summary()["masked"]) == "masked: the server sees sums only, 3 rounds"


def test_from_one_model_there_is_one_set_also_if_a_site_never_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SITES, "west", ["g", "h"])
    world = make_world(tmp_path / "world", chosen(rounds=3))
    world.network.fate = failing("west", at=2)
    for _ in range(2):  # also when it is resumed, and connected to the others only
        with pytest.raises(FuelsError, match=r"^round 2: no sum without west; the run stops after"):
            world.run()
        world.network.there.discard("west")
    world.take_out("west")
    with pytest.raises(FuelsError, match=r"^round 2: no sum without west \(west: it may no longer"):
        world.run()
    facts = [
        decode(c, LIMIT).facts[MASKED]
        for _, k, n, c in world.network.sent
        if (k, n) == ("train", 2)
    ]
    assert len(facts) > 8 and all(list(each["clients"]) == sorted(SITES) for each in facts)
    # What west sent makes the total complete, and there is no other total from this model.
    assert masks_cancel(world, 2, sorted(SITES))
    assert not masks_cancel(world, 2, ["east", "north", "south"])


def masks_cancel(world: World, number: int, sites: list[str]) -> bool:
    """Whether the server can read the total of these sites, from everything that they ever sent."""
    sent: dict[str, list[np.ndarray]] = {site: [] for site in sites}
    for site, kind, at, content in world.network.got:
        if (kind, at) == ("train", number) and site in sent:
            found = decode(content, LIMIT).arrays
            sent[site] += [found["words"]] if "words" in found else []
    checks = [[int(each[-1]) for each in sent[site]] for site in sites]
    return any((sum(each) - len(sites)) % 2**64 == 0 for each in product(*checks))


def test_a_killed_server_asks_the_same_set_again(tmp_path: Path, done: World) -> None:
    world = make_world(tmp_path / "world", chosen(rounds=3))

    class KilledError(Exception):
        pass

    def killed(site: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes]:
        if (site, kind, number) == ("south", "train", 2):
            raise KilledError
        return 0.0, reply

    world.network.fate = killed
    with pytest.raises(KilledError):
        world.run()
    stored = json.loads((world.server.runs / "run" / FILE).read_text())
    assert stored["round"] == 2 and sorted(stored["asked"]) == sorted(SITES)
    before = words(world, 2)
    assert before.keys() >= {"south"}
    world.network.fate = lambda site, kind, number, reply: (0.0, reply)
    world.run()
    after = words(world, 2)
    for site, sent in before.items():
        np.testing.assert_array_equal(after[site], sent)
    for name, array in done.state().items():
        np.testing.assert_array_equal(world.state()[name], array)


def test_sites_shorten_updates_to_the_bound_of_the_round_before(tmp_path: Path) -> None:
    world = make_world(tmp_path / "world", chosen(rounds=2, defence={"clip": 0.5}))
    world.run()
    facts = [
        decode(content, LIMIT).facts["masked"]
        for site, kind, _, content in world.network.sent
        if (site, kind) == ("north", "train")
    ]
    assert facts[0]["bound"] == 0.0 and facts[0]["clients"] == dict.fromkeys(sorted(SITES), 2)
    # No longer than its terms, the mean update of round 2 is within the bound.
    first = next(c for _, kind, n, c in world.network.sent if (kind, n) == ("evaluate", 1))
    before = unprefixed("shared", decode(first, LIMIT).arrays)
    update = np.concatenate([world.state()[name] - part for name, part in before.items()])
    assert 0 < np.linalg.norm(update) <= facts[1]["bound"] * (1 + 1e-6)
    free = make_world(tmp_path / "free", chosen(rounds=2))
    free.run()
    longer = np.concatenate([free.state()[name] - part for name, part in before.items()])
    assert np.linalg.norm(longer) > facts[1]["bound"]


def test_a_site_that_refuses_stops_a_run_of_three(tmp_path: Path) -> None:
    world = make_world(tmp_path / "world", chosen(rounds=2))
    change(world, "south", "min_clients = 6", "min_clients = 7")
    with pytest.raises(FuelsError) as caught:
        world.run()
    assert str(caught.value) == (
        "round 1: 2 sites can send masked uploads, and 3 are needed (south: round 1: 6 clients are"
        " asked to train, and at least 7 are required (min_clients)); the run stops and can be"
        " resumed"
    )
    change(world, "south", "min_clients = 7", "min_clients = 6")
    assert [line["clients"] for line in world.run()] == [6, 6]


def test_without_a_roster_no_site_trains(tmp_path: Path) -> None:
    world = make_world(tmp_path / "world", chosen(rounds=1))
    world.server.roster.unlink()
    with pytest.raises(FuelsError, match="masked uploads need a roster: the server's folder has"):
        world.run()
    assert {kind for _, kind, _, _ in world.network.sent} == {"hello"}
    certify(world.root, federation_record(world.root), {"north": 1, "south": 1}, {})
    with pytest.raises(FuelsError, match=r"have 4 clients to train, and at least 6 are needed"):
        world.run()


def test_a_site_whose_training_diverged_adds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = FedAvg.local

    def diverges(method: FedAvg, group: Any, download: Any) -> Any:
        found = plain(method, group, download)
        for i, client in enumerate(group.ids):
            if client in "be":  # all of south
                found["decoder"][i] = np.nan
        return found

    monkeypatch.setattr(FedAvg, "local", diverges)
    world = make_world(tmp_path / "world", chosen(rounds=1))
    (line,) = world.run()
    assert line["clients"] == 4
    assert "south: it withholds client b; see the site's log" in line["failures"]
    other = World(tmp_path / "plain", settings("fedavg", 1), quorum=0.5)
    (theirs,) = other.run()
    assert theirs["clients"] == 4
    for name, array in other.state().items():
        np.testing.assert_allclose(world.state()[name], array, atol=3e-7)


def test_a_site_that_would_refuse_is_left_out_before_any_other_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SITES, "west", ["g", "h"])
    world = make_world(tmp_path / "world", chosen(rounds=3), quorum=0.5)
    change(world, "west", "min_clients = 6", "min_clients = 9")

    lines = world.run()
    assert [line["clients"] for line in lines] == [6, 6, 6]
    reason = "round 1: 8 clients are asked to train, and at least 9 are required (min_clients)"
    assert f"west: {reason}" in lines[0]["failures"]
    trained = {site for site, kind, *_ in world.network.sent if kind == "train"}
    assert trained == {"north", "south", "east"}
    # Sites that have agreed are not asked again about the same set.
    checks = [(s, n) for s, kind, n, _ in world.network.sent if kind == "check"]
    assert {n for _, n in checks} == {1}


def test_a_site_that_does_not_say_whether_it_would_train_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SITES, "west", ["g", "h"])
    world = make_world(tmp_path / "world", chosen(rounds=2), quorum=0.5)
    world.network.fate = lambda site, kind, number, reply: (
        0.0, "its process failed" if (site, kind, number) == ("west", "check", 1) else reply
    )  # fmt: skip
    lines = world.run()
    assert [line["clients"] for line in lines] == [6, 8]  # and back in the next round
    assert "west: no reply since it was last asked" in lines[0]["failures"]


def test_a_late_answer_about_another_set_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """North would train with west but not without it; its first answer arrives late."""
    monkeypatch.setitem(SITES, "west", ["g", "h"])
    world = make_world(tmp_path / "world", chosen(rounds=1), quorum=0.5)
    change(world, "west", "min_clients = 6", "min_clients = 9")
    change(world, "north", "min_clients = 6", "min_clients = 8")
    asked = [0]

    def decide(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        asked[0] += (who, kind) == ("north", "check")
        late = (who, kind, asked[0]) == ("north", "check", 1)
        return 0.1 if late else 0.3 if kind == "check" and who != "west" else 0.0, reply

    world.network.fate = decide
    with pytest.raises(FuelsError, match=r"2 sites can send masked uploads, .*\(north: round 1: 6"):
        world.run()
    assert not any(kind == "train" for _, kind, *_ in world.network.sent)


def test_a_site_that_connects_during_a_round_takes_part_in_the_next_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SITES, "west", ["g", "h"])
    world = make_world(tmp_path / "world", chosen(rounds=2), quorum=0.5)
    world.network.there.discard("west")

    def decide(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        if (who, kind, number) != ("north", "train", 1):
            return 0.0, reply
        world.network.there.add("west")
        return 1.0, reply

    world.network.fate = decide
    assert [line["clients"] for line in world.run()] == [6, 8]
    asked = [(s, kind) for s, kind, n, _ in world.network.sent if n == 1 and s == "west"]
    assert asked == [("west", "hello"), ("west", "evaluate")]


def test_a_new_roster_is_for_the_next_set(tmp_path: Path) -> None:
    world = make_world(tmp_path / "world", chosen(rounds=3))
    signed: list[str] = []

    def decide(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        if (who, kind, number) == ("north", "train", 2) and not signed:
            signed.append(who)
            certify(world.root, federation_record(world.root), {"north": 2}, {})
            return 0.0, "its process failed"
        return 0.0, reply

    world.network.fate = decide
    assert [line["clients"] for line in world.run()] == [6, 6, 6]


def test_the_same_model_in_the_next_round_has_the_same_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SITES, "west", ["g", "h"])
    monkeypatch.setattr(FedAvg, "aggregate", lambda method, server, upload: None)
    world = make_world(tmp_path / "world", chosen(rounds=2), quorum=0.5)

    def leaves(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        if (who, kind) == ("west", "evaluate"):
            world.network.there.discard("west")
        return 0.0, reply

    world.network.fate = leaves
    with pytest.raises(FuelsError, match=r"^round 2: no sum without west; the run stops after"):
        world.run()


def test_a_damaged_plan_is_not_replaced_by_another_set(tmp_path: Path, done: World) -> None:
    path = tmp_path / FILE
    for content in ("{", "[]", '{"model": "", "asked": {}}'):
        path.write_text(content)
        with pytest.raises(FuelsError, match=r"masked.json: cannot be read; restore it from"):
            Plan.load(path, "")
    stored = json.loads((done.server.runs / "run" / FILE).read_text())
    assert stored["terms"] == {"most_samples": 120, "clip": 0.0, "bound": 0.0}
    assert Plan.load(done.server.runs / "run" / FILE, "another model") is None
