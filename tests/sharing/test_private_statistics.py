"""Private statistics: sensitivities on random neighbours, and what noise leaves of a ridge."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fuels.privacy.sensitivity import Protected, Relation, Unit
from fuels.sharing import private_statistics as private
from fuels.sharing.private_statistics import CLIP, NORM, Rows
from fuels.sharing.similar_clients import own_days, placed
from fuels.sharing.statistics import Columns

PERIOD, SLOTS, STEPS = 6, 3, 40
LAGS, LIVE = (1, 2, 3, 5, 6, 7, 12), (1, 6)
NEIGHBOURS = 10_000
Floats = np.ndarray


def cell_of(steps: int = STEPS) -> Floats:
    slot = np.arange(steps) % PERIOD * SLOTS // PERIOD
    return slot + SLOTS * (np.arange(steps) // PERIOD % 3 == 2)


def rows(day: Floats) -> Rows:
    return Rows.of(LAGS, LIVE, day, cell_of(), STEPS)


def series(rng: np.random.Generator, clients: int) -> Floats:
    """Random, spiky and constant series, some with gaps: constant ones make all rows alike."""
    found = rng.standard_t(2, (clients, STEPS)) * rng.choice([0.1, 1, 30], (clients, 1))
    found[::4] = rng.choice([-9.0, 0.4, 9.0], (len(found[::4]), 1))
    found[1::4] = np.cumsum(found[1::4], axis=1)
    found[rng.random(found.shape) < rng.choice([0, 0.02, 0.3], (clients, 1))] = np.nan
    return found


def neighbours(
    rng: np.random.Generator, protected: Protected, clients: int
) -> tuple[Floats, Floats]:
    """Series, and the same with one unit removed or replaced, anywhere."""
    one = series(rng, clients)
    other, steps, others = one.copy(), protected.steps(STEPS), series(rng, clients)[::-1]
    for i, first in enumerate(rng.integers(0, STEPS - steps + 1, clients)):
        part = slice(first, first + steps)
        if protected.relation is Relation.REMOVED:
            other[i, part] = np.nan
        else:
            new = others[i, part] if i % 2 else -one[i, part] * 3
            other[i, part] = np.where(np.isnan(one[i, part]), np.nan, np.nan_to_num(new, nan=5.0))
    return one, other


def contributions(name: str, day: Floats, live: Floats) -> Callable[[Floats], Floats]:
    """What each of some clients contributes, [client, number]."""
    if name == "scale":
        return lambda x: np.stack([private.histogram(own) for own in x])
    if name == "mean day":
        cells = 2 * SLOTS
        return lambda x: np.stack([private.day_sums(own, cell_of(), cells).ravel() for own in x])
    if name == "own mean day":
        slot = cell_of() % SLOTS
        return lambda x: own_days(x, slot, SLOTS)
    if name == "live mean":
        return lambda x: private.deviations(x, day, cell_of())
    if name == "live mean of groups":
        return lambda x: np.stack(
            [placed(own, i % 3, 3) for i, own in enumerate(private.deviations(x, day, cell_of()))]
        )
    made = rows(day)
    return lambda x: np.stack([made.packed(own) for own in made.make(x, live, 0, STEPS)])


def bound(name: str, protected: Protected) -> float:
    if name == "scale":
        return protected.histogram(STEPS)
    if name in ("mean day", "own mean day"):
        return protected.cells(CLIP, STEPS, PERIOD, SLOTS, counts=name == "mean day")
    if name.startswith("live mean"):
        return protected.values(CLIP, STEPS)
    return protected.products(NORM, STEPS, LAGS)


def largest_change(name: str, protected: Protected, count: int, seed: int) -> float:
    """The largest change of a contribution between neighbours, as a share of the bound."""
    rng = np.random.default_rng(seed)
    day, live = rng.normal(size=2 * SLOTS), rng.normal(size=STEPS)
    found = 0.0
    for _ in range(0, count, 1000):
        contribute = contributions(name, day, live)
        one, other = (contribute(x) for x in neighbours(rng, protected, 1000))
        found = max(found, float(np.linalg.norm(one - other, axis=1).max()))
    return found / bound(name, protected)


RELEASES = (
    "scale",
    "own mean day",
    "mean day",
    "live mean",
    "live mean of groups",
    "statistics",
)
# A unit of 1, 6 and 40 steps: an hour, a day of 6 hours, and everything.
UNITS = {Unit.HOUR: 3600, Unit.DAY: 14400, Unit.CLIENT: 3600}


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("name", RELEASES)
def test_no_neighbour_changes_a_release_by_more_than_its_sensitivity(
    name: str, relation: Relation
) -> None:
    reached = {}
    for unit, seconds in UNITS.items():
        protected = Protected(unit, relation, seconds)
        count = NEIGHBOURS if unit is Unit.HOUR else NEIGHBOURS // 10
        reached[unit] = largest_change(name, protected, count, seed=len(name))
        assert reached[unit] <= 1 + 1e-9
    assert max(reached.values()) > 0.4  # the bound is not far away


@pytest.mark.nightly
@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("unit", list(Unit))
def test_sensitivities_hold_on_many_more_neighbours(unit: Unit, relation: Relation) -> None:
    for name in RELEASES:
        protected = Protected(unit, relation, UNITS[unit])
        assert largest_change(name, protected, 30_000, seed=7) <= 1 + 1e-9


def test_overlapping_windows_are_counted() -> None:
    hour = Protected(Unit.HOUR, Relation.REMOVED, 3600)
    day = Protected(Unit.DAY, Relation.REMOVED, 3600)
    assert hour.rows(1000, (1, 2, 24)) == 4
    assert day.rows(1000, (1, 2, 24)) == 48  # a day, two hours after it, and the next day
    assert day.rows(30, (1, 2, 24)) == 30  # there are no more
    assert hour.products(2.0, 1000, (1, 2, 24)) == 16
    assert Protected(Unit.HOUR, Relation.REMOVED, 300).steps(1000) == 12
    assert Protected(Unit.HOUR, Relation.REMOVED, 420).steps(1000) == 10  # 9 and parts of two
    assert Protected(Unit.HOUR, Relation.REMOVED, 86400).steps(1000) == 1
    assert Protected(Unit.CLIENT, Relation.REMOVED, 3600).steps(1000) == 1000


def test_a_scale_from_its_histogram_is_close_and_needs_enough_values() -> None:
    rng = np.random.default_rng(3)
    values = np.exp(rng.normal(4, 0.7, 960))
    short = np.where(np.arange(960) < 72, values, np.nan)
    counts = np.stack([private.histogram(own) for own in (values, -values, short)])
    noised = counts + rng.normal(0, 4, counts.shape)
    found = private.scale_of(noised, 4.0, least=168)
    np.testing.assert_allclose(found.mean[:2], [values.mean(), -values.mean()], rtol=0.08)
    np.testing.assert_allclose(found.std[:2], values.std(), rtol=0.25)
    assert found.member.tolist() == [True, True, False]


def test_a_ridge_from_sums_without_noise_forecasts_like_least_squares() -> None:
    rng = np.random.default_rng(5)
    clients, steps = 30, 600
    cell, day = np.arange(steps) % 6, np.array([0.3, -0.2, 0.1, 0.2, -0.1, 0.0] * 2)
    x = np.zeros((clients, steps))
    for t in range(6, steps):
        x[:, t] = 0.6 * x[:, t - 1] + 0.3 * x[:, t - 6] + 0.1 * rng.normal(size=clients)
    x += day[cell]
    made = Rows.of((1, 6), (), day, cell, steps)
    total = sum(made.packed(own) for own in made.make(x, None, 0, steps))
    columns = Columns((1, 2, 6), (), 6)
    fitted = made.coefficients(total, 0.0, columns, (1, 6), live=False)
    np.testing.assert_allclose(fitted.inputs[0], [0.6, 0.0, 0.3], atol=0.02)
    noised = total + np.random.default_rng(1).normal(0, 1e9, total.shape)
    useless = made.coefficients(noised, 1e9, columns, (1, 6), live=False)
    assert np.abs(useless.inputs).max() < 3  # noise makes no wild forecast
