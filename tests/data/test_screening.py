"""Screening of values by the past of their series, on the embedded data with faults put in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fuels.arrays import Floats
from fuels.config import PRESETS, Settings, merge
from fuels.data.describe import describe
from fuels.data.panel import Panel
from fuels.data.screening import ACCEPTED, OUTSIDE, STUCK, Screen, Screened, screen_panel
from fuels.data.synthetic import synthesise
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.evaluation.summary import data_facts
from fuels.runs.build import load_dataset
from fuels.storage.tables import screened_table
from helpers.panels import make_panel

DAYS, CLIENTS = 30, 8
PLACE = 24 * 24 + 5  # late in the night


@pytest.fixture(scope="module")
def traffic() -> Panel:
    """The busiest clients of the embedded data, whose traffic no chance makes stuck or zero."""
    panel = synthesise("net", clients=30, days=DAYS)
    lively = np.sort(np.argsort(-panel.values.min(axis=0))[:CLIENTS])
    return panel.take(lively)


def with_fault(panel: Panel, change: Callable[[Floats], Floats], hours: int) -> Panel:
    values = panel.values.copy()
    values[PLACE : PLACE + hours] = change(values[PLACE : PLACE + hours])
    return replace(panel, values=values)


def screen(panel: Panel) -> Screened:
    return Screen.begin(len(panel.ids), 24).check(panel)


def flagged(panel: Panel) -> np.ndarray:
    """Which values are implausible, [time, client]."""
    said, found = screen(panel), np.zeros(panel.values.shape, dtype=bool)
    found[said.step[said.implausible], said.client[said.implausible]] = True
    return found


def test_few_clean_values_are_flagged(traffic: Panel) -> None:
    assert traffic.values.shape == (DAYS * 24, CLIENTS)
    assert flagged(traffic).mean() < 0.001
    assert flagged(synthesise("sms", clients=10, days=DAYS)).mean() < 0.001


@pytest.mark.parametrize("factor", [10.0, 30.0, 1000.0, -10.0])
def test_a_spike_is_flagged_and_nothing_after_it(traffic: Panel, factor: float) -> None:
    found = flagged(with_fault(traffic, lambda values: factor * values, 1))
    assert found[PLACE].all()
    assert not found[PLACE + 1 : PLACE + 48].any()


@pytest.mark.parametrize(
    ("change", "hours", "least"),
    [
        (lambda values: np.tile(values[:1], (len(values), 1)), 12, 8),  # stuck
        (lambda values: np.tile(values[:1], (len(values), 1)), 23, 19),
        (lambda values: 1000 * values, 6, 6),  # another unit
        (lambda values: values / 1000, 6, 6),
        (lambda values: 0 * values, 6, 6),  # zeros where there were none
    ],
)
def test_a_fault_of_hours_is_flagged_and_forgotten(
    traffic: Panel, change: Callable[[Floats], Floats], hours: int, least: int
) -> None:
    found = flagged(with_fault(traffic, change, hours))
    assert (found[PLACE : PLACE + hours].sum(axis=0) >= least).all()
    assert not found[PLACE + hours :].any()


@pytest.mark.parametrize("factor", [2.0, 0.3, 50.0, 1000.0])
def test_a_new_level_is_followed_within_a_day(traffic: Panel, factor: float) -> None:
    shifted = with_fault(traffic, lambda values: factor * values, DAYS * 24 - PLACE)
    found = flagged(shifted)[PLACE:]
    assert not found[24:].any()
    if factor == 2:
        assert not found.any()
    if factor == 1000:
        assert found[:11].all() and not found[12:].any()
        said = screen(shifted)
        assert (said.code == ACCEPTED).sum() == CLIENTS
        assert f"{traffic.ids[0]} at " in said.accepted()


def test_a_constant_run_is_accepted_in_the_second_day_but_never_expected(traffic: Panel) -> None:
    still = with_fault(traffic, lambda values: np.full_like(values, values[0, 0]), 72)
    said, found = screen(still), flagged(still)[PLACE:]
    assert not found[40:72].any()
    beyond = with_fault(traffic, lambda values: np.full_like(values, 1e7), 72)
    assert flagged(beyond)[PLACE : PLACE + 72].all()  # no such value was ever plausible
    assert found[72:].sum() == 0  # the values after it are as plausible as before
    constant = said.where(said.code == STUCK)
    assert len(constant.step) and constant.score.min() > 1


def test_zeros_at_night_and_sparse_counts_are_plausible() -> None:
    draw, hours = np.random.default_rng(5), np.arange(40 * 24)
    night = np.where((hours % 24 < 7)[:, None], 0, draw.poisson(40, (len(hours), 4)))
    rare = draw.poisson(0.05, (len(hours), 4))
    steady = 60 + np.round(draw.normal(0, 2, (len(hours), 4)))
    panel = make_panel(clients=12, days=40)
    values = np.concatenate([night, rare, steady], axis=1).astype(np.float64)
    assert flagged(replace(panel, values=values)).mean() < 0.001
    assert not flagged(replace(panel, values=np.zeros_like(values))).any()


def test_the_future_changes_nothing_earlier_and_blocks_give_the_same_bits(traffic: Panel) -> None:
    damaged = with_fault(traffic, lambda values: 1000 * values, 3)
    damaged.values[100:130, 2] = np.nan
    whole = Screen.begin(CLIENTS, 24)
    said = whole.check(damaged, whole_from=0)
    part, found = Screen.begin(CLIENTS, 24), []
    for first, last in ((0, 1), (1, 200), (200, PLACE + 1), (PLACE + 1, PLACE + 2), (PLACE + 2, 0)):
        rows = damaged.values[first : last or None]
        piece = replace(damaged, values=rows, start=damaged.times[first])
        part = Screen.load({name: array.copy() for name, array in part.arrays().items()})
        found.append(part.check(piece, whole_from=0))
    for name in ("value", "score", "low", "high", "code"):
        pieces = [
            np.concatenate([getattr(f, name)[f.client == c] for f in found]) for c in range(8)
        ]
        assert np.concatenate(pieces).tobytes() == getattr(said, name).tobytes(), name
    for name, array in whole.arrays().items():
        assert array.tobytes() == part.arrays()[name].tobytes()
    changed = damaged.values.copy()
    changed[PLACE + 1 :] = 7.0
    early = screen(replace(damaged, values=changed))
    cut = damaged.times[PLACE + 1]
    before = [one.where(one.times[one.step] < cut) for one in (early, screen(damaged))]
    assert before[0].facts() == before[1].facts() and len(before[0].step) >= CLIENTS


def test_a_screen_refuses_other_clients(traffic: Panel) -> None:
    with pytest.raises(FuelsError, match="8 clients, but the screen has 3"):
        Screen.begin(3, 24).check(traffic)
    with pytest.raises(FuelsError, match="saved screen does not fit"):
        Screen.load({"profile": np.zeros((3, 24)), "numbers": np.zeros((3, 2))})


# -- runs and descriptions ---------------------------------------------------------------------


def dataset(panel: Panel, preset: str, **data: object) -> Dataset:
    changes = {"preset": preset, **PRESETS[preset], "windows": {"split": "20/5/5"}, "data": data}
    return load_dataset(merge(merge(Settings(), PRESETS[preset], ""), changes, "test"), panel)


def test_an_implausible_value_is_missing_for_everything_in_a_run(traffic: Panel) -> None:
    spiked, gone = traffic.values.copy(), traffic.values.copy()
    for step, client in ((300, 1), (26 * 24, 2)):  # in training and in the test part
        spiked[step, client] *= 100
        gone[step, client] = np.nan
    spoiled = replace(traffic, values=spiked)
    with pytest.warns(UserWarning, match="2 values of 2 clients are implausible.*plausible: at mo"):
        found = dataset(spoiled, "best")
    expected = dataset(replace(traffic, values=gone), "best")
    assert found.panel.values.tobytes() == expected.panel.values.tobytes()
    for name in ("series", "target", "known", "mean", "std"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    facts = data_facts(found)
    assert (facts["values_implausible"], facts["test_values_implausible"]) == (2, 1)
    assert found.take([1]).screened is not None and len(found.take([1]).screened.step) == 1
    for kept in (dataset(spoiled, "paper"), dataset(spoiled, "best", implausible="keep")):
        assert kept.panel.values.tobytes() == spoiled.values.tobytes()
        assert "values_implausible" not in data_facts(kept)
    with pytest.raises(FuelsError, match=r"data\.implausible must be missing or keep, not drop"):
        dataset(spoiled, "best", implausible="drop")


def test_describe_and_the_table_show_the_values(traffic: Panel) -> None:
    spoiled = traffic.values.copy()
    spoiled[400, 3] = 99999
    panel = replace(traffic, values=spoiled, timezone="Europe/Rome")
    said = describe(panel)
    assert [(entry["client"], entry["value"]) for entry in said.implausible] == [
        (traffic.ids[3], 99999.0)
    ]
    assert "1 value of 1 client is implausible" in said.implausible_text
    assert said.period == 24  # one such value hides every cycle
    _, screened = screen_panel(panel, 24)
    row = screened_table(screened).row(0, named=True)
    assert (row["client"], row["value"], row["flag"]) == (traffic.ids[3], 99999.0, True)
    assert row["upper"] < 99999 and row["score"] > 1 and row["reason"] == "outside"
    assert (screened.code == OUTSIDE).all()
