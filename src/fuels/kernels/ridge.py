"""Ridge regressions of many experts at once, compiled; experts/linear.py has the reference.

All regressions of a horizon are sub-blocks of one matrix of products. A row has the newest value,
the other lags as differences from it, the same for the live mean, the targets and a constant: with
it, a regression on values adds two columns and one on changes takes them as they are.

A regression uses the rows of which it knows all inputs. Rows are therefore added up by the set of
regressions that can use them (one set for most rows, more where values are missing), and each
regression takes the sums of the sets that it belongs to: nothing is approximated.

The calendar has two columns for each slot of the period, so it is eliminated slot by slot; what
remains are the lags. The penalty minimises the generalised cross-validation error, as in
experts/ridge.py, where one decomposition serves all penalties. Here each penalty needs a small
Cholesky factor, which is faster for so few columns.
"""

from __future__ import annotations

import numpy as np

from fuels.arrays import Flags, Floats, Integers
from fuels.kernels.jit import compiled

PATTERNS = 8  # sets of regressions whose sums are kept apart before they are handed out
QUICK = {"reassoc", "contract", "nsz"}  # sums in any order; missing values stay missing


@compiled()
def _read_lags(series: Floats, k: int, lags: Integers, first: int, row: Floats) -> int:
    """Write lags of a series, from the second on as differences from the first one."""
    missing = 0
    for i in range(len(lags)):
        at = k - lags[i]
        value = series[at] if at >= 0 else np.nan
        if np.isnan(value):
            missing |= 1 << (first + i)
            value = 0.0
        row[first + i] = value if i == 0 else value - row[first]
    return missing


@compiled()
def read_row(
    values: Floats,
    observed: Floats,
    live: Floats,
    bases: Floats,
    k: int,
    lags: Integers,
    live_lags: Integers,
    row: Floats,
) -> int:
    """Write the row of step k, with 0 for missing inputs; returns the missing ones as bits."""
    own, means = len(lags), len(live_lags)
    missing = _read_lags(values, k, lags, 0, row) | _read_lags(live, k, live_lags, own, row)
    truth, at = observed[k], own + means
    row[at] = truth - (row[0] if own else 0.0)
    for i in range(len(bases)):
        base = bases[i, k]
        if np.isnan(base):
            missing |= 1 << (own + means + i)
            base = 0.0
        row[at + 1 + i] = truth - base
    row[at + 1 + len(bases)] = 1.0
    return missing


@compiled(fastmath=QUICK)
def add_row(row: Floats, slot: int, free: bool, products: Floats, clock: Floats) -> None:
    """Add the upper triangle of products, and the sums by slot on all days and on free ones."""
    width = len(row)
    for i in range(width):
        one = row[i]
        for j in range(i, width):
            products[i, j] += one * row[j]
    for j in range(width):
        clock[0, slot, j] += row[j]
    if free:
        for j in range(width):
            clock[1, slot, j] += row[j]


@compiled()
def hand_out(
    patterns: Integers, count: int, products: Floats, clock: Floats, totals: Floats, clocks: Floats
) -> None:
    """Add the sums of each pattern to those of its sets, and clear them."""
    for p in range(count):
        for s in range(len(totals)):
            if patterns[p] >> s & 1:
                totals[s] += products[p]
                clocks[s] += clock[p]
        products[p] = 0.0
        clock[p] = 0.0


@compiled()
def add_up(
    values: Floats,
    observed: Floats,
    live: Floats,
    bases: Floats,
    end: int,
    lags: Integers,
    live_lags: Integers,
    slot: Integers,
    free: Flags,
    needs: Integers,
    room: tuple[Floats, Floats],
    totals: Floats,
    clocks: Floats,
) -> None:
    """Products of one client's rows before `end`, [set, column, column], and sums by slot.

    A row counts for a set if none of the inputs that the set `needs`, as bits, is missing.
    """
    products, clock = room
    products[:], clock[:], totals[:], clocks[:] = 0.0, 0.0, 0.0, 0.0
    patterns = np.zeros(PATTERNS, dtype=np.int64)
    row, count = np.empty(totals.shape[1]), 0
    for k in range(end):
        if np.isnan(observed[k]):
            continue
        missing = read_row(values, observed, live, bases, k, lags, live_lags, row)
        pattern = 0
        for s in range(len(needs)):
            if missing & needs[s] == 0:
                pattern |= 1 << s
        if pattern == 0:
            continue
        at = 0
        while at < count and patterns[at] != pattern:
            at += 1
        if at == PATTERNS:
            hand_out(patterns, count, products, clock, totals, clocks)
            at, count = 0, 0
        if at == count:
            patterns[at] = pattern
            count += 1
        add_row(row, slot[k], free[k], products[at], clock[at])
    hand_out(patterns, count, products, clock, totals, clocks)
    width = totals.shape[1]
    for s in range(len(totals)):
        for i in range(width):
            for j in range(i):
                totals[s, i, j] = totals[s, j, i]


