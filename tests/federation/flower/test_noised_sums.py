"""Sums with noise between sites: who adds it, what it costs each site, and what a kill leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fuels.config import Engine, merge
from fuels.errors import FuelsError
from fuels.experts.run_sums import Steps
from fuels.federation.codec import Envelope, decode, encode
from fuels.federation.flower import private_sum_site as module
from fuels.federation.flower.folders import RefusalError, SiteFolder
from fuels.federation.flower.sum_server import FILE
from fuels.federation.flower.worker import Worker
from fuels.forecasting.saved_run import SavedRun
from fuels.privacy.ledger import Ledger, Release
from fuels.runs.run import run
from fuels.runs.settings import ResolvedSettings
from fuels.sharing import secure_sums
from fuels.sharing.protection import DAY, LEDGER, MEAN, STATISTICS
from fuels.storage.checkpoint import load_state, save_state
from fuels.storage.run_folder import RunFolder
from helpers.flower_world import LIMIT, SITES, World, fuels
from helpers.sums import change, chosen, exchanged, forecasts, make_world, private

DAYS = 20
EVERYONE = sorted(c for ids in SITES.values() for c in ids)


def long(**changes: Any) -> ResolvedSettings:
    """With a training part that is long enough for statistics."""
    return private(windows={"split": "16/2/2"}, **changes)


def private_world(root: Path, settings: ResolvedSettings) -> World:
    world = make_world(root, settings, deadline=40.0)
    for site in SITES:
        world.give_data(site, DAYS)
    return world


def ledger(world: World, site: str) -> Ledger:
    return Ledger.opened(world.root / "sites" / site / "state" / LEDGER)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No noise at all."""

    def none(self: Release, sites: int = 1, colluding: int = 0) -> np.ndarray:
        return np.zeros(self.shape, dtype=np.int64)

    monkeypatch.setattr(Release, "noise", none)


def test_without_noise_the_forecasts_would_be_those_of_one_machine(
    tmp_path: Path, quiet: None
) -> None:
    world = private_world(tmp_path / "world", long())
    world.run()
    whole = tmp_path / "all.csv"
    parts = [(world.root / "sites" / s / "own.csv").read_text().splitlines() for s in SITES]
    whole.write_text("\n".join([parts[0][0], *(line for p in parts for line in p[1:])]) + "\n")
    folder = RunFolder(tmp_path / "one")
    settings = merge(long(), {"data": {"source": str(whole), "ids": EVERYONE}}, "test")
    run(settings, Engine(threads=1), folder, plots=False)
    one = forecasts(folder.path)
    runs = [world.root / "sites" / site / "runs" / "run" for site in SITES]
    three = pl.concat([forecasts(path) for path in runs]).sort("client", "time")
    for column in one.columns[3:]:
        np.testing.assert_allclose(three[column], one[column], rtol=1e-9, err_msg=column)
    # What a run states: at a site, at the server, and to whoever reads a ledger.
    own = json.loads((runs[0] / "summary.json").read_text())
    assert own["sharing"]["used"] == ["statistics", "live_mean"] and not own["sharing"]["note"]
    stated, server = own["privacy"], world.summary()["privacy"]
    for name in ("unit", "relation", "epsilon", "delta", "colluding", "not_covered"):
        assert stated[name] == server[name]
    assert stated["not_covered"][0] == "more than 1 colluding site"
    assert 3.9 < stated["epsilon_spent"] == stated["epsilon_of_all_runs"] <= 4
    page = (world.server.runs / "run" / "report.html").read_text()
    assert "differentially private with epsilon 4" in page and "more than 1 colluding" in page
    shown = fuels("privacy", "spent", world.root / "sites/north", "--json").stdout
    assert json.loads(shown)["epsilon"] == "20.0" and len(json.loads(shown)["releases"]) == 4
    # Nothing but noised sums, names and dates leaves a site: no error figure and no upload.
    for _, kind, _, content in world.network.got:
        assert set(decode(content, LIMIT).arrays) <= ({"words"} if kind == "sum" else set())
    # Later forecasts use the totals, and release nothing more.
    before = ledger(world, "north").path.read_bytes()  # type: ignore[union-attr]
    forecast, _ = SavedRun.load(runs[0]).forecast()
    assert np.isfinite(forecast.values).all()
    assert ledger(world, "north").path.read_bytes() == before  # type: ignore[union-attr]


