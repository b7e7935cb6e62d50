"""Masked uploads: the same models as with plain ones, and a server that sees sums only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.errors import FuelsError
from fuels.federation.codec import decode
from fuels.federation.flower.folders import SiteFolder
from fuels.federation.flower.masked_server import FILE, Plan
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
    assert world.summary()["masked"] == {"rounds": rounds, "skipped": {}}


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
    assert not any("skipped" in line for line in lines)
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


def test_without_a_site_the_round_is_skipped_and_the_next_has_all_again(tmp_path: Path) -> None:
    # A skipped round is no reason to stop early either.
    world = make_world(tmp_path / "world", chosen(rounds=3, training={"patience": 1}))
    lose(world, "north", at=2, times=10)
    lines = world.run()
    reason = "uploads, step 2: no sum without north"
    assert [line.get("skipped", "") for line in lines] == ["", reason, ""]
    assert lines[1]["clients"] == 0 and lines[1]["val_mse"] == lines[0]["val_mse"]
    assert any(text.startswith("north: ") for text in lines[1]["failures"])
    assert lines[2]["clients"] == 6 and lines[2]["val_mse"] != lines[1]["val_mse"]
    assert world.summary()["masked"] == {"rounds": 2, "skipped": {"2": reason}}
    book = world.server.audit.read_text()
    assert book.count('"sum skipped"') == 1 and reason in book
    page = (world.server.runs / "run" / "report.html").read_text()
    assert f"Round 2 was skipped: {reason}" in page and "are masked, so that the server" in page
    found = status(world.server)
    assert masked_line(found["masked"]) == (
        "masked: the server sees sums only, 2 rounds with a result, 1 skipped (the last, round 2:"
        f" {reason})"
    )


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


def test_a_run_without_any_result_stops_and_can_be_resumed(tmp_path: Path, done: World) -> None:
    world = make_world(tmp_path / "world", chosen(rounds=3))
    world.network.fate = lambda site, kind, number, reply: (
        0.0, "its process failed" if (site, kind) == ("north", "train") else reply
    )  # fmt: skip
    with pytest.raises(FuelsError, match=r"round 2: 2 rounds in a row had no result .* resumed"):
        world.run()
    world.network.fate = lambda site, kind, number, reply: (0.0, reply)
    assert [("skipped" in line) for line in world.run()] == [True, False, False]


def test_sites_shorten_updates_to_the_bound_of_the_round_before(tmp_path: Path) -> None:
    world = make_world(tmp_path / "world", chosen(rounds=2, defence={"clip": 0.5}))
    world.run()
    facts = [
        decode(content, LIMIT).facts["masked"]
        for site, kind, _, content in world.network.sent
        if (site, kind) == ("north", "train")
    ]
    assert facts[0]["bound"] == 0.0 and facts[0]["clients"] == 6
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
    assert ["skipped" in line for line in world.run()] == [False, False]


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


def test_a_site_that_keeps_failing_is_asked_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SITES, "west", ["g", "h"])
    world = make_world(tmp_path / "world", chosen(rounds=6), quorum=0.5)
    world.network.fate = lambda site, kind, number, reply: (
        0.0, "its process failed" if (site, kind) == ("west", "train") and number > 1 else reply
    )  # fmt: skip
    lines = world.run()
    assert [line["clients"] for line in lines] == [8, 0, 6, 0, 6, 6]
    assert "west: it missed 1 of the rounds that it was asked for" in lines[2]["failures"]
    asked = [json.loads(e) for e in world.server.audit.read_text().splitlines()]
    assert [len(e["sites"]) for e in asked if e["event"] == "sum"] == [4, 3, 3, 3]


def test_a_damaged_plan_is_not_replaced_by_another_set(tmp_path: Path, done: World) -> None:
    path = tmp_path / FILE
    for content in ("{", "[]", '{"round": 1, "asked": {}}'):
        path.write_text(content)
        with pytest.raises(FuelsError, match=r"masked.json: cannot be read; restore it from"):
            Plan.load(path, 1)
    stored = json.loads((done.server.runs / "run" / FILE).read_text())
    assert stored["terms"] == {"most_samples": 120, "clip": 0.0, "bound": 0.0}
    assert Plan.load(done.server.runs / "run" / FILE, 2) is None
