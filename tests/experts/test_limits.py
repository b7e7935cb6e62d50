"""The range of forecasts: given, detected, changed, and kept."""

from __future__ import annotations

import numpy as np
import pytest

from fuels.config import Mixture, Settings, merge, to_dict
from fuels.errors import FuelsError
from fuels.experts.limits import Limits, check_limits

MEAN, STD = np.array([2.0, 30.0]), np.array([3.0, 7.0])


def normalised(values: list[list[float]]) -> np.ndarray:
    return (np.array(values) - MEAN[:, None]) / STD[:, None]


COUNTS = normalised([[0, 3, np.nan, 5], [20, 30, 40, 31]])


def test_data_that_are_never_negative_are_at_least_0() -> None:
    found = Limits.of(Mixture(), COUNTS, MEAN, STD)
    assert found == Limits(least=0.0, detected=True)
    assert Limits.of(Mixture(), normalised([[0, -0.1], [1, 2]]), MEAN, STD) == Limits()
    assert Limits.of(Mixture(at_least="none"), COUNTS, MEAN, STD) == Limits()
    assert Limits.from_facts(found.facts()) == found
    assert (str(found), str(Limits())) == ("at least 0", "any value")


def test_given_bounds_must_suit_the_training_part() -> None:
    found = Limits.of(Mixture(at_least="-5", at_most="100"), COUNTS, MEAN, STD)
    assert found == Limits(-5.0, 100.0)
    with pytest.raises(FuelsError, match="at most 30, but the training part has 40"):
        Limits.of(Mixture(at_most="30"), COUNTS, MEAN, STD)
    with pytest.raises(FuelsError, match="at least 1, but the training part has 0"):
        Limits.of(Mixture(at_least="1"), COUNTS, MEAN, STD)
    with pytest.raises(FuelsError, match=r"must be below mixture\.at_most"):
        found.changed(Mixture(at_least="100"))
    assert found.changed(Mixture(at_most="none")) == Limits(-5.0)


def test_values_outside_are_reported() -> None:
    limits = Limits(0.0, detected=True)
    with pytest.warns(UserWarning, match=r"1 new value is outside .* \(at least 0\): --at-least"):
        limits.warn_outside(normalised([[-1, 3], [1, 2]]), limits.normalised(MEAN, STD))
    assert limits.suiting(np.array([-1.0, 2.0])) == Limits()
    assert limits.suiting(np.array([1.0, np.nan])) == limits


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        ({"on": True, "at_least": "few"}, "mixture.at_least must be a number or none, not 'few'"),
        ({"on": True, "at_most": "inf"}, "mixture.at_most must be a number or none, not 'inf'"),
        ({"on": True, "at_least": "3", "at_most": "3"}, "must be below mixture.at_most"),
        ({"at_least": "3"}, "confine the forecasts of the mixture, which is off"),
    ],
)
def test_refused_settings(mixture: dict[str, object], message: str) -> None:
    with pytest.raises(FuelsError, match=message):
        check_limits(merge(Settings(), {"mixture": mixture}, "test").mixture)


def test_bounds_that_are_not_given_are_not_in_a_config() -> None:
    """As in files of versions that had none."""
    assert set(to_dict(Settings())["mixture"]) == {"on", "levels"}
    given = merge(Settings(), {"mixture": {"at_least": 0}}, "test")
    assert to_dict(given)["mixture"]["at_least"] == "0"
