"""Calendar features: the time within the period, the weekday, and days off.

Days are counted in the panel's local standard time. A day off (`free`) is a Saturday, a Sunday or a
holiday; holidays come from a list of dates or, by country, from the optional package `holidays`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np

from fuels.arrays import Datetimes, Flags, Floats, Integers
from fuels.errors import FuelsError
from fuels.version import not_installed

MOST_SLOTS = 48  # a longer period is divided into this many slots


def slot_of(phase: Integers, period: int) -> Integers:
    """The slot of positions in a period."""
    return phase * min(period, MOST_SLOTS) // period


@dataclass(frozen=True)
class Calendar:
    """Holidays, and the features of a sample that follow from its time."""

    holidays: frozenset[np.datetime64] = frozenset()  # day resolution
    inverted: bool = False  # swaps working days and days off

    def free(self, times: Datetimes) -> Flags:
        """Whether each time [step] falls on a day off."""
        days = times.astype("datetime64[D]")
        listed = np.array(sorted(self.holidays), dtype="datetime64[D]")
        result: Flags = ((weekday(times) >= 5) | np.isin(days, listed)) != self.inverted
        return result

    def indicator_columns(
        self, names: Sequence[str], times: Datetimes, phase: Integers, period: int
    ) -> Floats:
        """Indicators of the time, [step, column], as linear models and forecasting heads read it.

        `phase` [step] is the position in the period. time: one indicator per slot of the period;
        free: the same, on days off only; weekday: one indicator per weekday.
        """
        slot = np.eye(min(period, MOST_SLOTS))[slot_of(phase, period)]
        known = {
            "time": slot,
            "free": slot * self.free(times)[:, None],
            "weekday": np.eye(7)[weekday(times)],
        }
        return np.concatenate([np.zeros((len(times), 0)), *(known[n] for n in names)], axis=1)

    def encoder_columns(
        self, names: Sequence[str], times: Datetimes, phase: Integers, period: int
    ) -> Floats:
        """The features of the encoder, which are fewer, [step, column].

        time: two harmonics of the period; free: 1 on days off; weekday: one indicator per weekday.
        """
        angle = 2 * np.pi * phase / period
        known = {
            "time": np.stack([np.sin(angle), np.cos(angle), np.sin(2 * angle), np.cos(2 * angle)]),
            "free": self.free(times)[None].astype(np.float64),
            "weekday": np.eye(7)[weekday(times)].T,
        }
        return np.concatenate([np.zeros((0, len(times))), *(known[n] for n in names)]).T


_ENCODER_WIDTHS = {"time": 4, "free": 1, "weekday": 7}
COLUMNS = ("time", "free", "weekday")


def indicator_width(names: Sequence[str], period: int) -> int:
    """Number of columns of `Calendar.indicator_columns`."""
    return sum(7 if name == "weekday" else min(period, MOST_SLOTS) for name in names)


def encoder_clock_width(names: Sequence[str]) -> int:
    """Number of columns of `Calendar.encoder_columns`."""
    return sum(_ENCODER_WIDTHS[name] for name in names)


def weekday(times: Datetimes) -> Integers:
    """0 for Monday; 1 January 1970 was a Thursday."""
    return (times.astype("datetime64[D]").astype(np.int64) + 3) % 7


def make_calendar(holidays: Sequence[str], years: Iterable[int] = ()) -> Calendar:
    """A calendar from the dates and countries in the setting windows.holidays."""
    days: frozenset[np.datetime64] = frozenset()
    for entry in holidays:
        known = listed_holidays([entry]) if entry[:1].isdigit() else country_holidays(entry, years)
        days |= known.holidays
    return Calendar(days)


def listed_holidays(dates: Iterable[str | date]) -> Calendar:
    """A calendar with these holidays, such as ["2013-12-25", "2013-12-26"]."""
    days = set()
    for day in dates:
        try:
            days.add(np.datetime64(date.fromisoformat(str(day)), "D"))
        except ValueError:
            raise FuelsError(
                f"holiday '{day}' is not a date: write year, month and day, such as 2013-12-25"
            ) from None
    return Calendar(frozenset(days))


def country_holidays(country: str, years: Iterable[int]) -> Calendar:
    """A calendar with the public holidays of a country (IT) or region (DE-BY)."""
    try:
        package: Any = importlib.import_module("holidays")
    except ImportError:
        raise FuelsError(
            f"the holidays of {country}: {not_installed('the package holidays', 'calendar')}, or"
            " give the dates yourself"
        ) from None
    code, _, part = country.partition("-")
    try:
        found = package.country_holidays(code, subdiv=part or None, years=sorted(set(years)))
    except (NotImplementedError, KeyError, AttributeError, ValueError):
        # Unknown country or region; which error depends on the package's version.
        raise FuelsError(
            f"the holidays of '{country}' are not known: give a country such as IT, or a region"
            " such as DE-BY"
        ) from None
    return listed_holidays(found)
