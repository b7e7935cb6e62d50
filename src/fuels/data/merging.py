"""Adding new values of some clients to those that are already known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fuels.arrays import Flags
from fuels.data.clock import format_moment
from fuels.data.inputs import merged
from fuels.data.panel import Panel
from fuels.errors import FuelsError

LATE = np.timedelta64(7, "D")  # a value that is later than this is not learned
LARGEST_GAP = np.timedelta64(400, "D")  # between known and new values


@dataclass(frozen=True)
class Merged:
    """Known and new values together, and what the new ones changed."""

    panel: Panel
    known: int  # steps that were known before
    late: Flags  # values of known steps that were missing
    revised: Flags  # values that were different
    dropped: int  # values from before the first known step

    @property
    def changed(self) -> Flags:
        """Values of known steps that are late or revised."""
        return self.late | self.revised

    @property
    def young(self) -> Flags:
        """Steps that were at most seven days old, [time]."""
        newest = self.panel.start + (self.known - 1) * self.panel.step
        return self.panel.times > newest - LATE

    def notes(self) -> list[str]:
        """What the user should know about late and revised values."""
        found: list[str] = []
        young = self.young[:, None]
        for marks, was, verb in (
            (self.late & young, "late", "learned"),
            (self.revised & young, "revised", "replaced and learned again"),
            (self.changed & ~young, "late or revised", "over seven days old, so inputs only"),
        ):
            if marks.any():
                found.append(f"{self._count(marks, was)}: {verb}")
        if self.dropped:
            found.append(
                f"{self.dropped} value{'s' * (self.dropped != 1)} from before"
                f" {format_moment(self.panel.start, self.panel.timezone)}, too old to be used"
            )
        return found

    def _count(self, marks: Flags, was: str) -> str:
        """`3 late values of 2 clients (a, b) from 2014-01-03 04:00 to 2014-01-03 05:00`."""
        count, zone = int(marks.sum()), self.panel.timezone
        rows = np.flatnonzero(marks.any(axis=1))
        first, last = (format_moment(self.panel.times[row], zone) for row in (rows[0], rows[-1]))
        when = f"at {first}" if first == last else f"from {first} to {last}"
        named = [self.panel.ids[i] for i in np.flatnonzero(marks.any(axis=0))]
        return f"{count} {was} value{'s' * (count != 1)} of {listed(named)} {when}"


def listed(clients: Sequence[str]) -> str:
    """`3 clients (a, b, c)`, the first few by name."""
    more = ", ..." if len(clients) > 5 else ""
    noun = "client" if len(clients) == 1 else "clients"
    return f"{len(clients)} {noun} ({', '.join(clients[:5])}{more})"


def merge_panels(old: Panel, new: Panel) -> Merged:
    """All values of `old`, then those of `new`, which count where both have one.

    Missing values of `new` change nothing. Both are on the same clock; steps before the first one
    of `old` are dropped.
    """
    if new.start - old.times[-1] > LARGEST_GAP:
        raise FuelsError(
            f"{new.name}: the data begin at {format_moment(new.start, new.timezone)}, long after"
            f" the newest known value at {format_moment(old.times[-1], old.timezone)}: is a date"
            " wrong?"
        )
    at = int((new.start - old.start) // old.step)
    skipped = min(max(-at, 0), new.length)
    given, at = new.values[skipped:], max(at, 0)
    position = {client: i for i, client in enumerate(old.ids)}
    useful = [new.ids[i] for i in np.flatnonzero(~np.isnan(given).all(axis=0))]
    more = [client for client in useful if client not in position]
    position |= {client: len(old.ids) + i for i, client in enumerate(more)}
    values = np.full((max(old.length, at + len(given)), len(position)), np.nan)
    values[: old.length, : len(old.ids)] = old.values
    late, revised = (np.zeros(values.shape, dtype=bool) for _ in range(2))
    rows = slice(at, at + len(given))
    here = [i for i, client in enumerate(new.ids) if client in position]
    columns = [position[new.ids[i]] for i in here]
    given, before = given[:, here], values[rows, columns]
    known, seen = ~np.isnan(given), ~np.isnan(before)
    values[rows, columns] = np.where(known, given, before)
    past = (np.arange(len(values)) < old.length)[rows, None]
    late[rows, columns] = known & ~seen & past
    revised[rows, columns] = known & seen & (given != before)
    dropped = int((~np.isnan(new.values[:skipped])).sum())
    inputs = merged(old.inputs, new.inputs)
    panel = replace(old, values=values, ids=tuple(position), coordinates=None, inputs=inputs)
    return Merged(panel, old.length, late, revised, dropped)
