"""The sums of a run between sites: as on one machine, and skipped with a reason otherwise."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fuels.config import Engine, merge
from fuels.experts.run_sums import (
    LIVE_MEAN,
    STATISTICS,
    Steps,
    parts_of,
    received_statistics,
)
from fuels.federation.codec import Envelope, decode, encode
from fuels.federation.flower.folders import SiteFolder
from fuels.federation.flower.live_messages import Sum
from fuels.federation.flower.provisioning import federation_record, renew_key
from fuels.federation.flower.sum_keys import certify
from fuels.federation.flower.sum_server import FILE
from fuels.federation.flower.worker import Worker
from fuels.forecasting.saved_run import SavedRun
from fuels.runs.run import run
from fuels.sharing.masks import new_key, public_key
from fuels.sharing.received import ReceivedMean
from fuels.sharing.roster import Member, Roster, parse, sign
from fuels.storage.checkpoint import load_state, save_state
from fuels.storage.run_folder import RunFolder
from helpers.flower_world import LIMIT, SITES, World
from helpers.live_world import authority_key
from helpers.sums import change, chosen, exchanged, forecasts, make_world

EVERYONE = sorted(c for ids in SITES.values() for c in ids)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = make_world(tmp_path_factory.mktemp("sums") / "world", chosen())
    world.run()
    return world


def test_the_forecasts_are_those_of_one_machine_with_all_clients(
    done: World, tmp_path: Path
) -> None:
    data = {"source": str(done.root / "panel.csv"), "ids": EVERYONE}
    folder = RunFolder(tmp_path / "one")
    run(merge(chosen(), {"data": data}, "test"), Engine(threads=1), folder, plots=False)
    one = forecasts(folder.path)
    runs = [done.root / "sites" / site / "runs" / "run" for site in SITES]
    three = pl.concat([forecasts(path) for path in runs]).sort("client", "time")
    for column in one.columns[3:]:
        np.testing.assert_array_equal(three[column], one[column], err_msg=column)
    ours = json.loads((runs[0] / "summary.json").read_text())["sharing"]
    theirs = json.loads((folder.path / "summary.json").read_text())["sharing"]
    assert ours["used"] == theirs["used"] == ["statistics", "live_mean"] and not ours["note"]
    assert ours["sent"] == theirs["sent"]
    sums = done.summary()["sums"]
    assert sums["live_mean"]["sites"] == sums["statistics"]["sites"] == sorted(SITES)
    page = (done.server.runs / "run" / "report.html").read_text()
    assert "Of the statistics, it received totals over east, north, south" in page
    assert not sums["skipped"] and sums["bytes_up"] > 8 * sums["statistics"]["numbers"]


def test_the_server_sees_totals_and_masked_words_only(done: World) -> None:
    replies: dict[tuple[str, str], Any] = {}
    for (site, kind, _, request), (_, _, _, reply) in zip(
        done.network.sent, done.network.got, strict=True
    ):
        name = decode(request, LIMIT).facts.get("name") if kind == "sum" else ""
        if name:
            words = decode(reply, LIMIT).arrays["words"]
            replies[site, name] = words
            # Uniform over 64 bits: plain contributions are small, and many of them are zero.
            assert np.median(np.abs(words[:-1] / 2.0**63)) > 0.4
    assert len(replies) == 6
    arrays, facts = load_state(done.server.runs / "run" / FILE)
    assert set(arrays) == {"live", "statistics"} and not facts["notes"]
    assert arrays["live"][:, 1].max() == 6
    lines = [json.loads(line) for line in done.server.audit.read_text().splitlines()]
    assert [e["name"] for e in lines if e["event"] == "sum"] == [LIVE_MEAN, STATISTICS]
    site = SiteFolder(done.root / "sites/north")
    lines = [json.loads(line) for line in site.audit.read_text().splitlines()]
    assert [e["sites"] for e in lines if e["event"] == "sum"] == [sorted(SITES)] * 2


def test_a_site_keeps_the_totals_for_later_forecasts(done: World) -> None:
    folder = done.root / "sites/north/runs/run"
    mean = ReceivedMean.load(folder / "live-mean.safetensors")
    assert mean.ids == ("a", "d") and mean.length == 12 * 24 and mean.count.max() == 6
    saved = SavedRun.load(folder)
    forecast, notes = saved.forecast(horizon=2)
    assert np.isfinite(forecast.values).all(), notes
    shared = saved.ensemble.sharing if saved.ensemble is not None else None
    assert shared is not None and shared.of_federation and shared.received_statistics is not None
    assert {horizon for horizon, _ in shared.received_statistics.totals} == {1, 2}


def test_a_live_step_has_the_set_of_the_sums_before_training(done: World, tmp_path: Path) -> None:
    """Even at a site that has lost the sums: both contain the same numbers of its clients."""
    site = SiteFolder(Path(shutil.copytree(done.root / "sites/north", tmp_path / "north")))
    (site.runs / "run" / "live-mean.safetensors").unlink()
    before, _ = parse(done.server.roster.read_bytes())
    members = {**before.members, "west": Member(public_key(new_key()), 2)}

    def ask(step: int, *sites: str, **clients: int) -> Envelope:
        changed = {name: replace(members[name], clients=n) for name, n in clients.items()}
        roster = Roster(before.federation, before.serial + 1, members | changed)
        facts = Sum(step, sites, sign(roster, authority_key(done.root))).facts()
        request = encode(Envelope("live sum", "run", 0, "north", facts))
        return decode(Worker(site, done.settings).answer(request, made=0.0), LIMIT)

    end = int((np.datetime64("2024-01-01", "s") + np.timedelta64(12, "D")).astype(int))
    four = ("east", "north", "south", "west")
    step, three = end - 3600, sorted(SITES)
    for reply, reason in (
        (ask(step, *four), "with the sites east,north,south; a second set (east,north,south,west)"),
        (ask(step, *three, north=3), "roster has 3 clients for site north, which has fewer"),
        (ask(step, *three, east=1), "have 5 clients together, and at least 6 are required"),
    ):
        assert reason in reply.facts["refused"] and not reply.arrays
    assert ask(step, *three).arrays["words"].size == 3


# -- without training: what is exchanged, and what is not ------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(tmp_path / "world", chosen(windows={"horizon": 1}), deadline=40.0)


def no_roster(world: World) -> None:
    world.server.roster.unlink()


def unreadable_roster(world: World) -> None:
    world.server.roster.unlink()
    world.server.roster.mkdir()


def no_consent(world: World) -> None:
    change(world, "south", "sums = true", "sums = false")


def few_clients(world: World) -> None:
    certify(world.root, federation_record(world.root), dict.fromkeys(SITES, 1), {})


def too_many_claimed(world: World) -> None:
    certify(world.root, federation_record(world.root), {"north": 3}, {})


def not_signed(world: World) -> None:
    facts = json.loads(world.server.roster.read_text())
    facts["sites"]["north"]["clients"] = 9
    world.server.roster.write_text(json.dumps(facts))


def other_key(world: World) -> None:
    renew_key(SiteFolder(world.root / "sites/south"))


def not_certified(world: World) -> None:
    file = world.server.config_file
    text = file.read_text()
    world.take_out("east")
    certify(world.root, federation_record(world.root), {"north": 2}, {})
    file.write_text(text)


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (unreadable_roster, "roster.json: cannot be read (Is a directory)"),
        (no_roster, "no roster.json, which the founder signs with fuels federation roster"),
        (
            no_consent,
            "2 of 3 sites can take part, and at least 3 are needed (south: no consent"
            " (consent.sums))",
        ),
        (few_clients, "have 3 clients, and at least 6 are needed (sharing.min_clients)"),
        (too_many_claimed, "the founder's roster has 3 clients for site north, which has fewer"),
        (not_signed, "the roster is not signed by the founder of federation test"),
        (other_key, "the founder's roster has another key for site south: send this site's"),
        (not_certified, "(east: not in the founder's roster)"),
    ],
)
def test_a_sum_that_cannot_be_is_skipped_with_the_reason(
    world: World, happens: Callable[[World], None], reason: str
) -> None:
    happens(world)
    sums = exchanged(world)
    assert reason in sums.notes[STATISTICS] and STATISTICS not in sums.totals
    assert (LIVE_MEAN in sums.totals) == (happens is no_consent)
    assert sums.summary()["sums"]["skipped"]["statistics"] == sums.notes[STATISTICS]


def lost(world: World, site: str, times: int) -> None:
    """The first replies of a site to a sum are lost."""
    left = [times]

    def fate(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        contribution = kind == "sum" and "words" in decode(reply, LIMIT).arrays
        if who == site and contribution and left[0]:
            left[0] -= 1
            return 0.0, "the worker ended before it could answer"
        return 0.0, reply

    world.network.fate = fate


def test_a_lost_reply_is_repeated_byte_for_byte(world: World) -> None:
    plain = exchanged(world)
    world.server.runs.joinpath("run", FILE).unlink()
    world.network.got.clear()
    lost(world, "north", 2)
    sums = exchanged(world)
    for name, total in plain.totals.items():
        np.testing.assert_array_equal(sums.totals[name], total)
    given = [c for site, kind, _, c in world.network.got if (site, kind) == ("north", "sum")]
    by_name = [c for c in given if decode(c, LIMIT).arrays.get("words", np.empty(0)).size == 577]
    assert len(by_name) == 3 and len(set(by_name)) == 1


def test_replies_that_come_twice_and_late_are_distinguished(world: World) -> None:
    """A slow site is asked again, so that it replies to one sum when it is asked for the next."""

    def slow(site: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes]:
        adds = kind == "sum" and "words" in decode(reply, LIMIT).arrays
        return 12.0 * (adds and site == "north"), reply

    world.network.fate = slow
    sums = exchanged(world)
    assert set(sums.totals) == {LIVE_MEAN, STATISTICS} and not sums.notes


def test_a_damaged_record_of_sums_does_not_fail_the_run(world: World) -> None:
    exchanged(world)
    world.server.runs.joinpath("run", FILE).write_bytes(b"damaged")
    sums = exchanged(world)
    assert "is damaged" in sums.notes[LIVE_MEAN] and not sums.message()[1]


def test_a_site_with_another_clock_takes_part_in_no_sum(world: World) -> None:
    folder = world.root / "sites" / "east"
    world.give_data("east", 12)
    text = (folder / "own.csv").read_text().replace(":00,", ":30,")
    (folder / "own.csv").write_text(text)
    sums = exchanged(world)
    for name in (LIVE_MEAN, STATISTICS):
        assert "2 of 3 sites can take part" in sums.notes[name]
        assert "east: its steps of 3600 s" in sums.notes[name]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"name": STATISTICS}, "does not consent to the sum statistics (consent.sums in its site"),
        ({"sites": ["north", "south"]}, "at least 3 sites, and this one has 2 (north, south)"),
        ({"name": "the values"}, "asks for a sum that this version does not know"),
        ({"steps": {}}, "the steps of a sum are not described completely"),
        ({"steps": {"start": 0}}, "the steps of a sum are not described completely"),
        ({"sites": None}, "the list of sites is not a list of strings"),
        ({"roster": "{}"}, "the roster cannot be read"),
    ],
)
def test_a_site_refuses_what_a_server_must_not_ask(
    world: World, facts: dict[str, Any], reason: str
) -> None:
    change(world, "south", "sums = true", "sums = false")
    folder = SiteFolder(world.root / "sites/south")
    steps = Steps(int(np.datetime64("2024-01-01", "s").astype(int)), 3600, 24, 288, 192)
    asked = {"name": LIVE_MEAN, "steps": steps.facts(), "sites": sorted(SITES), "live": False}
    asked |= {"roster": world.server.roster.read_text(), "asked": [], "having": [], **facts}
    request = encode(Envelope("sum", "run", 0, "south", asked))
    reply = decode(Worker(folder, world.settings).answer(request, made=0.0), LIMIT)
    assert reason in reply.facts["refused"] and not reply.arrays
    assert reason in folder.audit.read_text()


def test_a_site_that_stays_away_costs_the_sum_and_nothing_else(world: World) -> None:
    lost(world, "north", 10**6)
    sums = exchanged(world)
    assert sums.totals == {} and all("no sum without north" in why for why in sums.notes.values())
    # The server starts again: what was skipped stays skipped, as sites answered for this set.
    world.network.fate = lambda site, kind, number, reply: (0.0, reply)
    assert exchanged(world).notes == sums.notes


def test_a_site_that_died_is_not_waited_for_twice(world: World) -> None:
    def dies(site: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        if site == "north" and "words" in decode(reply, LIMIT).arrays:
            world.network.there.discard("north")
            return 0.0, "the worker ended before it could answer"
        return 0.0, reply

    world.network.fate = dies
    sums = exchanged(world)
    assert "no sum without north" in sums.notes[LIVE_MEAN]
    assert "2 of 3 sites can take part" in sums.notes[STATISTICS]
    assert "(north: not connected)" in sums.notes[STATISTICS]


def test_a_restarted_server_asks_the_same_set(world: World) -> None:
    first = exchanged(world)
    file = world.server.runs / "run" / FILE
    arrays, facts = load_state(file)
    save_state(file, {"live": arrays["live"]}, {**facts, "notes": {}})  # killed in between
    change(world, "south", "live_mean = true", "live_mean = false")  # its live mean is not asked
    again = exchanged(world)
    np.testing.assert_array_equal(again.totals[STATISTICS], first.totals[STATISTICS])
    assert again.sets == first.sets


def test_sites_may_have_other_days_and_other_clients(world: World) -> None:
    world.give_data("east", 13)
    sums = exchanged(world)
    assert sums.steps is not None and (sums.steps.count, sums.steps.end) == (13 * 24, 8 * 24)
    count = sums.totals[LIVE_MEAN][:, 1]
    assert (count[: 12 * 24] == 6).all()
    assert not sums.totals[LIVE_MEAN][12 * 24 :].any()  # of east alone: the total would be its sum
    assert sums.totals[STATISTICS].shape and not sums.notes


def begins(world: World, site: str, day: int, days: int) -> None:
    """A site's own data, from a day of January on."""
    world.give_data(site, day + days)
    file = world.root / "sites" / site / "own.csv"
    head, *lines = file.read_text().splitlines(keepends=True)
    start = str(np.datetime64("2024-01-01T00") + np.timedelta64(day, "D"))
    file.write_text(head + "".join(line for line in lines if line >= start))


