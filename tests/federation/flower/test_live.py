"""A live series of three sites in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from fuels.errors import FuelsError
from fuels.federation.flower.live_messages import SUM
from fuels.federation.flower.live_record import LiveRecord
from fuels.sharing import received
from fuels.sharing.roster import Roster, parse, sign
from helpers.live_world import LiveWorld, authority_key

SITES = {"north": 5, "south": 4, "east": 6}


@pytest.fixture(scope="module")
def four_sites(tmp_path_factory: pytest.TempPathFactory) -> LiveWorld:
    return LiveWorld(tmp_path_factory.mktemp("live") / "metro", {**SITES, "west": 5})


@pytest.fixture
def four(four_sites: LiveWorld, tmp_path: Path) -> LiveWorld:
    found = four_sites.copied(tmp_path / "metro")
    found.turn(1)
    return found


@pytest.fixture
def world(four_sites: LiveWorld, tmp_path: Path) -> LiveWorld:
    """Three of the four sites."""
    found = four_sites.copied(tmp_path / "metro")
    found.network.there.discard("west")
    found.turn(1)
    return found


def sums(world: LiveWorld) -> list[tuple[float, float]]:
    return [tuple(row) for row in LiveRecord.load(world.run_folder).sums.tolist()]


def close(found: tuple[float, float], expected: tuple[float, float]) -> bool:
    return abs(found[0] - expected[0]) < 1e-6 and found[1] == expected[1]


def test_every_step_is_the_sum_over_all_sites(world: LiveWorld) -> None:
    first = world.given["north"] - 1  # the newest step of the run
    for _ in range(3):
        world.give()
        world.turn(3)
    found = sums(world)
    assert len(found) == 4
    for number, each in enumerate(found):
        assert close(each, world.expected(first + number, SITES)), number
    for site in SITES:
        received = world.received(site)
        assert received.total[-4:].tolist() == [total for total, _ in found]
        assert (~np.isnan(received.own[:, -1])).all()


def test_a_site_killed_after_its_contribution_repeats_it(world: LiveWorld) -> None:
    world.network.lose.add(("south", SUM))
    world.give()
    world.turn(1)
    assert world.live.record.asked == ("east", "north", "south")
    world.network.kill("south")
    world.turn(3)
    world.network.restart("south")
    world.turn(10)
    assert close(sums(world)[-1], world.expected(world.given["north"] - 1, SITES))
    replies = world.network.sums("south")[-2:]
    assert replies[0] == replies[1]
    assert replies[0] != world.network.sums("south")[0]


def test_a_site_that_stays_away_costs_the_step_and_no_more(world: LiveWorld) -> None:
    world.network.lose.add(("south", SUM))
    world.give()
    world.turn(1)
    world.network.kill("south")
    world.turn(25)
    assert np.isnan(sums(world)[-1][0])
    (skipped,) = world.live.record.skipped
    assert skipped["reason"] == "south: no reply"
    world.network.restart("south")
    world.give()
    world.turn(15)
    assert close(sums(world)[-1], world.expected(world.given["north"] - 1, SITES))
    assert world.live.record.last["sites"] == ["east", "north", "south"]
    for site in SITES:  # one set for each step, and one reply
        assert len(set(world.network.sums(site))) == 3
        assert world.received(site).count[-2:].tolist() == [0.0, 15.0]


def test_a_killed_server_asks_the_same_set_again(world: LiveWorld) -> None:
    world.network.lose |= {("south", SUM), ("north", SUM)}
    world.give()
    world.turn(1)
    assert world.live.record.asked == ("east", "north", "south")
    world.start()
    world.turn(10)
    assert close(sums(world)[-1], world.expected(world.given["north"] - 1, SITES))
    for site in SITES:
        assert len(set(world.network.sums(site))) == 2


def test_late_values_are_not_counted(four: LiveWorld) -> None:
    world = four
    world.give(*SITES)
    world.turn(15)
    assert len(sums(world)) == 1  # the deadline has not passed
    world.turn(10)
    step = world.given["north"] - 1
    assert close(sums(world)[-1], world.expected(step, SITES))
    world.give("west")
    world.turn(5)
    assert world.network.sums("west")[1:] == []
    mean = world.received("west")
    assert np.isnan(mean.own[:, -1]).all()
    assert mean.total[-1] == sums(world)[-1][0]  # it gets the sum all the same
    world.give()
    world.turn(15)
    assert world.live.record.last["sites"] == ["east", "north", "south", "west"]


def test_implausible_values_are_not_contributed(world: LiveWorld) -> None:
    def wrong(values: np.ndarray) -> None:
        values[0, 1] = 1e9

    world.give("north", change=wrong)
    world.give("south", "east")
    world.turn(3)
    assert world.live.record.last["values"] == 14
    assert np.flatnonzero(np.isnan(world.received("north").own[:, -1])).tolist() == [1]


def test_consent_is_read_with_every_message(four: LiveWorld) -> None:
    world = four
    file = world.site_folder("west") / "site.toml"
    text = file.read_text()
    file.write_text(text.replace("live_mean = true", "live_mean = false"))
    world.give()
    world.turn(25)
    assert world.live.record.last["sites"] == ["east", "north", "south"]
    assert "does not consent to a live mean" in world.live.record.refusals["west"]
    file.write_text(text)
    world.turn(60)
    world.give()
    world.turn(5)
    assert world.live.record.last["sites"] == ["east", "north", "south", "west"]
    assert world.live.record.refusals == {}


def test_a_second_set_is_refused(four: LiveWorld) -> None:
    """A server with a damaged record, or a dishonest one, learns no difference of two sums."""
    four.network.lose |= {(site, SUM) for site in four.ids}
    four.give()
    four.turn(1)
    assert four.live.record.asked == ("east", "north", "south", "west")
    four.live.record.ask(("east", "north", "south"))
    four.start()
    four.turn(25)
    (skipped,) = four.live.record.skipped
    assert "a second set (east,north,south) would reveal the difference" in skipped["reason"]
    assert np.isnan(sums(four)[-1][0])


def test_a_site_that_lost_its_sums_gets_them_again(world: LiveWorld) -> None:
    for _ in range(2):
        world.give()
        world.turn(3)
    before = world.received("east")
    file = world.site_folder("east") / "runs" / world.live.run / received.FILE
    file.write_bytes(b"damaged")
    world.network.restart("east")
    world.start()
    world.turn(15)
    again = world.received("east")
    assert again.total[-3:].tolist() == before.total[-3:].tolist()
    assert file.with_name(f"{received.FILE}.damaged").is_file()


def test_a_reply_of_another_site_is_refused(world: LiveWorld) -> None:
    answer = world.network._answer
    taken: list[bytes] = []

    def forged(site: str, request: bytes) -> bytes | FuelsError:
        reply = answer(site, request)
        if isinstance(reply, bytes) and b'"kind":"live sum"' in reply:
            if site == "east":
                taken.append(reply)
            elif site == "south" and taken:
                return taken[0]
        return reply

    world.network._answer = forged  # type: ignore[method-assign]
    world.give()
    world.turn(25)
    (skipped,) = world.live.record.skipped
    assert skipped["reason"] == "south: it does not answer the request"


def test_too_few_sites_and_values(world: LiveWorld) -> None:
    def missing(values: np.ndarray) -> None:
        values[0, :3] = np.nan

    for site in SITES:
        world.give(site, change=missing)
    world.give()  # a step later, so that the first one can be given up
    world.turn(25)
    assert "only 6 clients had values" in world.live.record.skipped[0]["reason"]
    certify_two(world)
    with pytest.raises(FuelsError, match="at least 3 sites, and the roster has 2"):
        world.turn(1)
    world.server.roster.unlink()
    world.start()
    with pytest.raises(FuelsError, match="there is no roster"):
        world.turn(1)


def certify_two(world: LiveWorld) -> None:
    roster, _ = parse(world.server.roster.read_bytes())
    two = {site: roster.members[site] for site in ("north", "south")}
    signed = sign(Roster(roster.federation, roster.serial + 1, two), authority_key(world.root))
    world.server.roster.write_bytes(signed)


@pytest.mark.parametrize("state", [b"", b'{"federation": "metro", ', None])
def test_a_roster_that_is_being_replaced_costs_nothing(
    world: LiveWorld, state: bytes | None
) -> None:
    file = world.server.roster
    content = file.read_bytes()
    file.unlink()
    if state is not None:
        file.write_bytes(state)
    world.give()
    world.turn(3)
    assert world.live.record.last["sites"] == sorted(SITES)
    assert world.live.problem
    file.write_bytes(content)
    world.turn(1)
    assert not world.live.problem
