"""Gap filling and the rules that leave clients out: by hand, and blind to the future."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuels.data.eligibility import find_ineligible
from fuels.data.gaps import fill_gaps
from fuels.data.readers import read_panel
from fuels.data.synthetic import synthesise

NAN = np.nan


def column(*values):
    return np.array(values, dtype=np.float64)[:, None]


def filled(values, period, train_end, max_gap=None):
    result, count = fill_gaps(column(*values), period, train_end, max_gap=max_gap)
    return result[:, 0].tolist(), count


def test_inside_training_the_mean_of_the_neighbouring_periods():
    values, count = filled([1, 2, 3, NAN, 5, 8], period=2, train_end=6)
    assert values == [1, 2, 3, 5, 5, 8] and count == 1


def test_inside_training_one_neighbour_is_enough():
    assert filled([1, NAN, 3, 7, 5, 8], 2, 6) == ([1, 7, 3, 7, 5, 8], 1)
    assert filled([1, 2, 3, 4, NAN, 8], 2, 6) == ([1, 2, 3, 4, 3, 8], 1)


def test_the_nearest_observed_value_counts_not_a_filled_one():
    # Both middle values of phase 1 are gaps: each takes the mean of 2 and 10, not of a fill.
    assert filled([1, 2, 3, NAN, 5, NAN, 7, 10], 2, 8) == ([1, 2, 3, 6, 5, 6, 7, 10], 2)


def test_a_fill_inside_training_never_looks_beyond_it():
    values, _ = filled([1, 2, 3, NAN, 5, 6, 7, 100], period=2, train_end=5)
    assert values[3] == 2


def test_outside_training_only_earlier_values_count():
    values, count = filled([1, 2, 3, 4, 5, NAN, 7, 100], period=2, train_end=4)
    assert values[5] == 4 and count == 1
    values, _ = filled([1, 2, 3, 4, 5, NAN, 7, NAN, 9, 100], period=2, train_end=4)
    assert values[5] == 4 and values[7] == 4


def test_long_gaps_and_absence_stay_missing():
    long_gap = [1, 2, NAN, NAN, NAN, 6, 7, 8]
    assert np.isnan(filled(long_gap, 2, 8)[0][2:5]).all()
    assert not np.isnan(filled(long_gap, 2, 8, max_gap=3)[0]).any()
    absent = [NAN, NAN, 3, 4, 5, 6, NAN, NAN, NAN]
    assert np.isnan(filled(absent, 2, 9)[0]).tolist() == np.isnan(absent).tolist()
    assert filled([NAN, 2, NAN, 4, 5, 6], 6, 6)[1] == 0  # no other period to take it from


def test_the_input_is_not_modified():
    values = column(1, 2, 3, NAN, 5, 8)
    fill_gaps(values, 2, 6)
    assert np.isnan(values[3, 0])


SERIES = st.lists(
    st.one_of(st.floats(-100, 100), st.just(NAN), st.just(NAN)), min_size=12, max_size=40
)


@given(SERIES, st.integers(1, 6), st.integers(1, 12), st.integers(1, 8), st.data())
@settings(max_examples=150, deadline=None)
def test_fills_do_not_depend_on_later_values(series, period, train_end, max_gap, data):
    """Changing observed values from any step on changes no fill before it (outside training)."""
    values = column(*series)
    result, count = fill_gaps(values, period, train_end, max_gap=max_gap)
    observed = ~np.isnan(values)
    assert np.array_equal(result[observed], values[observed])
    assert count == np.isnan(values).sum() - np.isnan(result).sum()
    cut = data.draw(st.integers(train_end, len(series)))
    changed = np.where(observed & (np.arange(len(series)) >= cut)[:, None], values + 1e3, values)
    again, _ = fill_gaps(changed, period, train_end, max_gap=max_gap)
    assert np.array_equal(again[:cut], result[:cut], equal_nan=True)


# -- who is left out -----------------------------------------------------------------------------


def days(*levels, hours=24, seed=0):
    """A client with these mean levels day by day, with a daily cycle and noise."""
    rng = np.random.default_rng(seed)
    cycle = 1 + 0.5 * np.sin(2 * np.pi * np.arange(hours) / hours)
    return np.concatenate([level * cycle * rng.uniform(0.8, 1.2, hours) for level in levels])


def reason(series, needed=6, train_end=None):
    values = np.asarray(series)[:, None]
    return find_ineligible(values, train_end or len(values), 24, needed).get(0)


def test_an_ordinary_client_is_eligible():
    assert reason(days(*[100] * 40)) is None


def test_constant_and_short_clients_are_left_out():
    assert reason(np.full(240, 7.0)) == "constant: always 7 in training"
    late = np.concatenate([np.full(200, NAN), days(*[100] * 10)[:40]])
    assert reason(late) == "too short: values in 2 periods of training; 6 are needed"
    assert reason(np.full(240, NAN)) == "too short: values in 0 periods of training; 6 are needed"


def test_a_client_that_dies_is_left_out_and_one_that_dies_later_is_not():
    dying = days(*[100] * 32, *[0] * 8)
    assert reason(dying) == "dead: almost no activity in the last 8 of 40 periods of training"
    assert reason(dying, train_end=33 * 24) is None
    assert reason(days(*[100] * 32, *[0.3] * 8)) is not None  # a trickle is no life
    assert reason(days(*[100] * 34, *[0] * 6)) is None  # less than a fifth


def test_a_single_blip_does_not_revive_a_dead_client():
    dying = days(*[100] * 30, *[0] * 10)
    dying[35 * 24 + 5] = 15.0
    assert "last 10 of 40" in (reason(dying) or "")


def test_a_stuck_meter_is_dead():
    stuck = days(*[100] * 40)
    stuck[30 * 24 :] = stuck[30 * 24]
    assert "last 10 of 40" in (reason(stuck) or "")


def test_holidays_weekends_and_one_giant_event_are_not_death():
    week = [100, 100, 100, 100, 100, 0, 0]
    assert reason(days(*(week * 6)[:41])) is None
    party = days(*[100] * 40)
    party[100] = 1e7
    assert reason(party) is None
    assert reason(days(*[100] * 20, *[10] * 20)) is None  # a tenth of the level is alive


@pytest.mark.parametrize("share", [0.8, 0.9])
def test_sparse_clients_are_not_dead(share):
    rng = np.random.default_rng(0)
    values = np.where(rng.random((960, 400)) < share, 0.0, rng.integers(1, 4, (960, 400)))
    assert find_ineligible(values.astype(float), 960, 24, 6) == {}


def test_near_empty_synthetic_cells_are_not_dead():
    panel = synthesise("sms", clients=100, days=62, seed=0)
    assert ((panel.values == 0).mean(axis=0) > 0.9).any()  # there are some
    assert find_ineligible(panel.values, 960, 24, 6) == {}


def test_only_the_training_part_is_used():
    values = np.stack([days(*[100] * 40), days(*[50] * 40, seed=1)], axis=1)
    values[720:, 0] = 0.0
    assert find_ineligible(values, 720, 24, 6) == {}
    assert list(find_ineligible(values, 960, 24, 6)) == [0]
    assert list(find_ineligible(values[480:], 480, 24, 6)) == [0]


def test_exactly_one_milan_cell_is_dead(real_data):
    panel = read_panel(real_data / "milan_net_441cells_hourly.npz")
    for train_days in (36, 40, 51):
        reasons = find_ineligible(panel.values, 24 * train_days, 24, 6)
        assert [panel.ids[i] for i in reasons] == ["4570"]
    assert find_ineligible(panel.values, 960, 24, 6)[panel.ids.index("4570")] == (
        "dead: almost no activity in the last 12 of 40 periods of training"
    )
