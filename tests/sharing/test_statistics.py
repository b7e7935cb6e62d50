"""Coefficients from sums of products equal those from all rows in one place."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from fuels.errors import FuelsError
from fuels.sharing.statistics import (
    PENALTY,
    Coefficients,
    Columns,
    Regression,
    Totals,
    add_up,
    common_coefficients,
    moments,
    slot_coefficients,
    union_of_lags,
)
from fuels.sharing.sums import LocalSums

SLOTS, STEPS = 3, 90
COLUMNS = Columns(lags=(1, 2, 3), live_lags=(1, 3), slots=SLOTS)
SLOT = np.arange(STEPS) % SLOTS
FREE = np.arange(STEPS) // SLOTS % 7 >= 5


def series(clients: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Values with gaps and different start times, and a live mean, [client, step]."""
    rng = np.random.default_rng(5)
    values = rng.normal(size=(clients, STEPS)).cumsum(axis=1) / 3
    values[0, 20:24] = np.nan
    values[1, :50] = np.nan
    return values, rng.normal(size=(clients, STEPS))


def totals(values: np.ndarray, live: np.ndarray | None, last: int = STEPS) -> Totals:
    rows = COLUMNS.rows(values, live, FREE, 0, last)
    found = added_up(list(rows), SLOT[:last], 0)
    assert found is not None
    return found


def added_up(rows: list[np.ndarray], slot: np.ndarray, step: int) -> Totals | None:
    """The totals of clients with these rows."""
    parts = {str(i): moments(COLUMNS, own, slot) for i, own in enumerate(rows)}
    return add_up(LocalSums(2), COLUMNS, parts, step=step)


def all_rows(values: np.ndarray, live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Complete rows of all clients in one table, and their slots."""
    rows = COLUMNS.rows(values, live, FREE, 0, STEPS).reshape(-1, COLUMNS.width)
    complete = ~np.isnan(rows).any(axis=1)
    return rows[complete], np.tile(SLOT, len(values))[complete]


def test_two_rows_by_hand() -> None:
    columns = Columns(lags=(1,), live_lags=(), slots=1)
    values = np.array([[1.0, 2.0, 9.0, np.nan, 5.0]])
    rows = columns.rows(values, None, np.zeros(5, dtype=bool), 0, 5)[0]
    # Complete are steps 1 and 2: (lag 1, free, 1, target) = (1, 0, 1, 2) and (2, 0, 1, 4), clipped.
    packed = moments(columns, rows, np.zeros(5, dtype=np.int64))
    assert packed.tolist() == [[5.0, 0.0, 3.0, 10.0, 0.0, 0.0, 0.0, 2.0, 6.0, 20.0]]
    assert columns.numbers == 10


def test_common_coefficients_are_ridge_on_all_rows() -> None:
    values, live = series()
    rows, _ = all_rows(values, live)
    x, y = rows[:, :-1], rows[:, -1]
    expected = np.linalg.solve(x.T @ x + PENALTY * np.eye(x.shape[1]), x.T @ y)
    regression = Regression((1, 2, 3), (1, 3), change=False)
    found = totals(values, live).coefficients(regression, common_coefficients)
    assert totals(values, live).rows == len(rows)
    for s in range(SLOTS):
        got = [*found.inputs[s], found.free[s], found.constant[s]]
        assert np.allclose(got, expected)


def test_changes_and_a_subset_of_columns() -> None:
    values, live = series()
    rows, _ = all_rows(values, live)
    one, two, mean, old, free, constant, y = rows[:, [0, 1, 3, 4, 5, 6, 7]].T
    x = np.stack([two - one, old - mean, mean - one, free, constant], axis=1)
    w = np.linalg.solve(x.T @ x + PENALTY * np.eye(5), x.T @ (y - one))
    found = totals(values, live).coefficients(Regression((1, 2), (1, 3)), common_coefficients)
    expected = [1 - w[0] - w[2], w[0], 0.0, w[2] - w[1], w[1]]
    assert np.allclose(found.inputs[0], expected)
    assert np.allclose([found.free[0], found.constant[0]], w[3:])


def test_slot_coefficients_move_from_own_to_common_with_the_pull() -> None:
    values, live = series()
    everything = totals(values, live)
    common = everything.coefficients(Regression((1, 2, 3)), common_coefficients)
    slot = Regression((1, 2, 3))

    def pulled(by: float) -> Coefficients:
        return everything.coefficients(slot, partial(slot_coefficients, pull=by))

    far = pulled(1e9)
    assert np.allclose(far.inputs, common.inputs, atol=1e-6)
    distance = [np.abs(pulled(pull).inputs - common.inputs).max() for pull in (0.0, 10.0, 1000.0)]
    assert distance[0] > distance[1] > distance[2] > 0


def test_disjoint_parts_add_up_to_the_whole() -> None:
    values, live = series()
    rows = COLUMNS.rows(values, live, FREE, 0, STEPS)
    whole = totals(values, live)
    parts = [
        added_up([own[first:last] for own in rows], SLOT[first:last], first)
        for first, last in ((0, 61), (61, STEPS))
    ]
    assert parts[0] is not None and parts[1] is not None
    assert np.allclose((parts[0] + parts[1]).products, whole.products)


def test_a_client_weighs_as_many_rows_as_it_knows() -> None:
    values, live = series()
    late = totals(values[1:3], live[1:3]).products[:, -2, -2].sum()
    # Client 1 starts at step 50 and needs three lags; client 2 is complete.
    assert late == (STEPS - 53) + (STEPS - 3)


def test_the_future_changes_neither_totals_nor_forecasts() -> None:
    values, live = series()
    changed, changed_live = values.copy(), live.copy()
    changed[:, 60:], changed_live[:, 60:] = 3.0, -1.0
    coefficients = [
        totals(v, m, 60).coefficients(Regression((1, 2, 3), (1, 3)))
        for v, m in ((values, live), (changed, changed_live))
    ]
    assert np.array_equal(coefficients[0].inputs, coefficients[1].inputs)
    said = [
        coefficients[0].predict(COLUMNS.inputs(v, m, 0, 61), FREE[:61], SLOT[:61])
        for v, m in ((values, live), (changed, changed_live))
    ]
    assert np.array_equal(said[0], said[1], equal_nan=True) and np.isfinite(said[0][:, 60]).all()


def test_an_expert_without_its_inputs_says_nothing() -> None:
    values, live = series()
    found = totals(values, live)
    inputs = COLUMNS.inputs(values, None, 0, STEPS)
    with_live = found.coefficients(Regression((1, 2), (1,)))
    without = found.coefficients(Regression((1, 2)))
    assert np.isnan(with_live.predict(inputs, FREE, SLOT)).all()
    said = without.predict(inputs, FREE, SLOT)
    assert np.isnan(said[1, :52]).all() and np.isfinite(said[1, 52:]).all()


def test_undeclared_lags_and_other_columns_are_refused() -> None:
    values, live = series()
    found = totals(values, live)
    with pytest.raises(FuelsError, match=r"lags \[7\] are not among the declared columns"):
        found.coefficients(Regression((1, 7)))
    other = Totals(Columns((1,), (), SLOTS), np.zeros((SLOTS, 4, 4)))
    with pytest.raises(FuelsError, match="different columns"):
        found + other
    assert union_of_lags([(3, 1), (1, 2)]) == (1, 2, 3)
