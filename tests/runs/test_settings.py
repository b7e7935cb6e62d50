"""Settings that exclude each other are refused with one sentence that names them."""

from __future__ import annotations

from typing import Any

import pytest

from fuels.config import Engine, Settings, merge
from fuels.errors import FuelsError
from fuels.runs.build import build
from fuels.runs.settings import resolve

MASKED: dict[str, Any] = {"method": "fedavg", "privacy": {"masked": True}}


@pytest.mark.parametrize("method", ["fuels", "solo", "fedda", "fuels-start"])
def test_only_means_can_be_masked(method: str) -> None:
    with pytest.raises(FuelsError) as caught:
        resolve(merge(Settings(), {**MASKED, "method": method}, "test"))
    assert str(caught.value) == (
        "privacy.masked is for methods of which the server needs only the mean of the uploads"
        f" (fedavg, fedprox, fedrep, perfedavg, pfedme), not for {method}"
    )


@pytest.mark.parametrize(
    ("defence", "told"),
    [
        ({"aggregation": "median"}, "set defence.aggregation = mean"),
        ({"aggregation": "krum"}, "defence.aggregation = krum needs single uploads"),
        ({"admission": 5.0}, "defence.admission = 5.0 needs single uploads, which privacy.masked"),
        ({"clip": 2.0, "joint": 7.0}, "defence.joint = 7.0 needs single uploads"),
        ({"votes": "site"}, "set defence.votes = client"),
    ],
)
def test_masks_exclude_defences_that_compare_uploads(defence: dict[str, Any], told: str) -> None:
    with pytest.raises(FuelsError) as caught:
        resolve(merge(Settings(), {**MASKED, "defence": defence}, "test"))
    assert told in str(caught.value)
    resolve(merge(Settings(), {**MASKED, "defence": {"clip": 2.0, "refusals": 10}}, "test"))


def test_a_joint_bound_needs_a_bound_on_lengths() -> None:
    chosen = merge(Settings(), {"defence": {"joint": 7.0}}, "test")
    with pytest.raises(FuelsError, match=r"defence\.joint needs defence\.clip"):
        resolve(chosen)
    resolve(merge(chosen, {"defence": {"clip": 2.0}}, "test"))


def test_masks_are_refused_on_one_machine() -> None:
    chosen = merge(Settings(), MASKED, "test")
    with pytest.raises(FuelsError, match=r"fuels federation run\); on one machine"):
        build(chosen, Engine(threads=1))
