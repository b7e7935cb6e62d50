"""Drift: when amounts, such as absolute errors, are larger than they were, and stay larger.

Each amount is divided by what is usual for its client at that time of the period: 1 is usual, and
a single wild value counts at most 5. Of these ratios r, step after step, with P steps a period,

    S = max(0, S + (r - 1 - allowance) / P)

sums what exceeds the usual by more than the allowance, in periods (Page's CUSUM). S above the
threshold is an alarm: with an allowance of 0.25 and a threshold of 0.3, amounts that are twice the
usual ones raise it after ten hours of hourly data, half as large again after 29. Each client is
watched, and the mean over all, which varies less: its constants approach stricter ones as the
number of clients grows. `benchmarks/drift.py` measures false alarms and delays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fuels.arrays import Floats
from fuels.data.means import mean, ratio

MOST = 5.0  # times the usual amount: more does not count
LEAST = 0.01  # of a standard deviation: no usual amount is smaller
NEARBY = 1 / 12  # of a period: times whose usual amounts are averaged
SHRINK = 0.5  # towards the client's usual amount at all times
PERIODS = 3  # that show what is usual, at least
HALF = 0.5  # of the clients: fewer have no mean


class Rule(NamedTuple):
    """Constants of the sums of one kind."""

    allowance: float
    threshold: float


@dataclass(frozen=True)
class Kind:
    """What is watched, and the constants for one client and for the mean over very many."""

    name: str
    single: Rule
    many: Rule

    def together(self, clients: int) -> Rule:
        """The constants for the mean over some clients: its noise falls with their root."""
        share = clients**-0.5
        pairs = zip(self.single, self.many, strict=True)
        return Rule(*(many + share * (one - many) for one, many in pairs))


ERRORS = Kind("errors", Rule(0.5, 1.0), Rule(0.25, 0.3))
VALUES = Kind("values", Rule(1.5, 1.5), Rule(1.0, 0.5))


@dataclass(frozen=True)
class Alarm:
    """Amounts that became larger than usual, in steps of what was watched."""

    since: int  # the first step of the excess
    raised: int
    ratio: float  # mean ratio from `since` on
    lasts: bool  # whether the last period since then is above the allowance


@dataclass(frozen=True)
class Watched:
    """What was found about amounts of one kind."""

    kind: Kind
    ratios: Floats  # [step], mean over the clients
    usual_days: Floats  # [period]: the same in the periods that show what is usual
    together: Alarm | None
    clients: tuple[Alarm | None, ...]
    own: Floats  # [client]: mean ratio over the last period


def watch(kind: Kind, usual: Floats, amounts: Floats, phase: int, period: int) -> Watched | None:
    """Compare amounts [client, step] with usual ones, which begin with a period.

    `phase` is that of the first of the amounts. None if too few periods show what is usual.
    """
    whole = usual.shape[1] // period
    if whole < PERIODS:
        return None
    usual = usual[:, : whole * period]
    typical = typical_amounts(usual, period)
    before = ratios(usual, typical, 0)
    now = ratios(amounts, typical, phase)
    days = mean(before.reshape(len(before), whole, period), axis=2)
    level = middle(days, axis=1)[:, None]  # of each client: the median is unmoved by a holiday
    clients = ratio(now, level)
    usual_days = mean(by_step(before).reshape(1, whole, period), axis=2)[0]
    usual_day = middle(usual_days, axis=0)
    together, usual_days = ratio(by_step(now), usual_day), ratio(usual_days, usual_day)
    return Watched(
        kind,
        together,
        usual_days,
        alarm(together, kind.together(len(usual)), period),
        tuple(alarm(row, kind.single, period) for row in clients),
        mean(clients[:, -period:], axis=1),
    )


def typical_amounts(usual: Floats, period: int) -> Floats:
    """The usual amount of each client at each time of the period, [client, phase]."""
    by_phase = mean(usual.reshape(len(usual), -1, period), axis=1)
    reach = round(NEARBY * period)
    near = np.stack([np.roll(by_phase, k, axis=1) for k in range(-reach, reach + 1)])
    at_all = mean(usual, axis=1)[:, None]
    mixed = (1 - SHRINK) * mean(near, axis=0) + SHRINK * at_all
    return np.maximum(np.where(np.isnan(mixed), at_all, mixed), LEAST)


def ratios(amounts: Floats, typical: Floats, phase: int) -> Floats:
    at = (phase + np.arange(amounts.shape[1])) % typical.shape[1]
    return np.minimum(amounts / typical[:, at], MOST)


def by_step(found: Floats) -> Floats:
    """The mean over the clients of each step, NaN where less than half of them are known."""
    some = (~np.isnan(found)).mean(axis=0) >= HALF
    return np.where(some, mean(found, axis=0), np.nan)


def alarm(found: Floats, rule: Rule, period: int) -> Alarm | None:
    """The first alarm of a series of ratios; unknown ones change nothing."""
    total, since = 0.0, 0
    for step, excess in enumerate(found - 1.0 - rule.allowance):
        if np.isnan(excess):
            continue
        if total == 0.0:
            since = step
        total = max(0.0, total + float(excess) / period)
        if total > rule.threshold:
            last = float(mean(found[max(since, len(found) - period) :], axis=0))
            ratio_since = float(mean(found[since:], axis=0))
            return Alarm(since, step, ratio_since, last > 1.0 + rule.allowance)
    return None


def middle(values: Floats, axis: int) -> Floats:
    """The median of the known values, NaN without any."""
    moved = np.moveaxis(values, axis, -1)
    flat = moved.reshape(-1, moved.shape[-1])
    found = [np.median(row[~np.isnan(row)]) if not np.isnan(row).all() else np.nan for row in flat]
    return np.array(found).reshape(moved.shape[:-1])
