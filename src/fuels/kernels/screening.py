"""The compiled loop that checks values against their past; data/screening.py explains it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats, Integers
from fuels.kernels.jit import compiled

PLAUSIBLE, OUTSIDE, STUCK, ACCEPTED = 0, 1, 2, 3  # what a value can be; a missing one is plausible

# What is known of a client besides its profile. All are 0 before its first value.
COUNT = 0  # values seen
UNIT = 1  # mean absolute error where the series moves: the unit of the transformed scale
LAST = 2  # newest plausible value
NOW, LATELY = 3, 4  # deviation from the profile: in the last two hours, in the last half day
ABOVE, BELOW = 5, 6  # what 1 error in 200 exceeds, upwards and downwards
HELD = 7  # implausible values in a row, constant runs apart
NEWEST, RUN = 8, 9  # newest value, and how often in a row
LONGEST, PAIRS, SAME = 10, 12, 14  # of values other than 0 and, one further, of 0: longest run,
LARGEST = 16  # and pairs of neighbouring values, all and equal ones; largest plausible size
ALIKE, AWAY = 17, 18  # of the implausible values, those equally far from the profile; how far
NUMBERS = 19
MORE = 1.0  # than `longer` times the longest run is still plausible
LIKE = 5.0  # pairs that an assumption counts as


class Constants(NamedTuple):
    """The constants, chosen by experiment; compiled code takes them as a plain tuple."""

    least: float = 1.0  # least tolerance, on the transformed scale: a factor of e for large values
    times: float = 2.5  # tolerance, in units of the error that 1 in 200 exceeds
    start: float = 0.4  # that error before any is known
    growth: float = 0.1  # of that error after a larger one
    share: float = 0.005  # of the errors that are larger
    young: float = 3.0  # factor on the least tolerance at the beginning; 1 after `weeks` periods
    weeks: float = 7.0  # periods from which on a constant run can be implausible
    first: float = 6.0  # values from which on others can be implausible
    slow: float = 0.01  # rate of the unit
    half: float = 0.5  # share of the profile's error that counts for the unit
    daily: float = 0.15  # rate of the profile
    now: float = 0.7  # rates of the deviations
    lately: float = 0.08
    spike: float = 5.0  # largest error that the unit learns from, in units
    longer: float = 1.5  # a run of this factor of the longest one, plus MORE, is plausible
    chance: float = 1e-5  # as is one of at least this probability
    most: float = 0.8  # largest error that 1 in 200 exceeds, as learned from an accepted level
    shift: float = 0.5  # periods after which values that are equally far off are a new level
    fewest: float = 6.0  # values that this takes at least
    wild: float = 1.0  # periods after which others are accepted
    stuck: float = 1.5  # periods after which a constant run is, unless no such value was plausible
    back: float = 3.0  # values after which a return to the profile is accepted


@compiled()
def _spread(value: float, unit: float) -> float:
    """The scale on which errors are alike at all levels: linear up to the unit, then log."""
    return float(np.arcsinh(value / unit))


@compiled()
def _range(
    center: float, known: bool, s: Floats, unit: float, least: float, times: float
) -> tuple[float, float, float, float]:
    """What is expected, lowest and highest, and the tolerances downwards and upwards."""
    last = _spread(s[LAST], unit)
    bottom = top = last
    if known:
        one, other = center + s[NOW], center + s[LATELY]
        bottom, top = min(last, one, other), max(last, one, other)
    return bottom, top, max(times * s[BELOW], least), max(times * s[ABOVE], least)


@compiled()
def _count_run(value: float, s: Floats, longest: float, young: bool) -> None:
    """Extend the run of equal values, or begin another one."""
    ended = int(s[NEWEST] == 0.0)
    limit = longest * s[LONGEST + ended] + MORE
    if s[COUNT] > 0:
        if s[HELD] == 0 and s[RUN] <= limit:
            s[PAIRS + ended] += 1
            s[SAME + ended] += value == s[NEWEST]
        if value != s[NEWEST]:  # a suspicious run counts only in part, so that many are learned
            s[LONGEST + ended] = max(s[LONGEST + ended], min(s[RUN], limit))
    s[RUN] = s[RUN] + 1 if s[COUNT] > 0 and value == s[NEWEST] else 1.0
    s[NEWEST] = value
    kind = int(value == 0.0)
    if young:
        s[LONGEST + kind] = max(s[LONGEST + kind], s[RUN])


@compiled()
def _surprise_of_run(value: float, s: Floats, longer: float, chance: float) -> float:
    """Above 1 for a constant run that the past makes implausible."""
    kind = int(value == 0.0)
    allowed = longer * s[LONGEST + kind] + MORE
    equal = (s[SAME] + 0.5) / (s[PAIRS] + 1.0)
    if kind == 1:  # zeros are like other values until many are known
        equal = (s[SAME + kind] + 0.5 + LIKE * equal) / (s[PAIRS + kind] + 1.0 + LIKE)
    return float(min(s[RUN] / allowed, s[RUN] * np.log(equal) / np.log(chance)))


@compiled()
def _fade(s: Floats, period: int) -> None:
    """While nothing plausible is known, the deviations halve in half a period."""
    s[NOW] *= 0.5 ** (2.0 / period)
    s[LATELY] *= 0.5 ** (2.0 / period)


@compiled()
def _learn_tail(s: Floats, place: int, larger: bool, growth: float, share: float) -> None:
    s[place] *= np.exp(growth * ((1.0 if larger else 0.0) - share))


@compiled()
def _screen_one(
    value: float, phase: int, profile: Floats, s: Floats, constants: tuple[float, ...]
) -> tuple[int, float, float, float]:
    """Check one value and learn it: its code, score, and the range of plausible values."""
    (
        least, times, start, growth, share, young, weeks, first, slow, half, daily, now, lately,
        spike, longer, chance, most, shift, fewest, wild, stuck, back,
    ) = constants  # fmt: skip
    period = len(profile)
    if s[COUNT] == 0:
        s[ABOVE] = s[BELOW] = start
        s[LAST] = value
    unit, usual = s[UNIT], profile[phase]
    known = not np.isnan(usual)
    ready = s[COUNT] >= first and unit > 0
    low, high, score, excess = -np.inf, np.inf, np.nan, 0.0
    spread = center = 0.0
    if ready:
        least *= 1.0 + (young - 1.0) * max(0.0, 1.0 - s[COUNT] / (weeks * period))
        spread, center = _spread(value, unit), _spread(usual if known else s[LAST], unit)
        bottom, top, down, up = _range(center, known, s, unit, least, times)
        low, high = unit * np.sinh(bottom - down), unit * np.sinh(top + up)
        excess = max(spread - top, 0.0) + min(spread - bottom, 0.0)
        score = excess / up if excess > 0 else -excess / down
    outside = value < low or value > high
    mature = s[COUNT] >= weeks * period
    _count_run(value, s, longer, not mature)
    run = _surprise_of_run(value, s, longer, chance) if mature else 0.0
    constant = run > 1.0
    if ready:
        score = max(score, run)
    s[COUNT] += 1
    code, near = PLAUSIBLE, known and abs(spread - center) <= least
    if constant:  # accepted or not, it is never what is expected
        s[HELD] = 0
        _fade(s, period)
        code = OUTSIDE if outside else STUCK
        if s[RUN] >= max(stuck * period, fewest) and abs(value) <= s[LARGEST]:
            code = ACCEPTED
        return code, score, low, high
    if outside:
        s[HELD] += 1
        alike = s[HELD] > 1 and abs(spread - center - s[AWAY]) <= least
        s[ALIKE] = s[ALIKE] + 1 if alike else 1.0
        s[AWAY] = spread - center
        persist = s[ALIKE] >= shift * period or s[HELD] >= wild * period
        persist = persist and s[HELD] >= fewest
        code = ACCEPTED if persist or (near and s[HELD] >= back) else OUTSIDE
    else:
        s[HELD] = 0
    if ready and s[HELD] <= 1:  # of implausible values in a row the first one counts
        _learn_tail(s, ABOVE, excess > s[ABOVE], growth, share)
        _learn_tail(s, BELOW, -excess > s[BELOW], growth, share)
    if code == ACCEPTED:  # then it was no fault: up to a limit, errors as large are plausible
        place = ABOVE if excess > 0 else BELOW
        s[place] = max(s[place], min(abs(excess) / times, most))
    if code == ACCEPTED and known and not near:
        expected = unit * np.sinh(center + s[LATELY])
        if value * expected > unit * unit:  # a new level or unit: everything is so many times it
            profile *= value / expected
            s[UNIT] *= value / expected
            s[LAST], s[LARGEST] = value, max(s[LARGEST], abs(value))
            return code, score, low, high
    if code in (PLAUSIBLE, ACCEPTED):
        s[LARGEST] = max(s[LARGEST], abs(value))
        if s[COUNT] > 1 and value != s[LAST]:
            error = abs(value - (unit * np.sinh(center + s[NOW]) if ready else s[LAST]))
            if known:
                error = max(error, half * abs(value - usual))
            if ready:
                error = min(error, spike * unit)
            s[UNIT] += max(slow, 1.0 / s[COUNT]) * (error - unit) if unit > 0 else error
        s[LAST] = value
        if ready and known:
            apart, jump = spread - center, code == ACCEPTED
            s[NOW] += (1.0 if jump else now) * (apart - s[NOW])
            s[LATELY] += (1.0 if jump else lately) * (apart - s[LATELY])
    else:
        _fade(s, period)
    if not known:
        profile[phase] = value
    elif ready:
        nearest = min(max(value, low), high)
        rate = max(daily, 1.0 / (s[COUNT] // period + 1.0))
        profile[phase] = unit * np.sinh(center + rate * (_spread(nearest, unit) - center))
    else:
        profile[phase] += daily * (value - usual)
    return code, score, low, high


@compiled(
    ahead="(f8[:, ::1], i8[::1], f8[:, ::1], f8[:, ::1], UniTuple(f8, 22), i1[:, ::1],"
    " f8[:, ::1], f8[:, ::1], f8[:, ::1])"
)
def screen_steps(
    values: Floats,
    phase: Integers,
    profile: Floats,
    state: Floats,
    constants: tuple[float, ...],
    codes: NDArray[np.int8],
    scores: Floats,
    low: Floats,
    high: Floats,
) -> None:
    """Check values [client, step] one after the other; profile and state learn them in place.

    Writes the code of every value, its score (above 1 if it is implausible, NaN if it is missing or
    too little is known) and the range of plausible values.
    """
    for client in range(len(values)):
        for step in range(values.shape[1]):
            codes[client, step], scores[client, step] = PLAUSIBLE, np.nan
            low[client, step], high[client, step] = -np.inf, np.inf
            value = values[client, step]
            if np.isnan(value):
                _fade(state[client], profile.shape[1])
            else:
                code, score, least, most = _screen_one(
                    value, phase[step], profile[client], state[client], constants
                )
                codes[client, step], scores[client, step] = code, score
                low[client, step], high[client, step] = least, most
