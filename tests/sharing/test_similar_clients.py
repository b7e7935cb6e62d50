"""Groups of clients from noised mean days: their sizes, and what they depend on."""

from __future__ import annotations

import numpy as np
import pytest

from fuels.sharing.private_statistics import CLIP
from fuels.sharing.similar_clients import (
    centres,
    grouped,
    nearest,
    own_days,
    placed,
)


def two_kinds(clients: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Mean days that peak at noon or at midnight, on any level and scale, and the kind of each."""
    rng = np.random.default_rng(seed)
    kind = np.arange(clients) % 2
    shape = np.cos(2 * np.pi * (np.arange(24) / 24 + kind[:, None] / 2))
    scale, level = rng.uniform(0.5, 2, (clients, 1)), rng.normal(size=(clients, 1))
    return level + scale * (shape + noise * rng.normal(size=shape.shape)), kind


def test_clients_with_similar_days_are_in_one_group() -> None:
    days, kind = two_kinds(30, 0.2)
    np.testing.assert_array_equal(grouped(days, 2, 10), kind)
    np.testing.assert_array_equal(grouped(days, 2, 10), grouped(days + 5, 2, 10))
    group = grouped(days, 2, 10)
    np.testing.assert_array_equal(nearest(centres(days, group), 3 * two_kinds(30, 0.0)[0]), kind)


@pytest.mark.parametrize("seed", range(8))
def test_a_group_has_enough_clients_or_there_is_only_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clients, least, groups = int(rng.integers(2, 60)), int(rng.integers(2, 12)), seed % 4 + 1
    found = grouped(rng.standard_t(2, (clients, 24)), groups, least)
    sizes = np.bincount(found)
    assert len(found) == clients
    assert len(sizes) in (1, groups)
    assert len(sizes) == 1 or sizes.min() >= least
    assert found[0] == 0  # numbered by their first client


def test_days_that_say_nothing_form_one_group() -> None:
    assert grouped(np.zeros((40, 24)), 2, 10).max() == 0
    days = two_kinds(30, 0.0)[0]
    days[2:] = days[0]  # one client is unlike all others
    assert grouped(days, 2, 10).max() == 0


def test_own_days_are_clipped_sums_and_gaps_change_no_shape() -> None:
    slot = np.arange(20 * 24) % 24
    values = two_kinds(4, 0.0)[0][:, slot]
    made = own_days(values, slot, 24)
    clipped = np.clip(values, -CLIP, CLIP)
    np.testing.assert_allclose(made, clipped.reshape(4, 20, 24).sum(axis=1))
    half = np.where(np.arange(20 * 24) < 240, values, np.nan)
    np.testing.assert_allclose(own_days(half, slot, 24), made / 2)
    one = nearest(made, made)
    np.testing.assert_array_equal(one, nearest(made, own_days(half, slot, 24)))
    assert np.isfinite(own_days(np.full((1, 48), np.nan), slot[:48], 24)).all()


def test_a_client_adds_to_its_own_group_only() -> None:
    added = placed(np.array([1.0, 2.0]), 1, 3)
    assert added.tolist() == [0, 0, 1, 2, 0, 0]
    assert placed(np.ones((2, 5)), 0, 1).tolist() == np.ones((2, 5)).tolist()
