"""The shared statistics as a site receives them from a federation.

A site cannot compute them again: where a forecast needs statistics up to a step, it uses the newest
ones that end before it, and none if there are none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.sharing.statistics import Columns, Totals
from fuels.storage.checkpoint import load_state, save_state

FILE = "statistics.safetensors"  # in a run folder
FORMAT = 1


@dataclass
class ReceivedStatistics:
    """Sums of products over all clients of a federation, from the first step on."""

    start: np.datetime64  # local standard time of step 0
    step: np.timedelta64
    totals: dict[tuple[int, int], Totals] = field(default_factory=dict)  # by horizon and end

    def add(self, horizon: int, first: int, last: int, part: Totals) -> None:
        """Add the statistics of steps first..last-1, after those before `first`."""
        self.totals[horizon, last] = part + self.totals[horizon, first] if first else part

    @property
    def numbers(self) -> int:
        """Numbers that a client added."""
        return sum(totals.columns.numbers for totals in self.totals.values())

    def until(self, time: np.datetime64, horizon: int) -> Totals | None:
        """The newest statistics from steps before a time."""
        end = int((time - self.start) // self.step)
        known = [last for ahead, last in self.totals if ahead == horizon and last <= end]
        return self.totals[horizon, max(known)] if known else None

    def save(self, path: Path) -> None:
        arrays: dict[str, NDArray[Any]] = {}
        columns = {}
        for (horizon, last), totals in self.totals.items():
            arrays[f"{horizon}/{last}"] = totals.products
            own = totals.columns
            columns[str(horizon)] = [list(own.lags), list(own.live_lags), own.slots]
        step = int(self.step / np.timedelta64(1, "s"))
        facts = {"format": FORMAT, "start": str(self.start), "step": step, "columns": columns}
        save_state(path, arrays, facts)

    @classmethod
    def load(cls, path: Path) -> ReceivedStatistics:
        arrays, facts = load_state(path)
        if facts.get("format") != FORMAT:
            raise FuelsError(f"{path}: not statistics that this version of fuels reads")
        found = cls(np.datetime64(facts["start"], "s"), np.timedelta64(facts["step"], "s"))
        for key, products in arrays.items():
            horizon, last = key.split("/")
            lags, live, slots = facts["columns"][horizon]
            columns = Columns(tuple(lags), tuple(live), slots)
            found.totals[int(horizon), int(last)] = Totals(columns, products)
        return found
