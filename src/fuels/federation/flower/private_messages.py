"""The totals of noised sums as messages carry them: their releases as facts, their words as arrays.

A reader derives each release from the plan of the run, so that shape and grid are never taken from
a message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.experts.private_run_sums import Plan
from fuels.federation.codec import text_list
from fuels.privacy.ledger import Entry, Release


def title(release: Release, run: str) -> str:
    """The name of a noised sum: another run releases again, and is charged."""
    return f"{release.name} of {run}"


def found_facts(found: Sequence[Entry]) -> list[dict[str, Any]]:
    """What a message says of totals; `read_found` reads it."""
    return [
        {"name": e.release.name, "first": e.release.first, **{k: e.about[k] for k in e.about}}
        for e in found
    ]


def read_found(
    plan: Plan, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> list[Entry]:
    """The totals in a message, in the order of their releases."""
    stated: Any = facts.get("found")
    found: list[Entry] = []
    if not isinstance(stated, list):
        raise FuelsError("the server's message does not say which sums it has")
    for number, one in enumerate(stated):
        if not isinstance(one, dict) or type(one.get("clients")) is not int:
            raise FuelsError("the server's message describes a sum incompletely")
        key = one.get("name"), one.get("first")
        release = next((r for r in plan.releases(found) if (r.name, r.first) == key), None)
        message = arrays.get(str(number), np.empty(0))
        if release is None or message.shape != release.shape or message.dtype != np.int64:
            raise FuelsError("the server's totals do not have the form of the sums")
        sites = list(text_list(one.get("sites"), "the list of sites"))
        found.append(Entry(release, message, {"sites": sites, "clients": one["clients"]}))
    return found
