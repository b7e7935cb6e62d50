"""Shared statistics: ridge coefficients from the data of all clients, without revealing any row.

All clients declare the same row: their lagged values, the lagged live mean, whether the day is
free, a constant, and the target. For every slot of the period (an hour, where the period is a day)
a client adds up the products of all pairs of columns over its training rows, and the sum over
clients is all that anybody else sees. A ridge regression needs no more than these sums:

    coefficients = (X'X + penalty)^-1 X'y

and because they are kept by slot, one exchange serves every regression on a subset of the columns,
with coefficients for each slot, for which no single client has enough data.

Rows are clipped to +-CLIP, and a row with a missing value is left out: the products with the
constant count the rows, so clients with gaps, short histories or late starts weigh what they know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fuels.arrays import Flags, Floats, Integers, window
from fuels.errors import FuelsError
from fuels.sharing.live_mean import CLIP
from fuels.sharing.sums import SumCarrier

PENALTY = 0.01  # in units of one squared z-score: only keeps the system solvable
CLOCK_PENALTY = 1.0  # of a slot's constant and free-day effect
PULL = 100.0  # rows that a slot's own rows weigh against, towards the common coefficients


@dataclass(frozen=True)
class Columns:
    """The declared row: values at `lags`, the live mean at `live_lags`, then three more columns."""

    lags: tuple[int, ...]
    live_lags: tuple[int, ...]
    slots: int  # of the period

    def __post_init__(self) -> None:
        lags = (*self.lags, *self.live_lags)
        if not self.lags or any(lag < 1 for lag in lags) or self.slots < 1:
            raise FuelsError(f"a row needs slots and lags of at least 1 step, not {self}")

    @property
    def names(self) -> tuple[str, ...]:
        values = [f"value {lag}" for lag in self.lags]
        means = [f"mean {lag}" for lag in self.live_lags]
        return (*values, *means, "free day", "constant", "target")

    @property
    def width(self) -> int:
        return len(self.lags) + len(self.live_lags) + 3

    @property
    def numbers(self) -> int:
        """Numbers that one client contributes: upper triangles, one for each slot."""
        return self.slots * self.width * (self.width + 1) // 2

    def inputs(self, values: Floats, live: Floats | None, first: int, last: int) -> Floats:
        """Lagged columns [client, step, column] of steps first..last-1; NaN where unknown.

        `values` and `live` are [client, step] from step 0; without a live mean its columns are NaN.
        """
        parts = [window(values, first - lag, last - lag) for lag in self.lags]
        missing = np.full((len(values), last - first), np.nan)
        for lag in self.live_lags:
            parts.append(missing if live is None else window(live, first - lag, last - lag))
        return np.stack(parts, axis=2)

    def rows(
        self,
        observed: Floats,
        live: Floats | None,
        free: Flags,
        first: int,
        last: int,
        filled: Floats | None = None,
    ) -> Floats:
        """Clipped rows [client, step, width] of steps first..last-1; `free` is [step] from 0.

        Lags come from `filled` where it is given: a gap in the past need not cost a row.
        """
        shape = (len(observed), last - first, 1)
        parts = [
            self.inputs(observed if filled is None else filled, live, first, last),
            np.broadcast_to(free[first:last, None].astype(np.float64), shape),
            np.ones(shape),
            observed[:, first:last, None],
        ]
        return np.clip(np.concatenate(parts, axis=2), -CLIP, CLIP)


def moments(columns: Columns, rows: Floats, slot: Integers) -> Floats:
    """One client's contribution: sums of products of rows [step, width], packed [slot, pair]."""
    complete = ~np.isnan(rows).any(axis=1)
    upper = np.triu_indices(columns.width)
    packed = np.zeros((columns.slots, len(upper[0])))
    for s in range(columns.slots):
        part = rows[complete & (slot == s)]
        packed[s] = (part.T @ part)[upper]
    return packed


def add_up(
    carrier: SumCarrier, columns: Columns, parts: Mapping[str, Floats], *, step: int
) -> Totals | None:
    """The totals over clients with contributions [slot, pair]; None if the carrier gives no sum."""
    total = carrier.total("statistics", step, parts)
    return None if total is None else unpack(columns, total)


def unpack(columns: Columns, packed: Floats) -> Totals:
    """Totals from upper triangles [slot, pair]."""
    upper = np.triu_indices(columns.width)
    if packed.shape != (columns.slots, len(upper[0])):
        raise FuelsError(
            f"statistics of shape {packed.shape} do not fit the declared columns, which need"
            f" {(columns.slots, len(upper[0]))}"
        )
    full = np.zeros((columns.slots, columns.width, columns.width))
    full[:, upper[0], upper[1]] = packed
    full[:, upper[1], upper[0]] = packed
    return Totals(columns, full)


