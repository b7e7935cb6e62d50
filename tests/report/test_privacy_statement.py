"""What a run reveals, in sentences."""

from __future__ import annotations

from typing import Any

import pytest

from fuels.config import Settings, merge, to_dict
from fuels.report.privacy import revealed


def said(method: str = "fuels", audit: dict[str, Any] | None = None, **changes: Any) -> str:
    settings = to_dict(merge(Settings(), {"method": method, **changes}, "test"))
    summary: dict[str, Any] = {"settings": settings, "method": method}
    if method != "solo":
        summary["per_client_and_round"] = {"numbers_up": 6144.0}
    if "sharing" in changes:
        summary["sharing"] = {"sent": {"statistics": 14400}}
    return " ".join(revealed(summary, audit))


def test_what_is_sent_is_said_with_its_size() -> None:
    text = said()
    assert "In each round, every client that trains sends a prototype" in text
    assert "6,144 numbers" in text
    rare = said(privacy={"first": 5, "every": 10})
    assert (
        "From round 5 on, once every 10 rounds, every client that trains sends a prototype" in rare
    )
    assert "clients exchange nothing" in said("solo")
    for text in (said(), said("solo"), said("fedavg")):
        assert "Nothing here is differential privacy" in text


def test_what_prototypes_reveal_is_said() -> None:
    assert "can read most of a client's normalised daily profile" in said()
    hidden = said(privacy={"secret": True})
    assert "neither the initial model nor the order" in hidden and "can read most" not in hidden
    assert "laplace noise" in said(options={"noise": "laplace"})
    assert "prototype" not in said("fedavg")


def test_sums_are_said() -> None:
    text = said("solo", sharing={"statistics": True})
    assert "at least 10 clients" in text and "knows the remaining one" in text


def test_noised_sums_are_not_said_to_be_exact() -> None:
    changes = {"method": "solo", "sharing": {"statistics": True}}
    settings = to_dict(merge(Settings(), changes, "test"))
    guarantee = {
        "epsilon": 4.0,
        "delta": 1e-5,
        "unit": "hour",
        "relation": "removed",
        "epsilon_spent": 3.5,
        "not_covered": ["the dates"],
    }
    text = " ".join(
        revealed(
            {
                "settings": settings,
                "method": "solo",
                "sharing": {"sent": {"statistics": 14400}},
                "privacy": guarantee,
            }
        )
    )
    assert "noise is added" in text and "Not covered: the dates." in text
    assert "knows the remaining one" not in text and "Nothing here is" not in text


@pytest.mark.parametrize(("one", "every"), [(0.4, 0.95), (0.95, 0.4)])
def test_an_audit_is_quoted_by_its_worst_attacker(one: float, every: float) -> None:
    audit = {
        "clients": 30,
        "rounds": 4,
        "chance": 0.05,
        "linked": 0.9,
        "reached": [
            {"attacker": "blind", "one": 0.6, "every": 0.5},
            {"attacker": "informed", "one": one, "every": every},
        ],
    }
    assert "read 95 %" in said(audit=audit) and "informed; chance: 5 %" in said(audit=audit)