def test_the_noise_of_all_sites_tolerates_one_that_knows_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[np.ndarray] = []
    noise = Release.noise

    def seen(self: Release, sites: int = 1, colluding: int = 0) -> np.ndarray:
        assert (sites, colluding) == (3, 1)
        drawn.append(noise(self, sites, colluding) * self.grid / self.sigma)
        return np.asarray(np.rint(drawn[-1] * self.sigma / self.grid), dtype=np.int64)

    monkeypatch.setattr(Release, "noise", seen)
    sums = exchanged(private_world(tmp_path / "world", long()))
    assert [e.release.name for e in sums.found] == [DAY, MEAN, MEAN, STATISTICS]
    each = np.concatenate([part.reshape(-1) for part in drawn])
    assert each.std() == pytest.approx(np.sqrt(1 / 2), rel=0.06)
    whole = [sum(drawn[i : i + 3]) for i in range(0, len(drawn), 3)]
    every = np.concatenate([np.asarray(part).reshape(-1) for part in whole])
    assert len(every) > 600 and every.std() == pytest.approx(np.sqrt(3 / 2), rel=0.1)


def test_a_scale_from_noised_histograms_stays_at_the_site_and_is_charged(
    tmp_path: Path, quiet: None
) -> None:
    world = private_world(tmp_path / "world", long(privacy={"scale": "", "epsilon": 20.0}))
    sums = exchanged(world)
    assert [e.about["clients"] for e in sums.found] == [6] * 4
    kept = ledger(world, "east")
    assert next(iter(kept.entries.values())).release.name == "scale"
    assert kept.epsilon == pytest.approx(20, abs=0.05)
    weak = private_world(tmp_path / "weak", long(privacy={"scale": "", "epsilon": 0.1}))
    sums = exchanged(weak)
    assert "the noise hides the scale of all but 0 clients" in sums.notes["statistics"]
    assert not sums.found


def test_each_site_reads_the_scale_of_its_clients_from_its_own_file(
    tmp_path: Path, quiet: None
) -> None:
    world = private_world(tmp_path / "world", long(privacy={"scale": "scale.csv"}))
    notes = exchanged(world).notes
    assert "north: scale.csv: cannot be read" in notes["statistics"]
    for site, ids in SITES.items():
        rows = "".join(f"{client},10,3\n" for client in ids)
        (world.root / "sites" / site / "scale.csv").write_text(f"client,mean,std\n{rows}")
    for one, other in zip(
        exchanged(world, "again").found,
        exchanged(private_world(tmp_path / "same", long())).found,
        strict=True,
    ):
        np.testing.assert_array_equal(one.message, other.message)


def test_without_a_live_mean_the_statistics_have_no_columns_for_it(tmp_path: Path) -> None:
    world = private_world(tmp_path / "world", long())
    change(world, "south", "live_mean = true", "live_mean = false")
    sums = exchanged(world)
    assert "(south: no consent (consent.live_mean))" in sums.notes["live_mean"]
    assert [e.release.name for e in sums.found] == [DAY, STATISTICS]
    assert sums.found[1].release.shape == (78,)
    change(world, "south", "live_mean = false", "live_mean = true")
    again = exchanged(world)  # a restarted server asks for nothing more
    assert again.notes == sums.notes and len(again.found) == 2
    file = world.server.runs / "run" / FILE  # killed before the statistics
    arrays, facts = load_state(file)
    save_state(file, {"0": arrays["0"]}, {**facts, "found": facts["found"][:1]})
    np.testing.assert_array_equal(exchanged(world).found[1].message, sums.found[1].message)


def lines(world: World, site: str) -> list[str]:
    return [e.release.name for e in ledger(world, site).entries.values()]


