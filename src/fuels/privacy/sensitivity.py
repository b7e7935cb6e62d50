"""By how much one protected unit can change what is released, in the L2 norm.

The unit is one hour, one day or all values of one client. Two data sets are neighbours if

- `removed`: in one of them, the values of one unit are missing (dp_accounting: REPLACE_SPECIAL);
- `replaced`: the values of one unit are any other values (REPLACE_ONE); which values are missing is
  then not protected.

A unit has at most n consecutive steps. What it can change:

*Values* clipped to +-c, each in its own number of the release: c for each value, so c sqrt(n);
twice that if they are replaced.

*Sums by cell* (mean day, by time of day): the n_s values of a unit in one cell add up, so
c sqrt(sum n_s^2). With a count beside each sum, a removed value also takes 1 from the count:
sqrt(c^2 + 1) in place of c. Replacing changes no count: 2 c.

*Histograms* (scale): n values may all leave one bin, so n; if replaced, they also enter another
one: n sqrt(2).

*Products of rows* x x', each row clipped to the norm C: the Frobenius norm of x x' is |x|^2, at
most C^2. Rows overlap: the value of step t is the target of row t and the lagged value of rows
t + l, so the values of n steps appear in

    m = |{t + l : t = 1..n, l = 0 or a lag}|

rows. Removing them removes these rows: m C^2. If they are replaced, x x' becomes y y', and since
|xx' - yy'|^2 = |x|^4 + |y|^4 - 2 (x'y)^2, each row changes by at most sqrt(2) C^2. Clipping whole
rows needs one bound for all columns, whatever their correlation; clipping each of k entries to +-c
would allow rows of the norm c sqrt(k), which real rows never reach. A row with a missing or filled
value is left out, and a row counts only if all its values lie in the span of the release, so that
releases of disjoint spans share no value. A live mean in a row is public by then: it was released,
with noise.

*Rounding* to a grid of step g: g / 2 in every number of both neighbours, so g sqrt(numbers) more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, hypot, sqrt

from fuels.config import nearest
from fuels.errors import FuelsError


class Unit(StrEnum):
    """What is protected, of one client."""

    HOUR = "hour"
    DAY = "day"
    CLIENT = "client"


class Relation(StrEnum):
    """What may happen to the values of a unit between neighbouring data sets."""

    REMOVED = "removed"
    REPLACED = "replaced"


SECONDS = {Unit.HOUR: 3600, Unit.DAY: 86400}


def unit_of(text: str) -> Unit:
    try:
        return Unit(text)
    except ValueError:
        raise FuelsError(f"privacy.unit {text} is unknown{nearest(text, Unit)}") from None


def relation_of(text: str) -> Relation:
    try:
        return Relation(text)
    except ValueError:
        raise FuelsError(f"privacy.relation {text} is unknown{nearest(text, Relation)}") from None


@dataclass(frozen=True)
class Protected:
    """A unit as steps of the data."""

    unit: Unit
    relation: Relation
    step_seconds: int

    def steps(self, span: int) -> int:
        """Most steps of one unit in a release that covers `span` steps."""
        if self.unit is Unit.CLIENT:
            return span
        seconds = SECONDS[self.unit]
        aligned = seconds % self.step_seconds == 0 or self.step_seconds % seconds == 0
        return min(span, ceil(seconds / self.step_seconds) + (0 if aligned else 1))

    def values(self, clip: float, span: int) -> float:
        return self._twice(clip) * sqrt(self.steps(span))

    def cells(
        self, clip: float, span: int, period: int, slots: int, *, counts: bool = True
    ) -> float:
        """Sums of values by slot of the period, with a count beside each or without."""
        steps = self.steps(span)
        counted = counts and self.relation is Relation.REMOVED
        each = hypot(clip, 1.0) if counted else self._twice(clip)
        return each * sqrt(max(_squares(first, steps, period, slots) for first in range(period)))

    def histogram(self, span: int) -> float:
        return self.steps(span) * (sqrt(2) if self.relation is Relation.REPLACED else 1.0)

    def products(self, norm: float, span: int, lags: Iterable[int]) -> float:
        each = sqrt(2) if self.relation is Relation.REPLACED else 1.0
        return self.rows(span, lags) * each * norm**2

    def rows(self, span: int, lags: Iterable[int]) -> int:
        """Most rows in which the values of one unit appear."""
        steps = self.steps(span)
        return min(span, len({t + lag for lag in {0, *lags} for t in range(steps)}))

    def _twice(self, clip: float) -> float:
        return 2 * clip if self.relation is Relation.REPLACED else clip


def _squares(first: int, steps: int, period: int, slots: int) -> int:
    """Sum over slots of the squared number of values that fall into it."""
    whole, rest = divmod(steps, period)
    count = [0] * slots
    for phase in range(period):
        extra = (phase - first) % period < rest
        count[phase * slots // period] += whole + extra
    return sum(n * n for n in count)
