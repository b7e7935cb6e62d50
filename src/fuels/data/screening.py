"""Screening: is a value plausible, given the past of its series?

    panel, screened = screen_panel(panel, period)  # implausible values are NaN now
    screen = Screen.begin(len(panel.ids), period)
    screened = screen.check(panel)  # the same, and the screen can check what follows

Each client is screened separately and causally: a result depends only on earlier values.
Values are compared on the scale arcsinh(value / unit), on which errors are alike at all levels; the
unit is the client's usual error. Three things are expected of a value: the usual value at this time
of the period, moved by how far the series was from it just now, or lately, or the last value again.
A value is implausible if it is farther from all of them than the tolerance: a factor of e (for
values above the unit), or more for a client whose errors are large. A run of equal values is
implausible if it is longer and less probable than those of the past.

An implausible value is treated as missing and teaches next to nothing. Values that stay implausible
for half a period are accepted as a new level; near the usual value, three are enough. A constant
run is accepted after a whole period, but never becomes what is expected. In the first periods the
tolerance is wider; the very first values are always plausible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Datetimes, Flags, Floats, Integers
from fuels.config import KEEP, MISSING
from fuels.data.clock import format_moment
from fuels.data.panel import Panel
from fuels.errors import FuelsError
from fuels.kernels.screening import (
    ACCEPTED,
    NUMBERS,
    OUTSIDE,
    PLAUSIBLE,
    STUCK,
    Constants,
    screen_steps,
)

CONSTANTS = Constants()
BLOCK = 2**20  # values screened at once
ROWS = ("client", "step", "value", "score", "low", "high", "code")  # arrays of `Screened`
NAMED = 5  # findings that a message lists
REASONS = {PLAUSIBLE: None, OUTSIDE: "outside", STUCK: "constant", ACCEPTED: "accepted"}


def drops_implausible(chosen: str, mixed: bool) -> bool:
    """Whether implausible values count as missing, as chosen in data.implausible.

    `mixed`: whether forecasts are those of a mixture.
    """
    if chosen not in ("", KEEP, MISSING):
        raise FuelsError(f"data.implausible must be {MISSING} or {KEEP}, not {chosen}")
    return (chosen or (MISSING if mixed else KEEP)) == MISSING


@dataclass(frozen=True)
class Screened:
    """What is said of some values of a panel, by client and then by time.

    Those that are not simply plausible, or all from a step on if these were asked for.
    """

    ids: tuple[str, ...]
    times: Datetimes  # of all steps
    timezone: str | None
    client: Integers  # position among the ids; this and all following are [row]
    step: Integers
    value: Floats
    score: Floats  # above 1 if the value is implausible by itself; NaN if too little is known
    low: Floats  # the range of plausible values
    high: Floats
    code: NDArray[np.int8]

    @property
    def implausible(self) -> Flags:
        return np.asarray((self.code == OUTSIDE) | (self.code == STUCK))

    def where(self, rows: Flags | Integers) -> Screened:
        return replace(self, **{name: getattr(self, name)[rows] for name in ROWS})

    def of(self, ids: Sequence[str]) -> Screened:
        """Only those of some clients."""
        wanted = set(ids)
        there = np.array([client in wanted for client in self.ids], dtype=np.bool_)
        return self.where(there[self.client])

    def since(self, time: np.datetime64) -> Screened:
        """Only those from a time on."""
        return self.where(self.times[self.step] >= time)

    def removed(self, panel: Panel) -> Panel:
        """The panel that was screened, with implausible values missing."""
        if not self.implausible.any():
            return panel
        values = panel.values.copy()
        values[self.step[self.implausible], self.client[self.implausible]] = np.nan
        return replace(panel, values=values)

    # -- in words ------------------------------------------------------------------------------

    def facts(self) -> list[dict[str, Any]]:
        """The implausible values for JSON."""
        found = self.where(self.implausible)
        return [
            {
                "client": self.ids[client],
                "time": format_moment(self.times[step], self.timezone),
                "value": float(value),
                "plausible": [float(low), float(high)],
                "reason": REASONS[int(code)],
            }
            for client, step, value, low, high, code in zip(
                *(found.client, found.step, found.value, found.low, found.high, found.code),
                strict=True,
            )
        ]

    def sentence(self) -> str:
        """How many values are implausible, and the first of them; empty if none is."""
        found = self.where(self.implausible)
        count, clients = len(found.step), len(set(found.client.tolist()))
        if not count:
            return ""
        runs = list(found.runs())
        listed = "; ".join(found._run_in_words(run) for run in runs[:NAMED])
        more = f"; and {len(runs) - NAMED} more" if len(runs) > NAMED else ""
        return (
            f"{count} value{'s' * (count != 1)} of {clients} client{'s' * (clients != 1)}"
            f" {'is' if count == 1 else 'are'} implausible: {listed}{more}"
        )

    def accepted(self) -> str:
        """Where a new level was accepted; empty if it was nowhere."""
        found = self.where(self.code == ACCEPTED)
        firsts = [run[0] for run in found.runs()]
        if not firsts:
            return ""
        named = [f"{self.ids[found.client[i]]} at {found._time(i)}" for i in firsts[:NAMED]]
        more = ", ..." if len(firsts) > NAMED else ""
        return f"values that stayed implausible are accepted: {', '.join(named)}{more}"

    def runs(self) -> Iterator[Integers]:
        """Rows of one client at successive steps."""
        breaks = (np.diff(self.client) != 0) | (np.diff(self.step) != 1)
        yield from (run for run in np.split(np.arange(len(self.step)), np.flatnonzero(breaks) + 1)
                    if len(run))  # fmt: skip

    def _time(self, row: int) -> str:
        return format_moment(self.times[self.step[row]], self.timezone)

    def _run_in_words(self, run: Integers) -> str:
        first, last, values = run[0], run[-1], self.value[run]
        client = self.ids[self.client[first]]
        bound = self.low[first] if values[0] < self.low[first] else self.high[first]
        side = "at least" if values[0] < self.low[first] else "at most"
        usual = f"(plausible: {side} {bound:.6g})"
        if self.code[first] == STUCK:
            usual = "(constant for longer than is plausible)"
        if len(run) == 1:
            return f"{client} at {self._time(first)}: {values[0]:.6g} {usual}"
        low, high = float(values.min()), float(values.max())
        span = f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"
        return f"{client} from {self._time(first)} to {self._time(last)}: {span} {usual}"


@dataclass
class Screen:
    """What is known of some clients, from the values screened so far."""

    profile: Floats  # [client, period]: the usual values, NaN where none is known
    numbers: Floats  # [client, number]: see kernels/screening.py
    constants: Constants = field(default=CONSTANTS)

    @classmethod
    def begin(cls, clients: int, period: int, constants: Constants = CONSTANTS) -> Screen:
        """Nothing is known yet."""
        return cls(np.full((clients, period), np.nan), np.zeros((clients, NUMBERS)), constants)

    def check(self, panel: Panel, *, whole_from: int | None = None) -> Screened:
        """Check the values of a panel, which follow those checked before; the screen learns them.

        From step `whole_from` on, plausible values are listed as well.
        """
        clients, period = self.profile.shape
        if len(panel.ids) != clients:
            raise FuelsError(
                f"{panel.name}: {len(panel.ids)} clients, but the screen has {clients}"
            )
        phases, parts = panel.phases(period), []
        steps = max(BLOCK // max(clients, 1), 1)
        for first in range(0, max(panel.length, 1), steps):
            values = np.ascontiguousarray(panel.values[first : first + steps].T)
            codes = np.empty(values.shape, dtype=np.int8)
            scores, low, high = (np.empty(values.shape) for _ in range(3))
            phase = np.ascontiguousarray(phases[first : first + steps])
            screen_steps(
                *(values, phase, self.profile, self.numbers, tuple(self.constants)),
                *(codes, scores, low, high),
            )
            listed = codes != PLAUSIBLE
            if whole_from is not None:
                listed[:, max(whole_from - first, 0) :] = True
                listed &= ~np.isnan(values)
            client, step = np.nonzero(listed)
            found = (a[listed] for a in (values, scores, low, high, codes))
            about = panel.ids, panel.times, panel.timezone
            parts.append(Screened(*about, client, step + first, *found))
        whole: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in ROWS
        }
        return replace(parts[0], **whole).where(np.lexsort((whole["step"], whole["client"])))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The state, to be saved."""
        return {"profile": self.profile, "numbers": self.numbers}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]]) -> Screen:
        """From saved arrays, which stay as they are."""
        profile, numbers = (np.array(arrays[k], dtype=np.float64) for k in ("profile", "numbers"))
        if profile.ndim != 2 or numbers.shape != (len(profile), NUMBERS):
            raise FuelsError(
                f"the saved screen does not fit: numbers of shape {numbers.shape}, expected"
                f" {(len(profile), NUMBERS)}"
            )
        return cls(profile, numbers)

    def copy(self) -> Screen:
        return Screen(self.profile.copy(), self.numbers.copy(), self.constants)

    def take(self, clients: Flags) -> Screen:
        """The screen of some clients."""
        return Screen(self.profile[clients], self.numbers[clients], self.constants)


def screen_panel(panel: Panel, period: int) -> tuple[Panel, Screened]:
    """The panel with implausible values missing, and what is said of them."""
    screened = Screen.begin(len(panel.ids), period).check(panel)
    return screened.removed(panel), screened
