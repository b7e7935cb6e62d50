"""The blend of the mixture of all experts with that of the local ones."""

from __future__ import annotations

import numpy as np
import pytest

from fuels.arrays import Floats
from fuels.experts.blend import AHEAD, NEAR, ONLY, PULL, REACH, Blend, mixture_for, shares
from fuels.experts.history import make_history
from fuels.experts.mixture import Mixture
from helpers.panels import make_panel

NAMES = ("local", "another", "shared")
CLIENTS, STEPS = 3, 300


def data(seed: int = 0, worse: float = 0.0) -> tuple[Floats, Floats]:
    """Values and forecasts [expert, client, step]; the shared one has `worse` times more error."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(CLIENTS, STEPS))
    scale = np.array([1.0, 1.2, 1.0 + worse])[:, None, None]
    return truth, truth + 0.3 * scale * rng.normal(size=(3, CLIENTS, STEPS))


def blend(delay: int = 1, share: float = NEAR) -> Blend:
    made = Blend(CLIENTS, NAMES, ["shared"], delay)
    made.state["share"] = np.full(CLIENTS, share)
    return made


def test_the_first_forecast_by_hand() -> None:
    """Equal weights: local (1 + 2) / 2, all (1 + 2 + 6) / 3, shared only 6."""
    value, weights = blend().next(np.repeat([[1.0], [2.0], [6.0]], CLIENTS, axis=1))
    expected = (1 - NEAR) * 1.5 + NEAR * ((1 - ONLY) * 3 + ONLY * 6)
    np.testing.assert_allclose(value, expected)
    np.testing.assert_allclose(weights @ [1, 2, 6], expected)


@pytest.mark.parametrize("delay", [1, 3])
def test_the_weights_explain_the_forecast(delay: int) -> None:
    truth, forecasts = data()
    found = blend(delay).run(truth, forecasts)
    np.testing.assert_allclose(found.weights.sum(axis=2), 1)
    explained = np.einsum("kce,eck->ck", found.weights, forecasts)
    np.testing.assert_allclose(found.combined[:, :9], explained[:, :9])  # nothing is limited yet


@pytest.mark.parametrize("delay", [1, 3])
def test_next_equals_run_and_changes_nothing(delay: int) -> None:
    truth, forecasts = data()
    one, other = blend(delay, 0.3), blend(delay, 0.3)
    one.run(truth[:, :200], forecasts[:, :, :200])
    other.load(one.arrays())
    other.state["share"] = one.state["share"]
    # `next` is for the target `delay` steps ahead; those before it are queued without values.
    steps = slice(200, 200 + delay)
    expected = other.run(np.full((CLIENTS, delay), np.nan), forecasts[:, :, steps])
    for _ in range(2):
        value, weights = one.next(forecasts[:, :, 200 + delay - 1])
        np.testing.assert_array_equal(value, expected.combined[:, -1])
        np.testing.assert_array_equal(weights, expected.weights[-1])


@pytest.mark.parametrize(("truth", "better"), [(-1.0, True), (1.0, False)])
def test_several_steps_ahead_the_share_only_falls(truth: float, better: bool) -> None:
    """The shared expert is wrong, and the share falls; or it is right, and the share stays."""
    forecasts = np.zeros((3, CLIENTS, 60))
    forecasts[2] = 1
    values = np.full((CLIENTS, 60), truth)
    values[:, ::2] -= 0.1
    fixed = Blend(CLIENTS, NAMES, ["shared"], 3, fixed=True)
    fixed.state["share"] = np.full(CLIENTS, 0.3)
    plain, found = fixed.run(values, forecasts), blend(3, 0.3).run(values, forecasts)
    costs = [((made.combined - values) ** 2).mean(axis=1) for made in (found, plain)]
    assert (costs[0] < costs[1]).all() == better
    if not better:
        np.testing.assert_allclose(found.combined[:, :9], plain.combined[:, :9])  # not confined yet
        assert (found.weights[:, :, 2] <= 0.3 + 1e-9).all()


def test_a_shared_forecast_is_confined_to_the_usual_error_of_the_local_one() -> None:
    truth, forecasts = data()
    made = blend()
    made.run(truth, forecasts)
    count, _, _, errors = made.state["learned"].T
    strange = forecasts[:, :, -1].copy()
    strange[2] += 100
    value, _ = made.next(strange)
    local, _ = made.inside["alone"].next(strange[:2])
    assert (np.abs(value - local) <= REACH * np.sqrt(errors / count) * 1.001).all()
    assert (np.abs(value - local) > 0).all()


def test_learned_share_by_hand() -> None:
    """After one step the least-squares share counts as one step against PULL."""
    made = blend()
    forecasts = np.repeat([[1.0], [1.0], [2.0]], CLIENTS, axis=1)[:, :, None]
    made.run(np.full((CLIENTS, 1), 1.5), forecasts)
    whole = (1 - ONLY) * 4 / 3 + ONLY * 2  # of all, then of the shared only
    best = (1.5 - 1) / (whole - 1)
    assert made.state["learned"].sum() == 0  # learned before the next forecast
    found = made.run(np.full((CLIENTS, 1), np.nan), forecasts)
    share = (PULL * NEAR + best) / (PULL + 1)
    value = made.inside["whole"].next(forecasts[:, :, 0])[0]
    expected = 1 + min(share, 1) * ((1 - ONLY) * value + ONLY * 2 - 1)
    np.testing.assert_allclose(found.combined[:, 0], expected, rtol=1e-9)


def test_without_a_local_or_a_shared_forecast_the_others_forecast() -> None:
    forecasts = np.repeat([[1.0], [1.0], [3.0]], CLIENTS, axis=1)
    forecasts[:2, 0], forecasts[2, 1] = np.nan, np.nan
    value, _ = blend().next(forecasts)
    np.testing.assert_allclose(value[:2], [3, 1])
    assert np.isnan(blend().next(np.full((3, CLIENTS), np.nan))[0]).all()


def test_first_shares() -> None:
    panel = make_panel(clients=2, days=40)
    history = make_history(panel, 24, panel.values.mean(0), panel.values.std(0))
    week = 168 / (168 + 40 * 24)
    np.testing.assert_allclose(shares(history, 960, 1), NEAR)
    np.testing.assert_allclose(shares(history, 960, 2), week)
    np.testing.assert_allclose(shares(history, 72, 6), 0.75 * AHEAD)


def test_states_of_earlier_versions_continue_as_they_were() -> None:
    """One mixture one step ahead; several steps ahead a fixed share, and nothing is confined."""
    truth, forecasts = data()
    plain = mixture_for(CLIENTS, NAMES, ["shared"], 1, saved=Mixture(CLIENTS, NAMES, 1).arrays())
    assert isinstance(plain, Mixture)
    whole, alone = Mixture(CLIENTS, NAMES, 2), Mixture(CLIENTS, NAMES[:2], 2)
    saved = {"share": np.full(CLIENTS, 0.2)}
    for part, mixture in (("whole", whole), ("alone", alone)):
        saved |= {f"{part}-{name}": array for name, array in mixture.arrays().items()}
    old = mixture_for(CLIENTS, NAMES, ["shared"], 2, saved)
    assert isinstance(old, Blend)
    old.load(saved)
    one, other = whole.run(truth, forecasts).combined, alone.run(truth, forecasts[:2]).combined
    np.testing.assert_array_equal(old.run(truth, forecasts).combined, 0.2 * one + 0.8 * other)
    again = mixture_for(CLIENTS, NAMES, ["shared"], 2, old.arrays())
    again.load(old.arrays())
    now = forecasts[:, :, -1]
    np.testing.assert_array_equal(again.next(now)[0], old.next(now)[0])
    new = mixture_for(CLIENTS, NAMES, ["shared"], 1, blend().arrays())
    assert isinstance(new, Blend) and not new.fixed