def test_a_lost_reply_is_repeated_byte_for_byte_and_charged_once(tmp_path: Path) -> None:
    world, left = private_world(tmp_path / "world", long()), [2]

    def lost(site: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        adds = kind == "sum" and "words" in decode(reply, LIMIT).arrays
        if adds and site == "north" and left[0]:
            left[0] -= 1
            return 0.0, "the worker ended before it could answer"
        return 0.0, reply

    world.network.fate = lost
    sums = exchanged(world)
    given = [c for site, kind, _, c in world.network.got if (site, kind) == ("north", "sum")]
    first = [c for c in given if decode(c, LIMIT).facts.get("name") == DAY]
    assert len(first) == 3 and len(set(first)) == 1
    assert lines(world, "north") == [e.release.name for e in sums.found]
    # A restarted server goes on where it was; one that lost its record gets the same words again.
    assert [e.message.tolist() for e in exchanged(world).found] == [
        e.message.tolist() for e in sums.found
    ]
    (world.server.runs / "run" / FILE).unlink()
    for one, other in zip(exchanged(world).found, sums.found, strict=True):
        np.testing.assert_array_equal(one.message, other.message)
    assert lines(world, "north") == [e.release.name for e in sums.found]


class Killed(BaseException):
    """The process is gone: nothing catches this."""


def test_replies_that_come_twice_and_late_are_distinguished(tmp_path: Path) -> None:
    """Two parts of the live mean have the same name: a late reply about one is not of the other."""
    world = private_world(tmp_path / "world", long())

    def slow(site: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes]:
        adds = kind == "sum" and "words" in decode(reply, LIMIT).arrays
        return 12.0 * (adds and site == "north"), reply

    world.network.fate = slow
    sums = exchanged(world)
    assert not sums.notes and [e.release.name for e in sums.found] == [DAY, MEAN, MEAN, STATISTICS]


@pytest.mark.parametrize("point", ["before the ledger", "after the ledger", "after the answer"])
def test_a_site_killed_at_any_point_is_charged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    world = private_world(tmp_path / "world", long())
    plain, masked, release = module.answer_private_sum, secure_sums.masked, Ledger.release
    left = [1]

    def dies(*parties: Any, **more: Any) -> Any:
        if left[0]:
            left[0] = 0
            raise Killed
        return {"before": release, "after": masked}[point.split()[0]](*parties, **more)

    def answers_and_dies(*parties: Any) -> Any:
        reply = plain(*parties)
        if left[0] and "words" in reply.arrays:
            left[0] = 0
            raise Killed
        return reply

    target = {
        "before the ledger": (Ledger, "release", dies),
        "after the ledger": (secure_sums, "masked", dies),
        "after the answer": (module, "answer_private_sum", answers_and_dies),
    }[point]
    monkeypatch.setattr(*target)
    with pytest.raises(Killed):
        exchanged(world)
    sums = exchanged(world)
    assert left == [0] and not sums.notes
    for site in SITES:
        assert lines(world, site) == [e.release.name for e in sums.found]
        assert 3.9 < ledger(world, site).epsilon <= 4


def test_a_site_refuses_what_exceeds_its_own_limit(tmp_path: Path) -> None:
    world = private_world(tmp_path / "world", long())
    change(world, "north", "epsilon = 0.0", "epsilon = 5.0")
    assert not exchanged(world).notes
    before = (world.root / "sites/north/state" / LEDGER).read_bytes()
    notes = exchanged(world, "again").notes
    assert "north: the ledger of site north: this run would spend epsilon 4" in notes["statistics"]
    assert "which the budget of 5 does not allow: epsilon 4 is spent" in notes["live_mean"]
    assert (world.root / "sites/north/state" / LEDGER).read_bytes() == before
    change(world, "north", "epsilon = 5.0", "epsilon = 8.0")  # the owner's decision
    assert not exchanged(world, "third").notes
    assert 5 < ledger(world, "north").epsilon < 8
    assert len(lines(world, "south")) == 8


def test_a_site_that_lost_its_ledger_adds_nothing(tmp_path: Path) -> None:
    world = private_world(tmp_path / "world", long())
    path = world.root / "sites/north/state" / LEDGER
    assert not exchanged(world).notes
    kept = world.root / "sites/north/runs/run" / LEDGER  # what a finished run keeps of the sums
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(path.read_bytes())
    for lost in (path.unlink, path.touch):
        lost()
        notes = exchanged(world, f"after-{lost.__name__}").notes
        assert "state/privacy.jsonl) is missing or empty, so what it has" in notes["statistics"]
        assert not path.exists() or not path.read_bytes()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('unit = "hour"', 'unit = "day"', "privacy.unit = hour, and site south demands day"),
        ("delta = 1e-05", "delta = 1e-06", "privacy.delta = 1e-05, and site south demands 1e-06"),
        ("sums = true", "sums = false", "south: no consent (consent.sums)"),
    ],
)
def test_a_site_demands_its_own_kind_of_guarantee(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    world = private_world(tmp_path / "world", long())
    change(world, "south", old, new)
    sums = exchanged(world)
    assert reason in sums.notes["statistics"]
    assert "2 of 3 sites can take part" in sums.notes["statistics"]


def test_a_site_that_demands_noise_refuses_exact_sums(tmp_path: Path) -> None:
    world = make_world(tmp_path / "world", chosen())
    change(world, "north", "epsilon = 0.0", "epsilon = 5.0")
    notes = exchanged(world).notes
    assert all("site north takes part only in sums with noise" in why for why in notes.values())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"end": 15 * 24}, "asks for more than the epsilon of 4 that the run announces"),
        ({"name": "the values"}, "asks for a sum that this run does not have"),
        ({"found": None}, "does not say which sums it has"),
        ({"found": [{"name": DAY, "first": 0}]}, "describes a sum incompletely"),
        ({"found": [{"name": DAY, "first": 0, "clients": 6}]}, "do not have the form of the sums"),
        ({"sites": ["north", "south"]}, "at least 3 sites, and this one has 2 (north, south)"),
    ],
)
def test_a_site_refuses_what_a_server_must_not_ask(
    exchanged_once: World, changes: dict[str, Any], reason: str
) -> None:
    world, site = exchanged_once, SiteFolder(exchanged_once.root / "sites/north")
    start = int(np.datetime64("2024-01-01", "s").astype(int))
    steps = Steps(start, 3600, 24, DAYS * 24, changes.get("end", 16 * 24))
    asked = {"name": DAY, "first": start, "steps": steps.facts(), "sites": sorted(SITES)}
    asked |= {"roster": world.server.roster.read_text(), "asked": [], "having": [], "found": []}
    before = (site.state / LEDGER).read_bytes()
    request = encode(Envelope("sum", "run", 0, "north", asked | changes))
    reply = decode(Worker(site, world.settings).answer(request, made=0.0), LIMIT)
    assert reason in reply.facts["refused"] and not reply.arrays
    assert (site.state / LEDGER).read_bytes() == before


