"""A site that joins after a run: its totals at once, and contributions from the next run on."""

from __future__ import annotations

import json
import shutil
from copy import copy
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from fuels.errors import FuelsError
from fuels.experts.run_sums import LIVE_MEAN, STATISTICS
from fuels.federation.flower.folders import ServerFolder
from fuels.federation.flower.live_record import LiveRecord
from fuels.federation.flower.newcomers import FILE as END
from fuels.forecasting.folder import newest_run
from fuels.runs.settings import ResolvedSettings
from fuels.sharing.received import FILE, ReceivedMean
from helpers.flower_world import SITES, MemoryNetwork, World, fuels, write_panel
from helpers.series import Series
from helpers.sums import NEWCOMER, change, chosen, exchanged, join, make_world

ALL = {**SITES, **NEWCOMER}


def settings(split: str = "8/2/2") -> ResolvedSettings:
    return chosen(windows={"horizon": 1, "split": split})


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A finished run of three sites."""
    world = make_world(tmp_path_factory.mktemp("newcomers") / "world", settings(), deadline=40.0)
    world.run()
    return world


@pytest.fixture
def world(done: World, tmp_path: Path) -> World:
    """The same, and a fourth site that has joined since: a folder, data, consent, the roster."""
    found = copy(done)
    found.root = Path(shutil.copytree(done.root, tmp_path / "world"))
    found.server = ServerFolder(found.root)
    for site in SITES:
        change(found, site, str(done.root), str(found.root))
    join(found)
    found.network = MemoryNetwork(found.root, list(ALL), found.settings)
    return found


def check_folder(world: World) -> None:
    """West forecasts with the totals, to which it has added nothing."""
    folder = world.root / "sites" / "west" / "runs" / "run"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["sharing"]["used"] == ["statistics", "live_mean"]
    assert summary["kept_clients"] == {"best": 0, "last": 0, "untrained": 2}
    mean = ReceivedMean.load(folder / FILE)
    assert mean.ids == ("g", "h") and mean.count.max() == 6 and np.isnan(mean.own[:, :288]).all()
    made = json.loads(fuels("forecast", folder.parents[1], "--json").stdout)
    assert [row["client"] for row in made] == ["g", "h"] and all(row["forecast"] for row in made)
    (folder.parent / "later").mkdir()  # a run in progress
    assert newest_run(folder.parents[1]) == folder and newest_run(folder) == folder


def test_a_newcomer_gets_the_totals_from_the_live_series(world: World) -> None:
    series = Series(world.root, settings=world.settings, sites=ALL)
    series.turn(5)
    check_folder(world)
    assert sum(kind == "finish" for _, kind, _ in series.network.replies) == 1
    for _ in range(2):
        series.give(1)
        series.turn(5)
    last = LiveRecord.load(world.server.runs / "run").last
    assert (last["sites"], last["missing"]) == (sorted(SITES), ["west"])
    assert not series.network.sums("west")
    received = [ReceivedMean.load(series.run(site) / FILE) for site in ("north", "west")]
    np.testing.assert_array_equal(received[1].total[-2:], received[0].total[-2:])
    assert received[1].count[-1] == 6 and not series.live.record.refusals
    again = Series(world.root, settings=world.settings, sites=ALL)  # the server restarts
    again.turn(5)
    assert not any(kind == "finish" for _, kind, _ in again.network.replies)
    audit = (world.server.state / "audit.jsonl").read_text()
    assert '"event": "newcomer"' in audit


def test_a_newcomer_gets_the_totals_without_a_live_series(world: World) -> None:
    world.run()  # --resume of the finished run
    check_folder(world)
    world.run()
    assert [site for site, kind, *_ in world.network.sent if kind == "finish"] == ["west"]


def test_a_damaged_file_costs_newcomers_only(world: World) -> None:
    (world.server.runs / "run" / END).write_bytes(b"damaged")
    (world.server.runs / "run" / "newcomers.json").write_text("[")
    series = Series(world.root, settings=world.settings, sites=ALL)
    series.give(1, *SITES)
    series.turn(5)
    assert LiveRecord.load(world.server.runs / "run").last["sites"] == sorted(SITES)
    assert "it has no finished run" in series.live.record.refusals["west"]
    with pytest.raises(FuelsError, match="this site has no finished run yet"):
        newest_run(world.root / "sites" / "west")


def test_a_newcomer_that_cannot_use_the_run_costs_nothing(world: World) -> None:
    change(world, "west", '"fuels",', '"solo",')
    series = Series(world.root, settings=world.settings, sites=ALL)
    series.give(1, *SITES)
    series.turn(30)
    assert LiveRecord.load(world.server.runs / "run").last["sites"] == sorted(SITES)
    assert "west does not consent to fuels" in series.live.record.refusals["west"]


def test_a_newcomer_contributes_to_the_next_run(world: World) -> None:
    """To one on the same data not: the difference of the totals would be its contribution."""
    refusal = "already answered with the sites east,north,south; a second set"
    assert refusal in exchanged(world, "again").notes[STATISTICS]
    write_panel(world.root / "sites" / "west" / "own.csv", ALL["west"], 13)
    again = exchanged(world, "ends-later")  # the others' clients are still normalised in this way
    assert not again.totals and refusal in again.notes[LIVE_MEAN]
    for site in SITES:
        world.give_data(site, 13)
    world.network.settings = world.settings = settings("9/2/2")
    later = exchanged(world, "later")
    everyone = tuple(sorted(ALL))
    assert later.sets == {LIVE_MEAN: everyone, STATISTICS: everyone} and not later.notes
    assert (later.totals[LIVE_MEAN][:, 1] == 8).all()