@compiled()
def pick(totals: Floats, columns: Integers, products: Floats, sums: Floats) -> float:
    """Centred products of a regression's columns, and their sums; returns the number of rows.

    Each column is a sum of two of the row, or one of them (-1 instead of the other).
    """
    width, one = len(columns), len(totals) - 1
    count = totals[one, one]
    for i in range(width):
        a, b = columns[i]
        sums[i] = totals[one, a] + (totals[one, b] if b >= 0 else 0.0)
    for i in range(width):
        a, b = columns[i]
        for j in range(i + 1):
            c, d = columns[j]
            total = totals[a, c]
            if b >= 0:
                total += totals[b, c]
            if d >= 0:
                total += totals[a, d]
            if b >= 0 and d >= 0:
                total += totals[b, d]
            products[i, j] = total - sums[i] * sums[j] / max(count, 1.0)
            products[j, i] = products[i, j]
    return float(count)


@compiled(fastmath=QUICK)
def eliminate(
    clock: Floats, columns: Integers, sums: Floats, penalty: float, before: Floats, after: Floats
) -> float:
    """The calendar's part: centred sums `before` [column, slot of two kinds] and their solution.

    Returns the trace of the inverse of the calendar's own block with its penalty.
    """
    slots, one = clock.shape[1], clock.shape[2] - 1
    rows = 0.0
    for s in range(slots):
        rows += clock[0, s, one]
    trace, squares, left = 0.0, 0.0, 0.0
    steep = np.empty((2, slots))  # the block's solution for the centring
    for s in range(slots):
        n, f = clock[0, s, one], clock[1, s, one]
        size = f * (n - f) + penalty * (n + f) + penalty * penalty
        steep[0, s] = (f * (n - f) + penalty * n) / size
        steep[1, s] = penalty * f / size
        trace += (n + f + 2 * penalty) / size
        squares += steep[0, s] * steep[0, s] + steep[1, s] * steep[1, s]
        left += penalty * steep[0, s]
    if left == 0.0:  # no rows
        left = 1.0
    for i in range(len(columns)):
        a, b = columns[i]
        along, mean = 0.0, sums[i] / max(rows, 1.0)
        for s in range(slots):
            n, f = clock[0, s, one], clock[1, s, one]
            every = clock[0, s, a] + (clock[0, s, b] if b >= 0 else 0.0) - n * mean
            free = clock[1, s, a] + (clock[1, s, b] if b >= 0 else 0.0) - f * mean
            size = f * (n - f) + penalty * (n + f) + penalty * penalty
            before[i, s], before[i, slots + s] = every, free
            after[i, s] = ((f + penalty) * every - f * free) / size
            after[i, slots + s] = ((n + penalty) * free - f * every) / size
            along += steep[0, s] * every + steep[1, s] * free
        for s in range(slots):
            after[i, s] += steep[0, s] * along / left
            after[i, slots + s] += steep[1, s] * along / left
    return trace + squares / left


@compiled(fastmath=QUICK)
def reduce(products: Floats, before: Floats, after: Floats, gram: Floats, spread: Floats) -> None:
    """Products [column, column] without what the calendar explains, and products of `after`."""
    width = len(products)
    for i in range(width):
        for j in range(i + 1):
            explained, square = 0.0, 0.0
            for s in range(before.shape[1]):
                explained += before[i, s] * after[j, s]
                square += after[i, s] * after[j, s]
            gram[i, j] = gram[j, i] = products[i, j] - explained
            spread[i, j] = spread[j, i] = square


@compiled(fastmath=QUICK)
def solve(gram: Floats, penalty: float, room: tuple[Floats, Floats], weights: Floats) -> None:
    """Solve the first columns of `gram` for the last one; leaves the inverse in the room's second.

    The room's first takes the Cholesky factor, whose inverse then replaces it.
    """
    factor, inverse = room
    width = len(gram) - 1
    for i in range(width):
        for j in range(i + 1):
            total = gram[i, j]
            for k in range(j):
                total -= factor[i, k] * factor[j, k]
            if i == j:
                factor[i, i] = np.sqrt(max(total + penalty, penalty))
            else:
                factor[i, j] = total / factor[j, j]
    for j in range(width):
        factor[j, j] = 1.0 / factor[j, j]
        for i in range(j + 1, width):
            total = 0.0
            for k in range(j, i):
                total -= factor[i, k] * factor[k, j]
            factor[i, j] = total / factor[i, i]
    for i in range(width):
        for j in range(i + 1):
            total = 0.0
            for k in range(i, width):
                total += factor[k, i] * factor[k, j]
            inverse[i, j] = inverse[j, i] = total
    for i in range(width):
        total = 0.0
        for j in range(width):
            total += inverse[i, j] * gram[j, width]
        weights[i] = total


