"""The online mixture: constants by hand, freedom of scale, sleep, missing truth and delay."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuels.errors import FuelsError
from fuels.experts.mixture import Mixture
from fuels.kernels.mixture import (
    AHEAD,
    SLOW,
    Constants,
    best_lately,
    boa,
    clipped,
    earned,
    first_learner_weights,
    fixed_share,
    limited,
    ml_poly,
)


def data(
    clients: int = 4, experts: int = 5, steps: int = 120, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(clients, steps))
    noise = rng.normal(size=(experts, clients, steps)) * np.arange(1, experts + 1)[:, None, None]
    return truth, truth + 0.3 * noise


def run(truth: np.ndarray, forecasts: np.ndarray, delay: int = 1) -> np.ndarray:
    names = [str(i) for i in range(len(forecasts))]
    return Mixture(len(truth), names, delay).run(truth, forecasts).combined


def test_first_step_is_the_mean_of_the_experts() -> None:
    truth, forecasts = data()
    np.testing.assert_allclose(run(truth, forecasts)[:, 0], forecasts[:, :, 0].mean(axis=0))


def test_several_steps_ahead_nobody_is_limited_or_preferred() -> None:
    assert (AHEAD.prior, AHEAD.clip, AHEAD.surprise, AHEAD.limit) == (1.0, 2.5, 1.0, np.inf)


@pytest.mark.parametrize(("delay", "constants"), [(1, Constants()), (2, AHEAD), (24, AHEAD)])
def test_constants_are_those_of_the_horizon(delay: int, constants: Constants) -> None:
    truth, forecasts = data()
    names = [str(i) for i in range(len(forecasts))]
    given = Mixture(len(truth), names, delay, constants).run(truth, forecasts).combined
    np.testing.assert_array_equal(run(truth, forecasts, delay), given)
    other = Mixture(len(truth), names, delay, Constants(top=0.9)).run(truth, forecasts).combined
    assert (other != given).any()


def test_fixed_share_by_hand() -> None:
    weights, error = np.array([0.5, 0.5]), np.zeros(2)
    fixed_share(np.array([0.0, 2.0]), 1.0, 0.0, error, weights, 0.2, 0.05)
    # The learner said 1, the truth is 0: its mean squared error is 1, the experts' are 0 and 4.
    raw = 0.5 * np.exp(0.2 * np.array([1.0, -3.0]))
    np.testing.assert_allclose(weights, 0.95 * raw / raw.sum() + 0.05 / 2)
    np.testing.assert_array_equal(error, [1, 1])


def test_boa_by_hand() -> None:
    weights, sums = np.array([0.5, 0.5]), np.zeros((3, 2))
    boa(np.array([0.0, 2.0]), 1.0, 0.0, sums, weights)
    # Gains 2 (1 - 0)(1 - f) are 2 and -2; the rate of both is 0.5 / 2, less than sqrt(ln 3 / 4).
    np.testing.assert_allclose(sums, [[2 - 1, -2 - 1], [4, 4], [2, 2]])
    raw = np.exp(0.25 * np.array([1.0, -3.0]))
    np.testing.assert_allclose(weights, raw / raw.sum(), rtol=1e-9)


def test_ml_poly_trusts_only_who_was_better() -> None:
    weights, sums = np.full(3, 1 / 3), np.zeros((3, 3))
    ml_poly(np.array([0.0, 1.0, 2.0]), 1.0, 0.0, sums, weights, 0.998, 3.0)
    np.testing.assert_allclose(weights, [1, 0, 0])
    ml_poly(np.array([1.0, 1.0, 1.0]), 1.0, 0.0, sums, weights, 0.998, 3.0)
    np.testing.assert_allclose(weights, [1, 0, 0])


def test_ml_poly_with_a_prior_by_hand() -> None:
    weights, sums = np.zeros(3), np.zeros((3, 3))
    ml_poly(np.array([1.0, 1.0, 1.0]), 1.0, 0.0, sums, weights, 1.0, 3.0)
    np.testing.assert_allclose(weights, [3 / 5, 1 / 5, 1 / 5])  # nobody gained anything
    np.testing.assert_allclose(weights, first_learner_weights(3.0))
    ml_poly(np.array([0.5, 0.0, 2.0]), 1.0, 0.0, sums, weights, 1.0, 3.0)
    # Gains 2 (1 - 0)(1 - f) are 1, 2 and -2, the largest square is 4: 3 x 1 / 5 and 2 / 8.
    np.testing.assert_allclose(weights, np.array([3 / 5, 2 / 8, 0]) / (3 / 5 + 2 / 8))


def test_tracking_finds_the_best_convex_combination() -> None:
    rng = np.random.default_rng(0)
    weights, moments, count = np.full(3, 1 / 3), np.zeros((3, 3)), np.zeros(1)
    for _ in range(300):
        noise = rng.normal()
        errors = np.array([noise, -noise, 3.0])  # the first two cancel each other
        best_lately(errors, float(weights @ errors), 0.0, moments, count, weights, 0.9, (0.3, 10.0))
        assert weights.min() >= 0
        assert weights.sum() == pytest.approx(1)
    # The pull towards equal weights leaves the useless third a little.
    np.testing.assert_allclose(weights, [0.5, 0.5, 0.0], atol=0.1)
    assert abs(weights[0] - weights[1]) < 0.05


def test_a_spike_is_clipped_and_a_usual_value_is_not() -> None:
    scale = np.zeros(2)
    forecasts = np.array([0.0, 1.0, -1.0])
    for k in range(20):
        value = (-1.0) ** k
        assert clipped(forecasts, value, scale, 2.5, 0.9) == value
    before = scale[1]
    assert clipped(forecasts, 100.0, scale, 2.5, 0.9) == pytest.approx(2.5)
    assert scale[1] == pytest.approx(SLOW * 0.9 * before + 1)


def test_a_change_is_soon_no_spike_any_more() -> None:
    forecasts = np.zeros(3)
    for surprise, least in ((0.9, 50.0), (1.0, 0.0)):
        scale = np.array([200e-4, 200.0])  # the usual error is 0.01
        for _ in range(60):
            seen = clipped(forecasts, 50.0, scale, 3.0, surprise)
        assert seen >= least and (surprise < 1 or seen < 0.1)


def test_a_series_that_never_erred_is_not_clipped() -> None:
    scale = np.array([0.0, 200.0])
    assert clipped(np.zeros(3), 5.0, scale, 3.0, 0.9) == 5.0


def test_forecasts_are_limited_around_their_median() -> None:
    forecasts, out = np.array([0.0, 30.0, np.nan, 1.0, -2.0, 0.5]), np.empty(6)
    echo = np.zeros(6)
    limited(forecasts, 8.0, echo, out)  # the median is 0.5
    np.testing.assert_allclose(out, [0.0, 8.5, np.nan, 1.0, -2.0, 0.5])
    limited(forecasts, np.inf, echo, out)
    np.testing.assert_allclose(out, forecasts)
    limited(np.full(6, np.nan), 8.0, echo, out)
    assert np.isnan(out).all()


def test_an_expert_that_alone_was_right_is_heard() -> None:
    forecasts, out = np.array([0.0, 30.0, np.nan, 1.0, -2.0, 0.5]), np.empty(6)
    echo = np.zeros(6)
    earned(forecasts, 8.0, 28.0, echo)
    np.testing.assert_array_equal(echo, [0, -1, 0, 0, 0, 0])
    limited(forecasts, 8.0, echo, out)
    assert out[1] == 8.5  # once may be chance
    earned(forecasts, 8.0, 28.0, echo)
    limited(forecasts, 8.0, echo, out)
    np.testing.assert_allclose(out, forecasts)
    earned(forecasts, 8.0, 0.0, echo)
    np.testing.assert_allclose(echo[1], SLOW * (-SLOW - 1) + 1)
    limited(forecasts, 8.0, echo, out)
    assert out[1] == 8.5


def test_an_event_that_one_expert_knows_is_followed() -> None:
    """Once in 60 steps something happens that one of five experts foretells."""
    rng = np.random.default_rng(3)
    truth = 0.1 * rng.normal(size=(4, 900))
    forecasts = np.stack([truth * 0 + bias for bias in (0.0, 0.01, -0.01, 0.02, 0.0)])
    truth[:, 50::60] += 30.0
    forecasts[4] += np.where(np.arange(900) % 60 == 50, 30.0, 0.0)
    events = np.s_[:, 470::60]  # 470 is 50 more than 7 x 60
    assert np.abs(run(truth, forecasts)[events] - truth[events]).mean() < 3  # limited: 29


def test_an_echo_costs_little() -> None:
    """One expert repeats every spike of the hour before: the mixture must not follow it."""
    rng = np.random.default_rng(3)
    truth = 0.1 * rng.normal(size=(4, 600))
    truth[:, 50::60] += 30.0
    echo = np.roll(truth, 1, axis=1)
    forecasts = np.stack([echo, np.zeros_like(truth), np.full_like(truth, 0.01)])
    after = np.s_[:, 111::60]  # the hours after a spike, once errors are known
    far = Mixture(4, "abc", constants=Constants(limit=np.inf)).run(truth, forecasts).combined
    assert np.abs(run(truth, forecasts)[after]).max() < 0.3 * np.abs(far[after]).max()


@given(st.integers(-20, 20))
@settings(max_examples=15, deadline=None)
def test_the_scale_of_the_data_does_not_matter(power: int) -> None:
    truth, forecasts = data(clients=2, steps=60)
    factor = 2.0**power  # exact in floating point: only logarithms round
    scaled = run(factor * truth, factor * forecasts) / factor
    np.testing.assert_allclose(scaled, run(truth, forecasts), rtol=1e-9)


def test_clients_do_not_influence_each_other() -> None:
    truth, forecasts = data()
    np.testing.assert_array_equal(
        run(truth, forecasts)[2:3], run(truth[2:3], np.ascontiguousarray(forecasts[:, 2:3]))
    )


def test_it_finds_the_good_expert_and_changes_its_mind() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(20, 400))
    good, bad = truth + 0.1 * rng.normal(size=truth.shape), truth + rng.normal(size=truth.shape)
    turn = np.arange(400) < 200
    forecasts = np.stack([np.where(turn, good, bad), np.where(turn, bad, good)])
    mixed = Mixture(20, ["a", "b"]).run(truth, forecasts)
    assert mixed.weights[199, :, 0].mean() > 0.9
    assert mixed.weights[230, :, 1].mean() > 0.8
    np.testing.assert_allclose(mixed.weights.sum(axis=2), 1.0)
    assert mixed.weights.min() >= 0


@pytest.mark.parametrize("delay", [1, 3])
def test_truth_counts_only_after_its_delay(delay: int) -> None:
    truth, forecasts = data()
    changed = truth.copy()
    changed[:, 50:] += 7.0
    before, after = run(truth, forecasts, delay), run(changed, forecasts, delay)
    np.testing.assert_array_equal(before[:, : 50 + delay], after[:, : 50 + delay])
    assert not np.allclose(before[:, 50 + delay], after[:, 50 + delay])


def test_missing_truth_is_skipped() -> None:
    truth, forecasts = data()
    gap = truth.copy()
    gap[:, 40:45] = np.nan
    without = np.delete(truth, range(40, 45), axis=1)
    kept = np.delete(forecasts, range(40, 45), axis=2)
    np.testing.assert_allclose(run(gap, forecasts)[:, 45:], run(without, kept)[:, 40:])


def test_a_sleeping_expert_keeps_its_standing_and_never_spreads_nan() -> None:
    truth, forecasts = data()
    forecasts[0, :, 60:70] = np.nan  # the best one
    mixed = Mixture(4, list("abcde")).run(truth, forecasts)
    assert np.all(mixed.weights[60:70, :, 0] == 0)
    np.testing.assert_allclose(mixed.weights[60:70].sum(axis=2), 1.0)
    assert mixed.weights[70, :, 0].min() > 0.3
    assert not np.isnan(mixed.combined).any()
    forecasts[:, 1, 80] = np.nan
    all_asleep = Mixture(4, list("abcde")).run(truth, forecasts).combined
    assert np.argwhere(np.isnan(all_asleep)).tolist() == [[1, 80]]


def test_one_that_never_spoke_does_not_win_by_silence() -> None:
    truth, forecasts = data()
    forecasts[4, :, :100] = np.nan
    mixed = Mixture(4, list("abcde")).run(truth, forecasts)
    assert mixed.learners[0, :, 100:].shape == (4, 20)
    assert mixed.weights[100, :, 4].max() < 0.9
    assert mixed.weights[119, :, 4].max() < 0.1  # the worst one is soon seen through


def test_constant_truth_and_equal_experts_give_numbers() -> None:
    zeros = np.zeros((2, 30))
    np.testing.assert_array_equal(run(zeros, np.zeros((3, 2, 30))), zeros)


def test_stop_and_go_equals_one_run() -> None:
    truth, forecasts = data()
    whole = run(truth, forecasts, delay=2)
    first, second = Mixture(4, list("abcde"), 2), Mixture(4, list("abcde"), 2)
    first.run(truth[:, :33], forecasts[:, :, :33])
    second.load(first.arrays())
    rest = second.run(truth[:, 33:], forecasts[:, :, 33:]).combined
    np.testing.assert_array_equal(rest, whole[:, 33:])


def test_refusals() -> None:
    truth, forecasts = data()
    mixture = Mixture(4, list("abcde"))
    with pytest.raises(FuelsError, match="5 experts"):
        mixture.run(truth, forecasts[:3])
    with pytest.raises(FuelsError, match="truth of shape"):
        mixture.run(truth[:, :5], forecasts)
    with pytest.raises(FuelsError, match="delay of at least 1"):
        Mixture(4, ["a"], 0)
    with pytest.raises(FuelsError, match="train again"):
        mixture.load({})


def test_a_step_of_a_thousand_clients_takes_far_less_than_a_second() -> None:
    truth, forecasts = data(clients=1000, experts=15, steps=10)
    mixture = Mixture(1000, [str(i) for i in range(15)])
    mixture.run(truth, forecasts)
    mixture.next(forecasts[:, :, 0])
    started = time.process_time()
    mixture.run(truth[:, :1], forecasts[:, :, :1])
    mixture.next(forecasts[:, :, 0])
    assert time.process_time() - started < 0.5
