"""The embedded federation: same seed same bytes, and it shows what real traffic shows."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections import Counter
from datetime import date
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fuels.data import synthetic
from fuels.data.city_profiles import KINDS, MAX_DAYS, SEASON, SERVICES, day_types, hour_of, season
from fuels.data.synthetic import kinds_of, synthesise
from fuels.errors import FuelsError

CELLS = 144  # four whole districts
HOUR = np.arange(62 * 24) % 24
WEEKDAY = (np.arange(62 * 24) // 24 + 4) % 7  # 1 November 2013 was a Friday
NOVEMBER = np.arange(62 * 24) < 30 * 24


def digest(activity: str, clients: int, days: int, seed: int) -> str:
    return hashlib.sha256(synthesise(activity, clients, days, seed).values.tobytes()).hexdigest()


@pytest.fixture(scope="module")
def city() -> dict[str, np.ndarray]:
    """Values [time, cell] of every service."""
    return {activity: synthesise(activity, CELLS).values for activity in SERVICES}


def of_kind(values: np.ndarray, kind: str) -> np.ndarray:
    """The mean series of one kind, every cell divided by its own mean."""
    chosen = values[:, np.array(kinds_of(CELLS)) == kind]
    return (chosen / chosen.mean(axis=0)).mean(axis=1)


# -- the same bytes ----------------------------------------------------------------------------


@pytest.mark.parametrize("activity", SERVICES)
def test_same_seed_same_bytes(activity: str) -> None:
    assert digest(activity, 50, 5, 7) == digest(activity, 50, 5, 7)
    assert digest(activity, 50, 5, 7) != digest(activity, 50, 5, 8)


@pytest.mark.parametrize("activity", SERVICES)
@pytest.mark.parametrize("clients", [1, 10, 36, 37, 99])
def test_fewer_clients_are_the_first_of_many(activity: str, clients: int) -> None:
    few, many = synthesise(activity, clients, 6, 3), synthesise(activity, 100, 6, 3)
    assert np.array_equal(few.values, many.values[:, :clients])
    assert few.ids == many.ids[:clients]
    assert few.coordinates is not None and many.coordinates is not None
    assert np.array_equal(few.coordinates, many.coordinates[:clients])
    assert kinds_of(clients, 3) == kinds_of(100, 3)[:clients]


@pytest.mark.parametrize("activity", SERVICES)
@pytest.mark.parametrize("days", [1, 4, 55, 62])
def test_fewer_days_are_the_first_of_many(activity: str, days: int) -> None:
    few, many = synthesise(activity, 36, days), synthesise(activity, 36, MAX_DAYS)
    assert np.array_equal(few.values, many.values[: 24 * days])


def test_random_streams_are_all_different() -> None:
    names = range(synthetic.SILENCE + 1)
    firsts = [
        synthetic._stream(seed, name, district, service).random()
        for seed in range(3)
        for name in names
        for district in range(3)
        for service in range(4)
    ]
    assert len(set(firsts)) == 3 * len(names) * 3 * 4


# -- the panel ---------------------------------------------------------------------------------


def test_panel_says_what_it_is() -> None:
    panel = synthesise("sms", 40, 62)
    assert panel.synthetic and panel.name == "synthetic-sms" and panel.unit == "activity"
    assert panel.ids[0] == "cell-0001" and panel.ids[-1] == "cell-0040"
    assert panel.values.shape == (62 * 24, 40) and panel.values.flags.c_contiguous
    assert panel.timezone == "Europe/Rome"
    assert panel.start + panel.standard_offset == np.datetime64("2013-11-01T00:00:00")
    assert panel.phases(24)[:3].tolist() == [0, 1, 2]
    assert np.isfinite(panel.values).all() and (panel.values >= 0).all()
    assert np.array_equal(panel.values, np.round(panel.values))  # counts
    assert panel.coordinates is not None
    assert len(np.unique(panel.coordinates, axis=0)) == 40
    assert "nothing about a real network" in panel.notes[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"activity": "internet"}, "no activity 'internet'; choose sms, call or net"),
        ({"clients": 0}, "clients must be a whole number from 1 to 9999, not 0"),
        ({"clients": 10_000}, "clients"),
        ({"clients": 2.5}, "clients must be a whole number"),
        ({"days": 0}, "days must be a whole number from 1 to 149, not 0"),
        ({"days": 150}, "days"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(FuelsError, match=words):
        synthesise(**arguments)  # type: ignore[arg-type]


# -- the tables, by hand -----------------------------------------------------------------------


def test_calendar_knows_weekdays_and_holidays() -> None:
    types = day_types(MAX_DAYS)
    assert types.shape == (149, 3)
    np.testing.assert_allclose(types.sum(axis=1), 1.0)
    on = {when: types[(when - date(2013, 11, 1)).days].tolist() for when in (
        date(2013, 11, 1), date(2013, 11, 4), date(2013, 11, 9), date(2013, 11, 10),
        date(2013, 12, 25), date(2014, 1, 6), date(2014, 1, 7),
    )}  # fmt: skip
    assert on[date(2013, 11, 1)][2] == 0.9  # All Saints, a Friday
    assert on[date(2013, 11, 4)] == [1, 0, 0]  # Monday
    assert on[date(2013, 11, 9)] == [0, 1, 0]  # Saturday
    assert on[date(2013, 11, 10)] == [0, 0, 1]  # Sunday
    assert on[date(2013, 12, 25)] == [0, 0, 1]  # Christmas, a Wednesday
    assert on[date(2014, 1, 6)] == [0, 0, 1]  # Epiphany, a Monday
    assert on[date(2014, 1, 7)] == [1, 0, 0]
    assert np.array_equal(day_types(3, before=1)[1:], types[:2])


def test_season_runs_straight_between_its_knots() -> None:
    course = season(62 * 24)
    for when, value in SEASON:
        if when < date(2014, 1, 1):
            assert course[hour_of(when, 0)] == pytest.approx(value)
    # 22 December -0.31, 25 December -0.73: half way at noon of the 23rd.
    assert course[hour_of(date(2013, 12, 23), 12)] == pytest.approx((-0.31 - 0.73) / 2)


def test_every_district_holds_every_kind() -> None:
    wanted = {"residential": 14, "business": 8, "nightlife": 6, "commuter": 4, "tourist": 3}
    wanted["near-empty"] = 1
    kinds = kinds_of(72, seed=5)
    assert Counter(kinds[:36]) == wanted and Counter(kinds[36:]) == wanted
    assert kinds[:36] != kinds[36:]


def test_path_and_spiral_step_to_the_next_square() -> None:
    path = synthetic._path()
    assert len(np.unique(path, axis=0)) == 36
    assert (np.abs(np.diff(path, axis=0)).sum(axis=1) == 1).all()
    spiral = synthetic._spiral(9)
    assert spiral[:4] == [(0, 0), (1, 0), (1, 1), (0, 1)]
    assert set(spiral) == {(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1)}


def test_fading_by_hand() -> None:
    push = np.array([[1.0, 0.0], [0.0, 2.0], [4.0, 0.0]])
    wanted = [[1.0, 0.0], [0.5, 2.0], [4.25, 1.0]]
    assert synthetic._fading(push, 0.5).tolist() == wanted


# -- what real traffic shows -------------------------------------------------------------------


def test_kinds_live_different_days(city: dict[str, np.ndarray]) -> None:
    net = city["net"]
    workday, saturday, sunday = (
        NOVEMBER & (WEEKDAY < 5) & (np.arange(len(net)) >= 72),
        NOVEMBER & (WEEKDAY == 5),
        NOVEMBER & (WEEKDAY == 6),
    )

    def at(kind: str, days: np.ndarray, *hours: int) -> float:
        return float(of_kind(net, kind)[days & np.isin(HOUR, hours)].mean())

    assert at("business", workday, 11) > 2 * at("business", sunday, 11)
    assert at("residential", sunday, 21) > 0.8 * at("residential", workday, 21)
    assert at("nightlife", saturday, 23) > 1.4 * at("nightlife", saturday, 10)
    assert at("business", saturday, 23) < at("business", saturday, 10)
    assert at("commuter", workday, 8, 18) > 1.1 * at("commuter", workday, 11, 14)
    assert at("tourist", saturday, 16) > 1.5 * at("business", saturday, 16)


def test_holidays_are_quiet_and_greetings_loud(city: dict[str, np.ndarray]) -> None:
    christmas = slice(hour_of(date(2013, 12, 25), 0), hour_of(date(2013, 12, 27), 0))
    same_days = slice(christmas.start - 28 * 24, christmas.stop - 28 * 24)
    busy = np.array(kinds_of(CELLS)) != "near-empty"
    ratio = city["net"][christmas].mean(axis=0)[busy] / city["net"][same_days].mean(axis=0)[busy]
    assert 0.25 < np.median(ratio) < 0.6
    midnight = hour_of(date(2014, 1, 1), 0)
    loud = {a: v[midnight, busy].sum() / v[midnight - 24, busy].sum() for a, v in city.items()}
    assert loud["sms"] > 2 * loud["net"]


def test_services_see_the_same_cells(city: dict[str, np.ndarray]) -> None:
    busy = np.array(kinds_of(CELLS)) != "near-empty"
    level = {a: np.log(v[:, busy].mean(axis=0)) for a, v in city.items()}
    assert np.corrcoef(level["net"], level["sms"])[0, 1] > 0.99
    assert city["sms"].sum() / city["net"].sum() == pytest.approx(0.08, rel=0.1)
    assert city["call"].sum() / city["net"].sum() == pytest.approx(0.06, rel=0.1)
    night = np.isin(HOUR, range(6))
    at_night = {a: v[night].sum() / v.sum() for a, v in city.items()}
    assert at_night["call"] < at_night["sms"] < at_night["net"]


def test_sms_has_zeros_and_empty_cells_are_mostly_zero(city: dict[str, np.ndarray]) -> None:
    empty = np.array(kinds_of(CELLS)) == "near-empty"
    zeros = {a: (v == 0).mean(axis=0) for a, v in city.items()}
    assert zeros["net"][~empty].max() < 0.01
    assert np.median(zeros["sms"][~empty]) > 0.005
    assert np.mean(zeros["sms"]) > np.mean(zeros["call"]) > np.mean(zeros["net"])
    assert zeros["net"][empty].min() > 0.5
    for values in city.values():  # near-empty is not dead: something happens in the training part
        assert (values[: 40 * 24].std(axis=0) > 0).all()


def test_noise_follows_the_level_and_has_heavy_tails(city: dict[str, np.ndarray]) -> None:
    busy = np.array(kinds_of(CELLS)) != "near-empty"
    net = city["net"][3 * 24 : 31 * 24, busy]
    weekly = net[7 * 24 :] - net[: -7 * 24]
    size = np.median(np.abs(weekly), axis=0)
    assert np.corrcoef(np.log(size), np.log(net.mean(axis=0)))[0, 1] > 0.7
    change = np.diff(np.log(net), axis=0)
    surprise = change[24 * 7 :] - change[: -24 * 7]  # beyond what the same hour did a week ago
    kurtosis = (surprise**4).mean(axis=0) / (surprise**2).mean(axis=0) ** 2
    assert np.median(kurtosis) > 3.3  # a normal distribution has 3


def test_neighbours_share_events() -> None:
    cells = synthetic._draw_cells(0, 0)
    crowds = synthetic._crowds(synthetic._stream(0, synthetic.EVENTS, 0), cells, 62 * 24)
    where = synthetic._path()[cells.place]
    peak = np.unravel_index(np.argmax(crowds), crowds.shape)
    apart = np.abs(where - where[peak[1]]).sum(axis=1)
    then = crowds[peak[0]]
    assert then[apart == 0].min() > then[apart == 1].max() > then[apart == 4].max()
    assert then[apart == 1].min() > 0.2 * then[peak[1]]
    assert (crowds.max(axis=1) == 0).mean() > 0.3  # most of the time nothing happens


# -- beside the real data ----------------------------------------------------------------------


def comparison() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "synthetic_vs_milan.py"
    spec = importlib.util.spec_from_file_location("synthetic_vs_milan", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_net_is_like_milan() -> None:
    folder = os.environ.get("FUELS_DATA")
    if folder is None:
        pytest.skip("FUELS_DATA is not set: the folder with the real Milan data")
    module = comparison()
    real = module.read_milan(Path(folder) / "milan_net_441cells_hourly.npz")
    made = module.columns(real)["synthetic Net, without near-empty cells"]
    assert real.shape[1] == 440
    theirs, ours = module.statistics(real), module.statistics(made)
    for name in theirs:
        a, b = np.median(theirs[name]), np.median(ours[name])
        if name.startswith("autocorrelation"):
            assert b == pytest.approx(a, abs=0.05), name
        elif name in ("coefficient of variation", "level (mean of an hour)", "kurtosis"):
            assert b == pytest.approx(a, rel=0.2), name
    hard, made_hard = module.errors(real), module.errors(made)
    for key, value in hard.items():
        assert made_hard[key] == pytest.approx(value, rel=0.4), key
    ordinary = [key for key in hard if key[0] == "11-21 December"]
    assert min(ordinary, key=hard.__getitem__) == min(ordinary, key=made_hard.__getitem__)


def test_comparison_names_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        comparison().main(["--milan", "nowhere.npz"])
    assert stopped.value.code == 2
    assert "no file nowhere.npz" in capsys.readouterr().err


def test_kind_tables_cover_the_day() -> None:
    for kind in KINDS:
        assert [len(kind.workday), len(kind.saturday), len(kind.sunday)] == [24, 24, 24]
    assert sum(kind.places for kind in KINDS) == synthetic.PLACES == 36
    assert all(len(service.hours) == 24 for service in SERVICES.values())
