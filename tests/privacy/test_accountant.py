"""Epsilon by privacy loss distributions."""

from __future__ import annotations

import sys
from math import sqrt

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from fuels.errors import FuelsError
from fuels.privacy import accountant
from fuels.privacy.ledger import Budget, Ledger, Release
from fuels.privacy.sensitivity import Relation, Unit


@pytest.mark.parametrize("relation", list(Relation))
def test_the_ledger_says_what_dp_accounting_says(relation: Relation) -> None:
    """Five releases on the same hours, and one on others, which does not add up."""
    ledger = Ledger(Budget(4.0, 1e-5, Unit.HOUR, relation))
    multipliers = [3.0, 4.0, 5.5, 2.5, 6.0]
    for i, multiplier in enumerate(multipliers):
        ledger.release(Release("run", f"sum {i}", 0, 36000, 1.0, multiplier, (1,)), [])
    ledger.release(Release("run", "later", 36000, 72000, 1.0, 2.0, (1,)), [])
    theirs = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    one = PLDAccountant()
    loss = sum(m**-2 for m in multipliers)
    one.compose(dp_accounting.GaussianDpEvent(1 / sqrt(loss)))
    theirs.compose(
        dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(m) for m in multipliers])
    )
    assert ledger.epsilon == pytest.approx(one.get_epsilon(1e-5), abs=1e-9)
    # The discretisation of five distributions adds up: 1e-4 each.
    assert ledger.epsilon == pytest.approx(theirs.get_epsilon(1e-5), abs=1e-3)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0, 8.0])
def test_a_budget_is_used_but_never_exceeded(epsilon: float) -> None:
    reached = accountant.epsilon_of(accountant.loss_for(epsilon, 1e-5), 1e-5)
    assert 0.999 * epsilon < reached <= epsilon


def test_the_shares_of_all_releases_fill_the_budget() -> None:
    names = {"scale": 1, "mean day": 1, "live mean": 1, "statistics": 3}
    noise = accountant.multipliers(4.0, 1e-5, names)
    loss = sum(times * noise[name] ** -2 for name, times in names.items())
    assert loss == pytest.approx(accountant.loss_for(4.0, 1e-5), rel=1e-6)
    assert noise["statistics"] < noise["live mean"] * sqrt(3)


@pytest.mark.parametrize(
    ("epsilon", "delta", "said"),
    [
        (-1.0, 1e-5, "must be a positive number"),
        (float("nan"), 1e-5, "must be a positive number"),
        (100.0, 1e-5, "guarantees nothing"),
        (4.0, 0.0, "privacy.delta must be above 0"),
        (4.0, 0.5, "privacy.delta must be above 0"),
    ],
)
def test_a_senseless_budget_is_refused(epsilon: float, delta: float, said: str) -> None:
    with pytest.raises(FuelsError, match=said):
        accountant.loss_for(epsilon, delta)


def test_without_the_package_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(FuelsError, match=r"pip install 'fuels-forecast\[privacy\]'"):
        accountant.accounting()
