"""A site's side of secure sums: what it refuses, and that no mask is used twice."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.secure import World, private_key

from fuels.errors import FuelsError
from fuels.sharing.answers import Span
from fuels.sharing.fixed_point import Words, to_words
from fuels.sharing.masks import SumId, total
from fuels.sharing.roster import Member


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def words(value: float, numbers: int = 2) -> Callable[[], Words]:
    return lambda: to_words([np.full(numbers, value)], 3, "test")


def test_three_sites_add_up_and_a_retry_repeats_the_same_bytes(world: World) -> None:
    asked, roster = world.asked(2), world.roster()
    values = dict(zip(world.names, (1.5, -0.25, 8.0), strict=True))
    replies = {s: world.site(s).answer(asked, roster, words(v)) for s, v in values.items()}
    assert total(asked, replies).tolist() == [9.25, 9.25]
    # A retry, after a restart and with other data: what was sent is sent again.
    again = world.site("north").answer(asked, roster, words(77.0))
    assert again.tobytes() == replies["north"].tobytes()


def refusal(world: World, asked: SumId, roster: bytes | None = None, **changes: int) -> str:
    with pytest.raises(FuelsError) as caught:
        world.site("north", **changes).answer(asked, roster or world.roster(), words(1.0))
    return str(caught.value)


def test_two_sites_are_too_few(world: World) -> None:
    found = refusal(world, world.asked(2, sites=("east", "north")))
    assert found == ("test, step 0: a sum needs at least 3 sites, and this one has 2 (east, north)")


def test_too_few_clients(world: World) -> None:
    found = refusal(world, world.asked(2), min_clients=16)
    assert "its sites have 15 clients together, and at least 16 are required" in found


def test_a_second_set_for_the_same_step(tmp_path: Path) -> None:
    world = World(tmp_path, count=4)
    three = world.asked(2, sites=("east", "north", "south"))
    first = world.site("north").answer(three, world.roster(), words(1.0))
    for other in (world.asked(2), world.asked(2, series="run-2")):  # also in another run
        assert refusal(world, other) == (
            "test, step 0: this site has already answered with the sites east,north,south; a second"
            " set (east,north,south,west) would reveal the difference"
        )
    # The same set again, the next step with all, and another run with the same set are fine.
    np.testing.assert_array_equal(
        world.site("north").answer(three, world.roster(), words(1.0)), first
    )
    world.site("north").answer(world.asked(2, step=1), world.roster(), words(1.0))
    again = world.asked(2, series="run-2", sites=three.sites)
    other = world.site("north").answer(again, world.roster(), words(1.0))
    assert not np.isin(other, first).any()  # with other masks


def test_sums_of_two_names_that_contain_the_same_numbers(tmp_path: Path) -> None:
    """Such as the live mean before training, over many steps, and steps of a live series."""
    world = World(tmp_path, count=4)
    site, roster = world.site("north"), world.roster()
    three = ("east", "north", "south")

    def answer(name: str, sites: tuple[str, ...], first: int, last: int, what: str = "A") -> None:
        asked = world.asked(2, step=last, name=name, series=f"{name} {sites}", sites=sites)
        site.answer(asked, roster, words(1.0), also=[Span(f"mean {what}", first, last)])

    def refused(*arguments: object) -> bool:
        with pytest.raises(FuelsError, match="answered with the sites east,north,south; a second"):
            answer(*arguments)  # type: ignore[arg-type]
        return True

    answer("past", three, 100, 200)
    for first, last in ((199, 200), (100, 101), (150, 300), (50, 101), (0, 999)):
        assert refused("live", world.names, first, last)
    answer("live", three, 199, 200)  # the same set
    answer("live", three, 200, 210)
    answer("live", three, 210, 220)
    answer("live", world.names, 220, 230)  # a step that nobody has answered
    answer("live", world.names, 50, 99)
    answer("other", world.names, 150, 201, "B")  # other numbers
    assert refused("past 2", world.names, 219, 240) and refused("past 2", world.names, 205, 206)
    with closing(sqlite3.connect(site.answers.path)) as database:
        kept = database.execute("SELECT first, last FROM spans WHERE name = 'mean A'").fetchall()
    assert sorted(kept) == [(50, 99), (100, 220), (220, 230)]  # steps of one set are one row


def test_the_sets_of_an_earlier_version_still_count(tmp_path: Path) -> None:
    world = World(tmp_path, count=4)
    site = world.site("north")
    site.answers.path.parent.mkdir()
    with closing(sqlite3.connect(site.answers.path)) as database:
        database.execute(
            "CREATE TABLE sets (name TEXT, step INTEGER, sites TEXT, PRIMARY KEY (name, step))"
        )
        database.execute("INSERT INTO sets VALUES ('test', 7, 'east,north,south')")
        database.commit()
    for _ in range(2):
        assert "already answered with the sites" in refusal(world, world.asked(2, step=7))
    site.answer(world.asked(2, step=8), world.roster(), words(1.0))


def test_the_same_sum_in_another_form_would_reuse_masks(world: World) -> None:
    world.site("north").answer(world.asked(2), world.roster(), words(1.0))
    assert "in another form" in refusal(world, world.asked(2, shape=(2, 1)))
    assert "in another form" in refusal(world, world.asked(2, serial=2), world.roster(2))


def test_rosters_that_the_founder_did_not_sign(world: World, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    unsigned = "the roster is not signed by the founder of federation metro"
    assert refusal(world, world.asked(2), World(tmp_path / "other").roster()) == unsigned
    changed = json.loads(world.roster())
    changed["sites"]["south"]["clients"] = 500
    assert refusal(world, world.asked(2), json.dumps(changed).encode()) == unsigned
    for broken in (b"{}", b"\xff", b"[" * 10_000, b'{"signature": 1}'):
        assert "cannot be read" in refusal(world, world.asked(2), broken)


def test_invented_sites_replaced_keys_and_old_rosters(world: World) -> None:
    invented = world.asked(2, sites=("east", "invented", "north"))
    assert "invented is not a site of the founder's roster" in refusal(world, invented)
    assert "not in the set" in refusal(world, world.asked(2, sites=("a", "b", "c")), world.roster(
        a=Member(private_key("a"), 5), b=Member(private_key("b"), 5), c=Member(private_key("c"), 5)
    ))  # fmt: skip
    replaced = world.roster(north=Member(private_key("?"), 5))
    assert "another key for site north: send this site's sums.pub" in refusal(
        world, world.asked(2), replaced
    )
    twice = world.roster(north=Member(private_key("?"), 5), south=Member(private_key("?"), 5))
    assert refusal(world, world.asked(2), twice) == "two sites of the roster have the same key"
    world.site("north").answer(world.asked(2, serial=2), world.roster(2), words(1.0))
    assert "older than roster 2" in refusal(world, world.asked(2, step=1))
    assert "another roster 2" in refusal(
        world, world.asked(2, step=1, serial=2), world.roster(2, west=Member(private_key("w"), 9))
    )
    assert "another federation or roster" in refusal(world, world.asked(2, serial=9))


def test_nothing_is_recorded_or_sent_if_a_contribution_fails(world: World) -> None:
    def fails() -> Words:
        raise FuelsError("it is not finite")

    with pytest.raises(FuelsError, match="not finite"):
        world.site("north").answer(world.asked(2), world.roster(), fails)
    world.site("north").answer(world.asked(2), world.roster(), words(1.0))


def test_a_lost_or_damaged_record_stops_the_key(world: World) -> None:
    site = world.site("north")
    site.answer(world.asked(2), world.roster(), words(1.0))
    site.answers.path.write_bytes(b"no database" * 100)
    assert "cannot be used" in refusal(world, world.asked(2, step=1))
    site.answers.path.unlink()
    assert "create a new key with fuels site renew-key, so that no mask is used twice" in refusal(
        world, world.asked(2, step=1)
    )
    site.answers.path.touch()
    for _ in range(2):
        assert "is empty, the record of the sums" in refusal(world, world.asked(2, step=1))
    site.answers.mark.unlink()  # as a new key does
    world.site("north").answer(world.asked(2, step=1), world.roster(), words(1.0))


def test_nobody_is_told_to_delete_a_record_that_is_only_locked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sets would be forgotten."""
    site = world.site("north")
    site.answer(world.asked(2), world.roster(), words(1.0))
    monkeypatch.setattr("fuels.sharing.answers.WAIT", 0.05)
    with closing(sqlite3.connect(site.answers.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        found = refusal(world, world.asked(2, step=1))
        assert "cannot be used now (database is locked); do not delete it" in found
        other.execute("ROLLBACK")
    site.answer(world.asked(2, step=1), world.roster(), words(1.0))


def test_old_replies_are_forgotten_but_not_their_sets(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuels.sharing.answers.KEPT", 2)
    for step in range(4):
        world.site("north").answer(world.asked(2, step=step), world.roster(), words(1.0))
    assert "too long ago" in refusal(world, world.asked(2, step=1))
    world.site("north").answer(world.asked(2, step=2), world.roster(), words(9.0))
    # Those of an earlier run, too: its replies would fill the disk.
    for step in range(2):
        again = world.asked(2, step=step, series="run-2")
        world.site("north").answer(again, world.roster(), words(1.0))
    assert "too long ago" in refusal(world, world.asked(2, step=2))
