"""A live series of steps of 5 minutes: deadlines, late sites, outages, other clocks, forecasts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from fuels.federation.flower.live_record import LiveRecord
from fuels.forecasting.saved_run import SavedRun
from fuels.storage.run_folder import RunFolder
from helpers.live_world import RUN, TRAINED, LiveWorld

SITES = {"north": 5, "south": 4, "east": 6, "west": 5}
STEP, DEADLINE = 300, 60.0  # seconds; the deadline is the default of live_deadline


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> LiveWorld:
    root = tmp_path_factory.mktemp("steps") / "metro"
    return LiveWorld(root, SITES, deadline=DEADLINE, step=STEP)


@pytest.fixture
def world(found: LiveWorld, tmp_path: Path) -> LiveWorld:
    copy = found.copied(tmp_path / "metro")
    copy.turn(1)
    return copy


def sums(world: LiveWorld) -> np.ndarray:
    return LiveRecord.load(world.run_folder).sums


def pass_step(world: LiveWorld) -> None:
    """The rest of a step's 5 minutes, in which nothing happens after the first seconds."""
    world.turn(5)
    world.network.sleep(STEP - 10)
    world.turn(5)


def check(world: LiveWorld, row: np.ndarray, step: int, *sites: str) -> None:
    np.testing.assert_allclose(row, world.expected(step, sites), atol=1e-6)


def test_late_sites_cost_no_step_of_five_minutes(world: LiveWorld) -> None:
    """West is late by more than the deadline in one step, by less in the next, away for two."""
    first, others = world.given["north"], ("north", "south", "east")
    world.give()
    pass_step(world)
    world.give(*others)
    world.turn(DEADLINE - 2)
    assert len(sums(world)) == 2  # the deadline has not passed
    world.turn(4)
    assert len(sums(world)) == 3
    world.give("west")  # too late: these values are not counted
    pass_step(world)
    world.give(*others)
    world.turn(DEADLINE / 2)
    world.give("west")
    pass_step(world)
    world.network.kill("west")
    for _ in range(2):
        pass_step(world)
        world.give(*others)
    pass_step(world)
    world.network.restart("west")
    world.give("west", steps=2)
    pass_step(world)
    world.give()
    pass_step(world)
    found = sums(world)[1:]  # without the step with which the series began
    everyone = tuple(SITES)
    assert not world.live.record.skipped
    for number, there in enumerate([everyone, others, everyone, others, others, everyone]):
        check(world, found[number], first + number, *there)
    record = world.live.record
    assert record.seconds == STEP and record.next - record.first == 7 * STEP
    for site in SITES:  # also the one that was away has every sum
        np.testing.assert_array_equal(world.received(site).total[-6:], found[:, 0])
    assert np.isnan(world.received("west").own[:, -6:]).all(axis=0).tolist() == [
        False, True, False, True, True, False,
    ]  # fmt: skip


def test_an_hour_without_a_server_is_caught_up(world: LiveWorld) -> None:
    first = world.given["north"]
    for _ in range(12):
        world.give()
    world.start()  # after an hour, and without waiting for any deadline
    world.turn(12 * 2)
    found = sums(world)[1:]
    assert len(found) == 12
    for number in range(12):
        check(world, found[number], first + number, *SITES)


def test_other_clocks_are_refused(world: LiveWorld) -> None:
    """A site whose steps begin two minutes later, and one with steps of ten minutes."""
    for site, start, factor in (("west", 120, 1), ("east", 0, 2)):
        ids = world.ids[site]
        own = world.panel.select(ids)
        moved = replace(
            own,
            values=own.values[: TRAINED * 24],
            start=own.start + np.timedelta64(start, "s"),
            step=factor * own.step,
        )
        folder = RunFolder(world.site_folder(site) / "runs" / RUN)
        folder.remember(moved)
        world.network.restart(site)
    world.start()
    world.turn(DEADLINE + 1)
    world.give("north", "south")
    world.turn(DEADLINE + 1)
    refusals = world.live.record.refusals
    assert "steps at other times than the series" in refusals["west"]
    assert "steps of 300 s, and this site's data of 600 s" in refusals["east"]
    assert len(sums(world)) <= 1  # two sites are too few for a sum


def test_forecasts_get_the_mean_of_the_last_five_minutes(world: LiveWorld, tmp_path: Path) -> None:
    world.give()
    folder = world.site_folder("north") / "runs" / RUN
    shutil.copytree(folder, tmp_path / "without")
    world.turn(3)
    panel = SavedRun.load(folder).memory().panel
    known = panel.times
    assert known[-1] - known[-2] == np.timedelta64(STEP, "s")
    assert world.knows_sum("north", known[-1] + panel.standard_offset)
    forecast, notes = SavedRun.load(folder).forecast(wait=0.1)
    _, late = SavedRun.load(tmp_path / "without").forecast(wait=0.1)
    assert forecast.times[0] - known[-1] == np.timedelta64(STEP, "s")
    assert not notes and "did not arrive within 0.1 s" in late[-1]