@pytest.mark.parametrize(("day", "available"), [(8, True), (12, False)])
def test_statistics_are_never_those_of_one_site(tmp_path: Path, day: int, available: bool) -> None:
    """Rows need a week of values: those of a site with a longer history would be the total."""
    settings = chosen(windows={"horizon": 1, "split": "18/2/2"})
    world = make_world(tmp_path / "world", settings, deadline=40.0)
    for site in SITES:
        begins(world, site, 0 if site == "north" else day, 22)
    sums = exchanged(world)
    if not available:
        assert "at least 3 sites share is shorter than the longest lag" in sums.notes[STATISTICS]
        return
    assert sums.steps is not None and sums.live
    found = received_statistics(sums.steps, 1, sums.live, sums.totals[STATISTICS])
    week = max(parts_of(sums.steps, 1, sums.live)[0].columns.lags)
    assert found.totals[1, 18 * 24].rows == 6 * (18 * 24 - day * 24 - week)


def test_a_part_of_the_statistics_has_one_set_also_if_their_last_step_differs(
    world: World,
) -> None:
    """With 9 and with 10 days of training, the first part has 7."""
    before, _ = parse(world.server.roster.read_bytes())
    members = {**before.members, "west": Member(public_key(new_key()), 2)}
    roster = sign(Roster("test", before.serial + 1, members), authority_key(world.root)).decode()
    first = Steps(int(np.datetime64("2024-01-01", "s").astype(int)), 3600, 24, 288, 192)

    def ask(days: int, *sites: str) -> Envelope:
        facts: dict[str, Any] = {"name": STATISTICS, "sites": list(sites), "roster": roster}
        facts |= {"steps": replace(first, end=24 * days).facts(), "asked": [], "having": []}
        request = encode(Envelope("sum", f"run-{days}", 0, "south", facts))
        folder = SiteFolder(world.root / "sites/south")
        return decode(Worker(folder, world.settings).answer(request, made=0.0), LIMIT)

    three, four = tuple(sorted(SITES)), (*sorted(SITES), "west")
    assert ask(9, *three).arrays
    assert "a second set (east,north,south,west)" in ask(10, *four).facts["refused"]
    assert "a second set" in ask(7, *four).facts["refused"]
    assert ask(10, *three).arrays and ask(8, *four).arrays