def test_a_site_that_drops_implausible_values_says_why_it_cannot_take_part(tmp_path: Path) -> None:
    world = private_world(tmp_path / "world", private())
    change(world, "north", "[data]\n", '[data]\nimplausible = "missing"\n')
    with pytest.raises(RefusalError, match=r"site\.toml does not fit: .* needs --implausible keep"):
        Worker(SiteFolder(world.root / "sites/north"), world.settings)


@pytest.fixture(scope="module")
def exchanged_once(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = private_world(tmp_path_factory.mktemp("private") / "world", long())
    assert not exchanged(world).notes
    return world


def test_settings_of_a_private_federation(exchanged_once: World) -> None:
    command = ("federation", "run", exchanged_once.root, "--show")
    shown = fuels(*command, "--privacy", "epsilon=2,colluding=2").stdout
    for text in ('method="solo"', "privacy.epsilon=2.0", "privacy.colluding=2"):
        assert text in shown.replace("'", '"').replace('\\"', '"')
    for text, said in (
        ("privacy.ledger=mine.jsonl", "each site has its own ledger"),
        ("privacy.colluding=0", "at least 1, because every site knows its own noise"),
        ("method=fuels", "it needs --method solo"),
        ("privacy.scale=/data/scale.csv", "give its name without a path"),
    ):
        with pytest.raises(FuelsError, match=said):
            fuels(*command, "--preset", "private", "--set", text)
