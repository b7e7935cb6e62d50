"""The bounds of the analysis: numbers worked out by hand, limits, and refusals in words."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuels.errors import FuelsError
from fuels.research.bounds import (
    Constants,
    best_rate,
    generalisation,
    generalisation_by_client,
    largest_rate,
    rounds,
)

# floor = 2 * 0.1 * 10 * 0.5 * 4 * 3 = 12
EXAMPLE = Constants(
    gap=6.0,
    gradient=3.0,
    smoothness=2.0,
    coupling=0.1,
    rho=2.0,
    clients=10,
    selection=0.5,
    iterations=4,
)


def test_floor_is_rho_coupling_clients_iterations_gradient() -> None:
    assert EXAMPLE.floor == pytest.approx(12.0)


def test_largest_rate_by_hand() -> None:
    assert largest_rate(EXAMPLE, 20.0) == pytest.approx((20 - 12) / (2 * 20))  # 0.2


def test_rounds_by_hand() -> None:
    # 20 * 4 * (0.1 - 2 * 0.01) - 2 * 0.1 * 0.1 * 10 * 0.5 * 16 * 3 = 6.4 - 4.8 = 1.6
    assert rounds(EXAMPLE, 20.0, 0.1) == pytest.approx(6.0 / 1.6)


def test_half_of_the_largest_rate_asks_for_the_fewest_rounds() -> None:
    best = best_rate(EXAMPLE, 20.0)
    fewest = rounds(EXAMPLE, 20.0, best)
    assert best == pytest.approx(0.1)
    assert all(rounds(EXAMPLE, 20.0, best * factor) > fewest for factor in (0.5, 0.9, 1.1, 1.9))


def test_without_coupling_it_is_plain_gradient_descent() -> None:
    alone = replace(EXAMPLE, rho=0.0)
    assert alone.floor == 0
    assert rounds(alone, 1.0, 0.25) == pytest.approx(6.0 / (4 * (0.25 - 2 * 0.0625)))


@given(xi=st.floats(12.01, 1e6), share=st.floats(0.01, 0.99))
def test_every_admissible_rate_gives_positive_rounds(xi: float, share: float) -> None:
    assert 0 < rounds(EXAMPLE, xi, share * largest_rate(EXAMPLE, xi)) < math.inf


@pytest.mark.parametrize(
    ("xi", "eta", "words"),
    [
        (12.0, 0.1, "no learning rate is admissible"),
        (5.0, 0.1, "not above rho L_h N alpha I G = 12"),
        (0.0, 0.1, "xi must be positive"),
        (math.inf, 0.1, "xi must be positive and finite"),
        (20.0, 0.2, "below 0.2"),
        (20.0, 0.0, "eta must be positive"),
        (20.0, -1.0, "eta must be positive"),
        (20.0, math.nan, "eta must be positive"),
        (math.nan, 0.1, "xi must be positive"),
    ],
)
def test_inadmissible_choices_are_refused(xi: float, eta: float, words: str) -> None:
    with pytest.raises(FuelsError, match=words):
        rounds(EXAMPLE, xi, eta)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("smoothness", 0.0, "L_1 must be positive"),
        ("smoothness", math.nan, "L_1 must be positive"),
        ("gradient", -1.0, "G must be finite and not negative"),
        ("gap", math.inf, "Lambda must be finite"),
        ("coupling", math.nan, "L_h must be finite"),
        ("clients", 0, "N must be positive"),
        ("iterations", 0, "I must be positive"),
        ("selection", 1.5, "alpha is a share"),
        ("selection", 0.0, "alpha is a share"),
    ],
)
def test_impossible_constants_are_refused(name: str, value: float, words: str) -> None:
    with pytest.raises(FuelsError, match=words):
        replace(EXAMPLE, **{name: value})


def test_generalisation_by_hand() -> None:
    # d = D: sqrt(2 log(e)); chance: sqrt(0.5^2 8^2 / 2 * 2)
    bound = generalisation(8, 8, 0.5, math.exp(-2))
    assert bound.complexity == pytest.approx(math.sqrt(2.0))
    assert bound.chance == pytest.approx(0.5 * 8)
    assert bound.total == pytest.approx(math.sqrt(2.0) + 4.0)


def test_the_printed_bound_is_vacuous_for_any_real_data() -> None:
    for samples in (10, 888, 88800):
        assert generalisation(1, samples, 5.0, 0.05).vacuous
    chance = [generalisation(1, n, 5.0, 0.05).chance for n in (100, 200)]
    assert chance[1] == pytest.approx(2 * chance[0])  # more data make it worse


def test_bound_by_client_by_hand() -> None:
    bound = generalisation_by_client(4, [4, 4, 4, 4], 3.0, math.exp(-2))
    assert bound.complexity == pytest.approx(math.sqrt(2.0))  # every client has d samples
    assert bound.chance == pytest.approx(3.0 / 2)  # C sqrt(4 / 16) sqrt(2 / 2)
    unequal = generalisation_by_client(2, [6, 2], 1.0, math.exp(-2))
    expected = 0.75 * math.sqrt(4 / 6 * math.log(math.e * 3)) + 0.25 * math.sqrt(2.0)
    assert unequal.complexity == pytest.approx(expected)
    assert unequal.chance == pytest.approx(math.sqrt(0.75**2 + 0.25**2))


def test_one_client_has_the_same_class_term_in_both_forms() -> None:
    printed = generalisation(10, 888, 2.0, 0.05)
    assert generalisation_by_client(10, [888], 2.0, 0.05).complexity == printed.complexity


def test_step_c_of_the_proof_loses_a_factor() -> None:
    """sum_n |D_n|/D sqrt(2d/|D_n| log(e|D_n|/d)) is not below sqrt(2d/D log(eD/d))."""
    before = generalisation_by_client(10, [888] * 100, 1.0, 0.05).complexity
    after = generalisation(10, 88800, 1.0, 0.05).complexity
    assert before > 7 * after


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((100865, 88800, 1.0, 0.05), "fewer than the VC dimension"),
        ((0, 100, 1.0, 0.05), "VC dimension d must be"),
        ((1, 100, 0.0, 0.05), "C, the largest loss"),
        ((1, 100, 1.0, 0.0), "kappa is a probability"),
        ((1, 100, 1.0, 1.0), "kappa is a probability"),
    ],
)
def test_generalisation_refuses_what_says_nothing(
    arguments: tuple[float, int, float, float], words: str
) -> None:
    with pytest.raises(FuelsError, match=words):
        generalisation(*arguments)


def test_bound_by_client_refuses_no_clients() -> None:
    with pytest.raises(FuelsError, match="at least one client"):
        generalisation_by_client(1, [], 1.0, 0.05)
