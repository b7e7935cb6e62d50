"""The live series of a run as its server keeps it: the sums, step by step, and what is open.

One file in the run's folder, replaced as a whole after each step and before a set of sites is asked
for its sum. A server that was killed in between asks the same set again: another one would reveal
the difference.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from fuels.arrays import Floats
from fuels.errors import FuelsError
from fuels.storage.checkpoint import load_state, save_state

FILE = "live.safetensors"  # in a run folder of the server
KEPT = 100_000  # newest steps that a site can still receive
SHOWN = 20  # newest skipped steps that status shows


def as_text(moment: int) -> str:
    """A time in seconds since 1970 as text."""
    when = datetime.datetime.fromtimestamp(moment, datetime.UTC)
    return when.strftime("%Y-%m-%d %H:%M")


@dataclass
class LiveRecord:
    """Times are seconds since 1970: UTC, or local if the data name no time zone."""

    path: Path
    seconds: int = 0  # of a step; 0: the sites have not said it yet
    first: int = 0  # time of the first step
    sums: Floats = field(default_factory=lambda: np.empty((0, 2)))  # total, count
    asked: tuple[str, ...] = ()  # the set that was asked for the sum of the next step
    last: dict[str, Any] = field(default_factory=dict)  # the newest step with a sum
    skipped: list[dict[str, Any]] = field(default_factory=list)  # the newest ones
    counts: dict[str, int] = field(default_factory=dict)  # steps, skipped, messages, bytes
    refusals: dict[str, str] = field(default_factory=dict)  # site: why it takes no part
    added: dict[str, int] = field(default_factory=dict)  # site: steps whose sum it is part of
    missed: dict[str, int] = field(default_factory=dict)  # and those whose sum is without it
    closed: float | None = None  # when the newest step was closed, with a sum or without

    @property
    def next(self) -> int:
        """The time of the next step."""
        return self.first + len(self.sums) * self.seconds

    def begin(self, moment: int, seconds: int) -> None:
        self.first, self.seconds = moment, seconds

    def ask(self, sites: tuple[str, ...]) -> None:
        """Before a set is asked for the sum of the next step."""
        self.asked = sites
        self.save()

    def done(self, total: float, count: float, took: float, members: Collection[str]) -> None:
        """The sum of the next step; `members`: all sites of the roster."""
        missing = sorted(set(members) - set(self.asked))
        for site in self.asked:
            self.added[site] = self.added.get(site, 0) + 1
        for site in missing:
            self.missed[site] = self.missed.get(site, 0) + 1
        self.last = {
            "time": as_text(self.next),
            "sites": list(self.asked),
            "missing": missing,
            "values": round(count),
            "seconds": round(took, 2),
        }
        self._add([[total, count]])
        self.count("steps")

    def skip(self, reason: str, steps: int = 1) -> None:
        """There will be no sum of the next step, or of more."""
        entry = {"time": as_text(self.next), "steps": steps, "reason": reason}
        self.skipped = [*self.skipped, entry][-SHOWN:]
        self._add([[np.nan, 0.0]] * steps)
        self.count("skipped", steps)

    def _add(self, rows: list[list[float]]) -> None:
        sums = np.concatenate([self.sums, np.array(rows)])
        drop = max(len(sums) - KEPT, 0)
        self.first += drop * self.seconds
        self.sums, self.asked, self.closed = sums[drop:], (), time.time()

    def since(self, moment: int | None, most: int) -> tuple[int, Floats]:
        """The sums from a time on, and the time of the first of them; None: all."""
        if not self.seconds:
            return 0, self.sums
        at = 0 if moment is None else max((moment - self.first) // self.seconds, 0)
        at = min(at, len(self.sums))
        return self.first + at * self.seconds, self.sums[at : at + most]

    def count(self, name: str, number: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + number

    # -- on disk -------------------------------------------------------------------------------

    def save(self) -> None:
        save_state(self.path, {"sums": self.sums}, self.facts())

    def facts(self) -> dict[str, Any]:
        names = [each.name for each in fields(self) if each.name not in ("path", "sums", "asked")]
        return {name: getattr(self, name) for name in names} | {"asked": list(self.asked)}

    @classmethod
    def load(cls, folder: Path) -> LiveRecord:
        """The series in the server's run folder; an empty one if there is none yet."""
        path = folder / FILE
        if not path.is_file():
            return cls(path)
        try:
            arrays, facts = load_state(path)
            return cls(path, sums=arrays["sums"], **{**facts, "asked": tuple(facts["asked"])})
        except (FuelsError, KeyError, TypeError) as error:
            raise FuelsError(
                f"{path}: the record of the live series cannot be read ({error}); restore it from a"
                " backup, or delete it: the series then begins at the next step"
            ) from None
