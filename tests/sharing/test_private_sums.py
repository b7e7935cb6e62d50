"""Sums with noise from a ledger: who adds it, and what parts of a day cost."""

from __future__ import annotations

import numpy as np
import pytest

from fuels.errors import FuelsError
from fuels.privacy.ledger import Budget, Ledger
from fuels.privacy.sensitivity import Protected, Relation, Unit
from fuels.sharing.private_sums import PrivateSums

HOUR = 3600


def sums(unit: Unit, sites: tuple[int, int] = (1, 0)) -> PrivateSums:
    ledger = Ledger(Budget(4.0, 1e-5, unit, Relation.REMOVED))
    protected = Protected(unit, Relation.REMOVED, HOUR)
    return PrivateSums(ledger, "run", {"live mean": 2.0}, protected, 3, sites)


def test_parts_of_a_day_cost_as_much_as_the_whole_day() -> None:
    made = sums(Unit.DAY)
    assert made.pieces(5 * HOUR, 5 * HOUR) == made.pieces(9 * HOUR, 5 * HOUR) == []
    for first, last in ((0, 5), (5, 60), (60, 61), (61, 96)):
        for piece in made.pieces(first * HOUR, last * HOUR):
            steps = (piece[1] - piece[0]) // HOUR
            release = made.about("live mean", piece, made.protected.values(2.0, 96), (steps,))
            release = made.expect(made.part_of_unit(release, min(steps, 24), 24))
            made.total("live mean", piece[0], {str(i): np.ones(steps) for i in range(3)})
            assert release.sigma == pytest.approx(2 * 2 * np.sqrt(24), rel=1e-3)
    assert made.ledger.loss() == pytest.approx(0.25)


@pytest.mark.parametrize(("sites", "whole"), [((1, 0), 1.0), ((5, 0), 1.0), ((5, 1), 5 / 4)])
def test_the_noise_of_all_sites_is_that_of_one_or_more(
    sites: tuple[int, int], whole: float
) -> None:
    made = sums(Unit.HOUR, sites)
    made.expect(made.about("live mean", (0, HOUR), 2.0, (1500,)))
    found = made.total("live mean", 0, {str(i): np.ones(1500) for i in range(3)})
    assert found is not None
    assert found.std() == pytest.approx(4 * np.sqrt(whole), rel=0.1)
    assert found.mean() == pytest.approx(3.0, abs=0.6)


def test_a_sum_needs_clients_and_a_declared_sensitivity() -> None:
    made = sums(Unit.HOUR)
    parts = {str(i): np.ones(1) for i in range(3)}
    with pytest.raises(FuelsError, match="nobody declared how much a unit can change it"):
        made.total("live mean", 0, parts)
    made.expect(made.about("live mean", (0, HOUR), 2.0, (1,)))
    assert made.total("live mean", 0, {"0": np.ones(1)}) is None
    assert made.ledger.entries == {}
    with pytest.raises(FuelsError, match="entries that are not finite"):
        made.total("live mean", 0, {**parts, "3": np.array([np.nan])})
    assert made.ledger.entries == {}