@compiled(fastmath=QUICK)
def score(
    gram: Floats,
    spread: Floats,
    calendar: tuple[float, Floats],
    penalty: float,
    rows: float,
    inverse: Floats,
    weights: Floats,
) -> float:
    """The generalised cross-validation error; adds the calendar's weights to `weights`."""
    own, after = calendar
    width, clock = len(gram) - 1, after.shape[1]
    left, trace, squares = gram[width, width], own, 0.0
    for i in range(width):
        left -= weights[i] * gram[i, width]
        squares += weights[i] * weights[i]
        trace += inverse[i, i]
        for j in range(width):
            trace += inverse[i, j] * spread[i, j]
    for s in range(clock):
        total = after[width, s]
        for i in range(width):
            total -= after[i, s] * weights[i]
        weights[width + s] = total
        squares += total * total
    residual = left - penalty * squares
    freedom = 1.0 + width + clock - penalty * trace
    return float(residual / max(max(rows, 1.0) - freedom, 1.0) ** 2)


@compiled()
def regress(
    totals: Floats,
    clock: Floats,
    columns: Integers,
    calendar: bool,
    penalties: Floats,
    weights: Floats,
) -> tuple[float, float]:
    """One regression with the best of the penalties: its weights, constant and number of rows."""
    width, slots = len(columns) - 1, clock.shape[1] if calendar else 0
    products, sums = np.empty((width + 1, width + 1)), np.empty(width + 1)
    rows = pick(totals, columns, products, sums)
    gram, spread = products, np.zeros((width + 1, width + 1))
    before, after = np.empty((width + 1, 2 * slots)), np.empty((width + 1, 2 * slots))
    room, own = (np.empty((width, width)), np.empty((width, width))), 0.0
    if calendar:
        gram = np.empty((width + 1, width + 1))
    found, least = np.empty(width + 2 * slots), np.inf
    for penalty in penalties:
        if calendar:
            own = eliminate(clock, columns, sums, penalty, before, after)
            reduce(products, before, after, gram, spread)
        solve(gram, penalty, room, found)
        error = score(gram, spread, (own, after), penalty, rows, room[1], found)
        if error < least:
            least = error
            weights[: len(found)] = found
    many, one = max(rows, 1.0), len(totals) - 1
    constant = sums[width] / many
    for i in range(width):
        constant -= weights[i] * sums[i] / many
    for s in range(slots):
        constant -= weights[width + s] * clock[0, s, one] / many
        constant -= weights[width + slots + s] * clock[1, s, one] / many
    return constant, rows


_PLAN = "Tuple((i8[::1], i8[::1], i8[:, :, ::1], i8[::1], b1[::1], f8[:, ::1]))"
_FIT = (
    "(f8[:, ::1], f8[:, ::1], f8[:, ::1], f8[:, :, ::1], i8, UniTuple(i8[::1], 2), i8[::1],"
    f" b1[::1], i8, {_PLAN}, f8[:, :, ::1], f8[:, ::1], f8[:, ::1])"
)


@compiled(ahead=_FIT)
def fit(
    values: Floats,
    observed: Floats,
    live: Floats,
    bases: Floats,
    end: int,
    lags: tuple[Integers, Integers],
    slot: Integers,
    free: Flags,
    slots: int,
    plan: tuple[Integers, Integers, Integers, Integers, Flags, Floats],
    weights: Floats,
    constants: Floats,
    rows: Floats,
) -> None:
    """All regressions of all clients on the steps before `end`.

    Series are [client, step], bases [client, target, step], results [client, regression, ...]. The
    plan has the bits that each set needs, and for each regression its set, its columns, their
    number, whether it uses the calendar, and its penalties.
    """
    needs, member, columns, widths, calendar, penalties = plan
    own, means = lags
    width = len(own) + len(means) + bases.shape[1] + 2
    room = np.empty((PATTERNS, width, width)), np.empty((PATTERNS, 2, slots, width))
    totals, clocks = np.empty((len(needs), width, width)), np.empty((len(needs), 2, slots, width))
    for c in range(len(values)):
        add_up(
            values[c], observed[c], live[c], bases[c], end, own, means, slot, free, needs, room,
            totals, clocks,
        )  # fmt: skip
        for r in range(len(member)):
            at = member[r]
            constants[c, r], rows[c, r] = regress(
                totals[at], clocks[at], columns[r, : widths[r]], calendar[r], penalties[r],
                weights[c, r],
            )  # fmt: skip
