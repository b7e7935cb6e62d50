"""What a site refuses before it masks and sends a sum of uploads."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.config import merge
from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, decode, encode
from fuels.federation.flower.folders import RefusalError, SiteFolder
from fuels.federation.flower.progress import Progress
from fuels.federation.flower.provisioning import federation_record, new_site, renew_key
from fuels.federation.flower.sum_keys import certify
from fuels.federation.flower.worker import Worker
from fuels.sharing.fixed_point import from_words
from fuels.sharing.masked_uploads import NAME, digest_of
from fuels.sharing.masks import SumId, total
from fuels.storage.checkpoint import unprefixed
from helpers.flower_world import LIMIT, SITES, World
from helpers.masked import change, chosen, make_world


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> World:
    """After one masked round."""
    world = make_world(tmp_path_factory.mktemp("masked") / "world", chosen(rounds=1))
    world.run()
    return world


def request(world: World, run: str = "run", site: str = "south", **changes: Any) -> Envelope:
    """What the server asked a site in round 1, changed."""
    content = next(c for s, kind, _, c in world.network.sent if (s, kind) == (site, "train"))
    found = decode(content, LIMIT)
    facts = {**found.facts, "masked": {**found.facts["masked"], **changes}}
    return Envelope("train", run, 1, site, facts, found.arrays)


def of(**clients: Any) -> dict[str, Any]:
    """Facts with another number of clients at each site."""
    everyone = {} if len(clients) == 2 else dict.fromkeys(SITES, 2)
    return {"clients": everyone | clients}


def answer(world: World, asked: Envelope) -> Envelope:
    worker = Worker(SiteFolder(world.root / "sites" / asked.site), world.settings)
    return decode(worker.answer(encode(asked), made=world.network.time), LIMIT)


def test_a_retry_gets_the_same_bytes_and_another_run_other_masks(done: World) -> None:
    (sent,) = [c for s, k, _, c in done.network.got if (s, k) == ("south", "train")]
    worker = Worker(SiteFolder(done.root / "sites/south"), done.settings)
    assert worker.answer(encode(request(done)), made=done.network.time) == sent
    first = decode(sent, LIMIT)
    other = answer(done, request(done, "run-2"))
    assert not np.isin(other.arrays["words"], first.arrays["words"]).any()


def test_a_site_whose_state_is_lost_repeats_what_it_has_sent(done: World) -> None:
    before = answer(done, request(done, "run-3"))
    (done.root / "sites/south/runs/run-3/state.safetensors").unlink()
    again = answer(done, request(done, "run-3"))
    np.testing.assert_array_equal(again.arrays["words"], before.arrays["words"])
    assert set(again.arrays) == {"words"} and again.facts == {"clients": ["b", "e"]}


def test_arrays_for_single_clients_are_refused(done: World) -> None:
    plain = request(done, "run-6")
    own = {"personal/decoder": plain.arrays["shared/decoder"][None]}
    facts = {**plain.facts, "having": ["b"]}
    found = answer(done, replace(plain, facts=facts, arrays={**plain.arrays, **own}))
    assert "with masked uploads all clients start from the same ones" in found.facts["refused"]


def test_what_was_trained_on_other_terms_is_not_sent(done: World) -> None:
    """The site is killed after it has trained, before it has masked and recorded a reply."""
    folder = SiteFolder(done.root / "sites/south")
    plain = request(done, "run-4")
    first, other = (
        replace(plain, arrays={n: array / np.float32(by) for n, array in plain.arrays.items()})
        for by in (2, 4)
    )
    answer(done, first)
    with closing(sqlite3.connect(folder.state / "sums.db")) as database, database:
        database.execute("DELETE FROM answers WHERE series = 'run-4'")
        source = digest_of(unprefixed("shared", first.arrays))
        database.execute("DELETE FROM origins WHERE source = ?", (source,))
    stored = Progress(folder.runs / "run-4/state.safetensors").answer
    answer(done, other)
    trained = Progress(folder.runs / "run-4/state.safetensors").answer
    before, after = (decode(each, LIMIT).arrays["contribution"] for each in (stored, trained))
    assert not np.array_equal(before, after)
    # Asked again on the same terms, it repeats what it has trained.
    answer(done, other)
    assert Progress(folder.runs / "run-4/state.safetensors").answer == trained


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (of(north=4, south=2), "at least 3 sites, and this one has 2 (north, south)"),
        ({"roster": "{}"}, "the roster cannot be read"),
        (of(east=1), "5 clients are asked to train, and at least 6 are required (min_clients)"),
        (of(east=0), "the server names a site without clients"),
        (of(east="2"), "the server's number of clients is not a whole number"),
        (of(south=9), "asks for 2 clients of this site but tells the sites that there are 9"),
        ({"clients": None}, "the server does not say how many clients each site trains"),
        ({"most_samples": 10}, "a client of this site has more than 10 samples"),
        (
            {"most_samples": 0},
            "the largest number of samples of a client must be between 1 and 2^32",
        ),
        ({"bound": "high"}, "the server's bound on updates is not a number"),
    ],
)
def test_a_site_refuses_what_a_server_must_not_ask(
    done: World, changes: dict[str, Any], reason: str
) -> None:
    found = answer(done, request(done, f"run-{len(reason)}", **changes))
    assert reason in found.facts["refused"] and not found.arrays
    assert reason in (done.root / "sites/south/state/audit.jsonl").read_text()


def test_a_second_set_from_the_same_model_is_refused_in_any_round_and_run(tmp_path: Path) -> None:
    world = make_world(tmp_path / "world", chosen(rounds=1))
    world.run()
    roster = json.loads(world.server.roster.read_text())
    assert sorted(roster["sites"]) == sorted(SITES)
    four = certified_with_a_fourth(world)
    asked = {"clients": dict.fromkeys([*SITES, "west"], 2), "roster": four}
    for run, number in (("run", 1), ("run", 2), ("run-2", 1), ("run-2", 7)):
        for kind in ("train", "check"):
            found = answer(world, replace(request(world, run, **asked), kind=kind, round=number))
            assert found.facts["refused"] == (
                f"uploads, step {number}: this site has already answered with the sites"
                " east,north,south; a second set (east,north,south,west) would reveal the"
                " difference"
            )
            assert not found.arrays


def test_other_clients_from_the_same_model_are_refused_in_any_round_and_run(done: World) -> None:
    """The difference would be the upload of the client in which the two choices differ."""
    plain = request(done)
    for run, number in (("run", 2), ("run-2", 1)):
        fewer = {"clients": {"east": 3, "north": 2, "south": 1}}
        asked = replace(request(done, run, **fewer), round=number)
        found = answer(done, replace(asked, facts={**asked.facts, "asked": ["b"]}))
        assert found.facts["refused"] == (
            f"uploads, step {number}: this site has already answered for another choice of"
            " its clients; a second one would reveal the difference"
        )
    # The same clients in another order are the same choice; one that is named twice is none.
    other = request(done, "run-5")
    assert (
        "words" in answer(done, replace(other, facts={**other.facts, "asked": ["e", "b"]})).arrays
    )
    twice = answer(done, replace(other, facts={**plain.facts, "asked": ["b", "b"]}))
    assert twice.facts["refused"] == "the server asks for a client twice"


def test_another_bound_from_the_same_model_is_refused(tmp_path: Path) -> None:
    """The difference would be what the lower bound cuts off, perhaps of one client only."""
    world = make_world(tmp_path / "world", chosen(rounds=1, defence={"clip": 2.0}))
    world.run()
    found = answer(world, replace(request(world, bound=0.01), round=2))
    assert found.facts["refused"] == (
        "uploads, step 2: this site has already answered with another bound on updates; a second"
        " one would reveal which updates it shortens"
    )


CHANGES: list[dict[str, Any]] = [
    {},
    {"model": 2.0},
    {"most_samples": 2**20},
    {"bound": 0.25},
    of(east=3),
    {"settings": {"training": {"learning_rate": 1e-9}}},
    {"settings": {"defence": {"clip": 3.0}}},
]


@pytest.fixture(scope="module")
def clipped(tmp_path_factory: pytest.TempPathFactory) -> World:
    """After one masked round of a run with a bound on updates."""
    made = make_world(
        tmp_path_factory.mktemp("masked") / "w", chosen(rounds=1, defence={"clip": 2})
    )
    made.run()
    return made


@pytest.mark.parametrize("case", range(len(CHANGES)))
def test_masks_cancel_only_if_all_sites_were_given_the_same(clipped: World, case: int) -> None:
    """With a larger unit, a lower bound or no steps of the others, one site would dominate."""
    run, words = f"run-{case}", {}
    for site in SITES:
        changes = dict(CHANGES[case]) if site == "north" else {}
        # Another model in each case: from one model, a site would refuse another bound.
        scale = np.float32((1 + case / 8) * changes.pop("model", 1.0))
        settings = merge(clipped.settings, changes.pop("settings", {}), "test")
        asked = request(clipped, run, site, **changes)
        asked = replace(asked, arrays={n: scale * array for n, array in asked.arrays.items()})
        worker = Worker(SiteFolder(clipped.root / "sites" / site), settings)
        found = decode(worker.answer(encode(asked), made=clipped.network.time), LIMIT)
        words[site] = found.arrays["words"].view(np.uint64)
    which = SumId("test", 1, run, NAME, 1, tuple(sorted(SITES)), (words["north"].size - 1,))
    if not CHANGES[case]:
        assert 0 < total(which, words)[0] < 6 and np.abs(total(which, words)).max() < 2.0**10
        return
    with pytest.raises(FuelsError, match="so their keys, rosters, versions or terms differ"):
        total(which, words)
    numbers = from_words(sum(words.values(), start=np.zeros_like(words["north"])))
    assert np.median(np.abs(numbers)) > 2.0**28  # of numbers below 2^31


def certified_with_a_fourth(world: World) -> str:
    """A roster with one site more."""
    new_site(world.root, "west", ["fedavg"])
    certify(world.root, federation_record(world.root), {"west": 2}, {})
    return world.server.roster.read_text()


def test_other_keys_and_missing_sets_are_refused(tmp_path: Path) -> None:
    world = make_world(tmp_path / "world", chosen(rounds=1))
    world.run()
    plain = request(world, "run-2")
    found = answer(
        world, Envelope("train", "run-2", 1, "south", {**plain.facts, "masked": 0}, plain.arrays)
    )
    assert "uploads of this run are masked" in found.facts["refused"]
    renew_key(SiteFolder(world.root / "sites/south"))
    found = answer(world, request(world, "run-2"))
    assert "the founder's roster has another key for site south" in found.facts["refused"]


def test_a_site_may_demand_masks(tmp_path: Path) -> None:
    open_run = merge(chosen(rounds=1), {"privacy": {"masked": False}}, "test")
    world = World(tmp_path / "world", open_run)
    for site in SITES:
        change(world, site, "unmasked = true", "unmasked = false")
    with pytest.raises(FuelsError, match=r"0 of 3 sites joined .*demands masked uploads"):
        world.run()
    folder = SiteFolder(world.root / "sites/south")
    hello = encode(Envelope("hello", "run", 0, "south", {"asked": [], "having": []}))
    with pytest.raises(
        RefusalError, match="FedAvg with these settings sends encoder without masks"
    ):
        Worker(folder, open_run).answer(hello, made=0.0)
    masked = Worker(folder, chosen(rounds=1)).answer(hello, made=0.0)
    assert decode(masked, LIMIT).facts["clients"] == ["b", "e"]