@dataclass(frozen=True)
class Regression:
    """Which columns a shared ridge uses, and whether it forecasts the value or the change.

    With `change` the target and all lagged values count from the newest value (the first lag), and
    the live mean from its own newest; the difference of the two newest is one more column.
    """

    lags: tuple[int, ...]
    live_lags: tuple[int, ...] = ()
    change: bool = True


@dataclass(frozen=True)
class Coefficients:
    """A fitted shared ridge: one row of coefficients for each slot."""

    inputs: Floats  # [slot, lagged column of `Columns`]
    free: Floats  # [slot]
    constant: Floats  # [slot]

    def predict(self, inputs: Floats, free: Flags, slot: Integers) -> Floats:
        """Forecasts [client, step] from inputs [client, step, column]; NaN where one is missing."""
        used = np.flatnonzero(np.any(self.inputs != 0, axis=0))
        # Summed step by step: a forecast does not depend on how many steps are asked for.
        weighted = (inputs[:, :, used] * self.inputs[slot][:, used]).sum(axis=2)
        result: Floats = weighted + self.free[slot] * free + self.constant[slot]
        return result


@dataclass(frozen=True)
class Totals:
    """Sums of products over all clients, [slot, column, column]."""

    columns: Columns
    products: Floats

    @property
    def rows(self) -> int:
        """Rows behind the totals."""
        return round(float(self.products[:, -2, -2].sum()))

    def __add__(self, other: Totals) -> Totals:
        if other.columns != self.columns:
            raise FuelsError("statistics with different columns cannot be added")
        return Totals(self.columns, self.products + other.products)

    def coefficients(
        self, regression: Regression, solve: Callable[[Floats], Floats] | None = None
    ) -> Coefficients:
        """Ridge coefficients on the rows of all clients together; `solve` default: by slot."""
        base, basis = self._basis(regression)
        last = np.zeros((self.columns.width, 3))
        last[[-3, -2, -1], [0, 1, 2]] = 1.0
        if regression.change:
            last[base, 2] -= 1.0
        change = np.concatenate([basis, last], axis=1)
        products = np.einsum("ia,sij,jb->sab", change, self.products, change, optimize=True)
        solved = (solve or slot_coefficients)(products)  # [slot, column]
        inputs = solved[:, :-2] @ basis.T
        if regression.change:
            inputs[:, base] += 1.0
        return Coefficients(inputs[:, : self.columns.width - 3], solved[:, -2], solved[:, -1])

    def _basis(self, regression: Regression) -> tuple[int, Floats]:
        """The newest value's position, and the regression's columns as sums of declared ones."""
        columns = self.columns
        unknown = set(regression.lags) - set(columns.lags) | set(regression.live_lags) - set(
            columns.live_lags
        )
        if unknown or not regression.lags:
            raise FuelsError(
                f"lags {sorted(unknown)} are not among the declared columns {columns.names}"
            )
        values = [columns.lags.index(lag) for lag in regression.lags]
        means = [len(columns.lags) + columns.live_lags.index(lag) for lag in regression.live_lags]
        pairs: list[tuple[int, int | None]] = [(i, None) for i in (*values, *means)]
        if regression.change:
            pairs = [(i, values[0]) for i in values[1:]]
            pairs += [(i, means[0]) for i in means[1:]]
            pairs += [(i, values[0]) for i in means[:1]]
        basis = np.zeros((columns.width, len(pairs)))
        for j, (plus, minus) in enumerate(pairs):
            basis[plus, j] += 1.0
            if minus is not None:
                basis[minus, j] -= 1.0
        return values[0], basis


def common_coefficients(products: Floats) -> Floats:
    """The same coefficients in every slot."""
    total = products.sum(axis=0)
    width = len(total) - 1
    solved = np.linalg.solve(total[:-1, :-1] + PENALTY * np.eye(width), total[:-1, -1])
    return np.tile(solved, (len(products), 1))


def slot_coefficients(products: Floats, pull: float = PULL) -> Floats:
    """Coefficients for each slot, drawn towards the common ones as if by `pull` average rows."""
    common = common_coefficients(products)[0]
    total = products.sum(axis=0)
    count = max(total[-2, -2], 1.0)
    mean = total[:-3, -2] / count
    penalty = np.zeros((len(common), len(common)))
    penalty[:-2, :-2] = pull * (total[:-3, :-3] / count - np.outer(mean, mean))
    penalty += PENALTY * np.eye(len(common))
    penalty[[-2, -1], [-2, -1]] += CLOCK_PENALTY
    return np.stack(
        [np.linalg.solve(p[:-1, :-1] + penalty, p[:-1, -1] + penalty @ common) for p in products]
    )


def union_of_lags(lags: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """All lags that some regressions need, for `Columns`; each once, in order."""
    return tuple(sorted({lag for one in lags for lag in one}))
