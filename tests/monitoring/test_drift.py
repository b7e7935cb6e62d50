"""Drift on numbers that can be checked by hand, and on days drawn at random."""

from __future__ import annotations

import numpy as np

from fuels.monitoring.drift import ERRORS, MOST, Rule, alarm, ratios, typical_amounts, watch

P = 24


def clean(rng: np.random.Generator, clients: int, days: int) -> np.ndarray:
    """Absolute errors that are larger at noon and vary from day to day."""
    shape = 1 + np.sin(np.arange(P) / P * 2 * np.pi) / 2
    of_day = np.exp(0.1 * rng.standard_normal((clients, days, 1)))
    return (np.abs(rng.standard_normal((clients, days, P))) * of_day * shape).reshape(clients, -1)


def test_the_sum_by_hand() -> None:
    rule = Rule(allowance=0.25, threshold=0.3)
    found = np.array([1.0] * 10 + [2.0] * 20)
    one = alarm(found, rule, P)
    assert one is not None
    assert one.since == 10 and one.ratio == 2.0 and one.lasts
    assert one.raised == 10 + 9  # the tenth step: 10 x 0.75 / 24 = 0.3125
    assert alarm(np.full(1000, 1.25), rule, P) is None
    gap = np.insert(found, 15, [np.nan] * 7)  # unknown steps change nothing
    later = alarm(gap, rule, P)
    assert later is not None and later.raised == one.raised + 7
    over = alarm(np.concatenate([found, np.ones(40)]), rule, P)
    assert over is not None and not over.lasts


def test_usual_amounts_follow_the_time_of_the_period() -> None:
    usual = np.tile(np.where(np.arange(P) < 12, 1.0, 3.0), 5)[None]
    typical = typical_amounts(usual, P)
    np.testing.assert_allclose(typical[0, 5], 0.5 * 1 + 0.5 * 2)
    np.testing.assert_allclose(typical[0, 17], 0.5 * 3 + 0.5 * 2)
    late = ratios(np.full((1, 2), 100.0), typical, 11)
    np.testing.assert_array_equal(late, [[MOST, MOST]])  # one wild value is only so bad


def test_clean_days_raise_nothing_and_larger_errors_do() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        usual, now = clean(rng, 10, 7), clean(rng, 10, 14)
        quiet = watch(ERRORS, usual, now, 0, P)
        assert quiet is not None and quiet.together is None
        now[:, 5 * P :] *= 2
        loud = watch(ERRORS, usual, now, 0, P)
        assert loud is not None and loud.together is not None and loud.together.lasts
        assert loud.together.since > 5 * P - P
        assert 5 * P <= loud.together.raised < 7 * P


def test_one_client_is_noticed_and_the_mean_is_not() -> None:
    rng = np.random.default_rng(3)
    usual, now = clean(rng, 20, 7), clean(rng, 20, 10)
    now[4, 3 * P :] *= 3
    found = watch(ERRORS, usual, now, 0, P)
    assert found is not None and found.together is None
    assert [i for i, one in enumerate(found.clients) if one is not None] == [4]


def test_what_is_usual_needs_three_periods() -> None:
    rng = np.random.default_rng(0)
    assert watch(ERRORS, clean(rng, 3, 2), clean(rng, 3, 5), 0, P) is None


def test_constant_clients_and_unknown_values_are_no_drift() -> None:
    rng = np.random.default_rng(1)
    usual, now = clean(rng, 8, 7), clean(rng, 8, 7)
    usual[0] = now[0] = 0.0  # a client that never changes
    usual[1], now[2] = np.nan, np.nan
    now[:, 30:50] = np.nan
    found = watch(ERRORS, usual, now, 0, P)
    assert found is not None and found.together is None
    assert found.clients[:3] == (None, None, None) and np.isnan(found.own[2])
