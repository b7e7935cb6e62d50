"""What a site refuses before it masks and sends a sum of uploads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.config import merge
from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, decode, encode
from fuels.federation.flower.folders import RefusalError, SiteFolder
from fuels.federation.flower.provisioning import federation_record, new_site, renew_key
from fuels.federation.flower.sum_keys import certify
from fuels.federation.flower.worker import Worker
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


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sites": ["north", "south"]}, "at least 3 sites, and this one has 2 (north, south)"),
        ({"sites": None}, "the list of sites is not a list of strings"),
        ({"roster": "{}"}, "the roster cannot be read"),
        ({"clients": 5}, "5 clients are asked to train, and at least 6 are required (min_clients)"),
        ({"clients": None}, "the server's clients is not a whole number"),
        ({"most_samples": 10}, "a client of this site has more than 10 samples"),
        ({"most_samples": 0}, "the most samples of a client must be between 1 and 2^32"),
        ({"bound": "high"}, "the server's bound on updates is not a number"),
    ],
)
def test_a_site_refuses_what_a_server_must_not_ask(
    done: World, changes: dict[str, Any], reason: str
) -> None:
    found = answer(done, request(done, f"run-{len(reason)}", **changes))
    assert reason in found.facts["refused"] and not found.arrays
    assert reason in (done.root / "sites/south/state/audit.jsonl").read_text()


def test_a_second_set_from_the_same_model_is_refused_also_in_another_run(tmp_path: Path) -> None:
    world = make_world(tmp_path / "world", chosen(rounds=1))
    world.run()
    roster = json.loads(world.server.roster.read_text())
    assert sorted(roster["sites"]) == sorted(SITES)
    four = certified_with_a_fourth(world)
    asked = {"sites": sorted([*SITES, "west"]), "roster": four}
    for run in ("run", "run-2"):
        found = answer(world, request(world, run, **asked))
        assert found.facts["refused"] == (
            "uploads, step 1: this site has already answered with the sites east,north,south; a"
            " second set (east,north,south,west) would reveal the difference"
        )


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
