"""The messages of a live series.

`live`: the server passes on the sums that a site lacks and names the next step; the site replies
once it has values of that step, or after some seconds without. `live sum`: the server names a step,
the set of sites and the founder's roster; the site replies with its masked numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats
from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, text_list

WAIT, SUM = "live", "live sum"
KINDS = (WAIT, SUM)
NAME = "live mean"  # of the sums
LARGEST_TIME = 2**40  # seconds


def series(run: str) -> str:
    """What the masks of a live series depend on, besides the step."""
    return f"live-{run}"


@dataclass(frozen=True)
class Wait:
    """A request to store sums, and to wait for values of a step."""

    step: int | None  # seconds since 1970; None: the server does not know yet where to begin
    hold: float  # seconds that the site may wait
    first: int  # time of the first sum
    seconds: int  # of a step; 0: unknown
    sums: Floats  # [step, 2]: total and count; NaN and 0: there will be no sum

    def facts(self) -> dict[str, Any]:
        names = ("step", "hold", "first", "seconds")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def read(cls, envelope: Envelope) -> Wait:
        facts, sums = envelope.facts, envelope.arrays.get("sums", np.empty(0))
        if set(envelope.arrays) != {"sums"} or sums.ndim != 2 or sums.shape[1] != 2:
            raise FuelsError("it has no sums")
        if sums.dtype != np.float64 or not np.isfinite(sums[:, 1]).all():
            raise FuelsError("its counts are not numbers")
        step = facts.get("step")
        return cls(
            None if step is None else whole(step, "step"),
            float(whole(facts.get("hold"), "hold")),
            whole(facts.get("first"), "first"),
            whole(facts.get("seconds"), "seconds"),
            sums,
        )


@dataclass(frozen=True)
class State:
    """A site's reply: where its clients are."""

    step: int | None  # as asked
    values: int  # clients with a plausible value at that step
    clients: int
    newest: int  # newest step with a value
    after: int | None  # the step after the newest one whose sum the site knows; None: knows none
    seconds: int  # of a step

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> State:
        step, after = facts.get("step"), facts.get("after")
        values, clients = (
            whole(facts.get("values"), "values"),
            whole(facts.get("clients"), "clients"),
        )
        if not 0 <= values <= clients <= 10**6:
            raise FuelsError("it states an impossible number of values")
        seconds = whole(facts.get("seconds"), "seconds")
        if seconds < 1:
            raise FuelsError("it states an impossible step")
        return cls(
            None if step is None else whole(step, "step"),
            values,
            clients,
            whole(facts.get("newest"), "newest"),
            None if after is None else whole(after, "after"),
            seconds,
        )


@dataclass(frozen=True)
class Sum:
    """A request for a masked contribution."""

    step: int
    sites: tuple[str, ...]
    roster: bytes

    def facts(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "sites": list(self.sites),
            "roster": self.roster.decode("utf-8"),
        }

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Sum:
        roster = facts.get("roster")
        if not isinstance(roster, str):
            raise FuelsError("it names no roster")
        return cls(
            whole(facts.get("step"), "step"),
            text_list(facts.get("sites"), "the set of sites"),
            roster.encode(),
        )


def words_of(envelope: Envelope) -> NDArray[np.uint64]:
    """The masked numbers in a site's reply."""
    words = envelope.arrays.get("words", np.empty(0))
    if set(envelope.arrays) != {"words"} or words.dtype != np.int64 or words.ndim != 1:
        raise FuelsError("it has no masked numbers")
    return words.view(np.uint64)


def whole(value: Any, what: str) -> int:
    if type(value) is not int or abs(value) > LARGEST_TIME:
        raise FuelsError(f"{what} is not a whole number in range")
    return value
