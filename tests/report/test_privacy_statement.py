"""What a run reveals, in sentences."""

from __future__ import annotations

from typing import Any

import pytest

from fuels.config import Settings, Sharing, merge
from fuels.methods.base import Method
from fuels.report.privacy import statement
from fuels.runs.build import method_for
from fuels.runs.settings import resolve


def method(name: str = "fuels", **changes: Any) -> Method:
    return method_for(resolve(merge(Settings(), {"method": name, **changes}, "test")), periods=37)


def test_prototypes_are_counted_over_the_rounds_that_send_them() -> None:
    said = " ".join(statement(method(privacy={"first": 2, "every": 3}), 6, Sharing()))
    assert "In 2 of 6 rounds each client sends prototype: 12,288 numbers" in said
    assert "and so do models" in said and "can read the daily profile" in said
    assert "not differential privacy" in said or "Nothing here is differential privacy" in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy": {"secret": True}}, "neither the initial model nor the order"),
        ({"options": {"noise": "laplace", "noise_scale": 0.5}}, "laplace noise of 0.5"),
    ],
)
def test_protection_is_named(changes: dict[str, Any], words: str) -> None:
    assert words in " ".join(statement(method(**changes), 3, Sharing()))


def test_models_are_not_said_to_stay() -> None:
    said = " ".join(statement(method("fedavg"), 3, Sharing()))
    assert "decoder, encoder" in said and "so do models" not in said


def test_nothing_sent_and_sums() -> None:
    assert statement(method("solo"), 3, Sharing()) == [
        "Training sends nothing: values, models and forecasts stay with each client."
    ]
    said = " ".join(statement(method("solo"), 3, Sharing(statistics=True)))
    assert "at least 10 clients" in said and "differential privacy" in said


def test_an_audit_is_quoted_by_its_worst_attacker() -> None:
    audit = {
        "clients": 30,
        "rounds": 4,
        "chance": 0.05,
        "linked": 0.9,
        "reached": [
            {"attacker": "blind", "one": 0.6, "every": 0.5},
            {"attacker": "informed", "one": 0.4, "every": 0.95},
        ],
    }
    said = " ".join(statement(method(), 3, Sharing(), audit))
    assert "read 95 %" in said and "attacker: informed; chance: 5 %" in said
