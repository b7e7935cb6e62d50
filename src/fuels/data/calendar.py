"""What a clock on the wall tells: the time of the period, and which days are free.

Days are those of the panel's local standard time. A free day is a Saturday, a Sunday or a holiday;
holidays come from a list of dates or, by country, from the optional package `holidays`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.version import not_installed

Floats = NDArray[np.float64]
MOST_SLOTS = 48  # a period is told apart in at most this many times


@dataclass(frozen=True)
class Calendar:
    """Indicators of the time of the period, for all days and once more for free days."""

    holidays: frozenset[np.datetime64] = frozenset()  # of day resolution
    wrong: bool = False  # tells working days for free ones, and the other way round

    def free(self, times: NDArray[np.datetime64]) -> NDArray[np.bool_]:
        """Whether each time [step] falls on a free day."""
        days = times.astype("datetime64[D]")
        listed = np.array(sorted(self.holidays), dtype="datetime64[D]")
        result: NDArray[np.bool_] = ((weekday(times) >= 5) | np.isin(days, listed)) != self.wrong
        return result

    def columns(
        self,
        names: Sequence[str],
        times: NDArray[np.datetime64],
        phase: NDArray[np.int64],
        period: int,
    ) -> Floats:
        """What the clock tells at some times, [step, column].

        `phase` [step] is the position in the period. time: one indicator for each slot of the
        period; free: the same, on free days only; weekday: one indicator for each.
        """
        slots = min(period, MOST_SLOTS)
        slot = np.eye(slots)[phase * slots // period]
        found = []
        for name in names:
            if name == "time":
                found.append(slot)
            elif name == "free":
                found.append(slot * self.free(times)[:, None])
            else:
                found.append(np.eye(7)[weekday(times)])
        return np.concatenate([np.zeros((len(times), 0)), *found], axis=1)

    def signs(
        self,
        names: Sequence[str],
        times: NDArray[np.datetime64],
        phase: NDArray[np.int64],
        period: int,
    ) -> Floats:
        """The same in few numbers, as an encoder reads it, [step, column].

        time: two waves through the period; free: 1 on free days; weekday: one indicator for each.
        """
        angle = 2 * np.pi * phase / period
        known = {
            "time": np.stack([np.sin(angle), np.cos(angle), np.sin(2 * angle), np.cos(2 * angle)]),
            "free": self.free(times)[None].astype(np.float64),
            "weekday": np.eye(7)[weekday(times)].T,
        }
        return np.concatenate([np.zeros((0, len(times))), *(known[n] for n in names)]).T


SIGNS = {"time": 4, "free": 1, "weekday": 7}  # columns of each in `Calendar.signs`
COLUMNS = ("time", "free", "weekday")


def columns_width(names: Sequence[str], period: int) -> int:
    """Number of columns that `Calendar.columns` gives."""
    return sum(7 if name == "weekday" else min(period, MOST_SLOTS) for name in names)


def signs_width(names: Sequence[str]) -> int:
    """Number of columns that `Calendar.signs` gives."""
    return sum(SIGNS[name] for name in names)


def weekday(times: NDArray[np.datetime64]) -> NDArray[np.int64]:
    """0 for Monday; 1 January 1970 was a Thursday."""
    result: NDArray[np.int64] = (times.astype("datetime64[D]").astype(np.int64) + 3) % 7
    return result


def make_calendar(holidays: Sequence[str], years: Iterable[int] = ()) -> Calendar:
    """A calendar from a list of dates and countries, as windows.holidays has them."""
    days: frozenset[np.datetime64] = frozenset()
    for entry in holidays:
        known = listed_holidays([entry]) if entry[:1].isdigit() else country_holidays(entry, years)
        days |= known.holidays
    return Calendar(days)


def listed_holidays(dates: Iterable[str | date]) -> Calendar:
    """A calendar with the user's own holidays, such as ["2013-12-25", "2013-12-26"]."""
    days = set()
    for day in dates:
        try:
            days.add(np.datetime64(date.fromisoformat(str(day)), "D"))
        except ValueError:
            raise FuelsError(
                f"holiday '{day}' is no date: write year, month and day, such as 2013-12-25"
            ) from None
    return Calendar(frozenset(days))


def country_holidays(country: str, years: Iterable[int]) -> Calendar:
    """A calendar with the public holidays of a country (IT) or a part of it (DE-BY)."""
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
        # Unknown country or part; the package's versions say it in different classes.
        raise FuelsError(
            f"the holidays of '{country}' are not known: write a country such as IT, or a part of"
            " one such as DE-BY"
        ) from None
    return listed_holidays(found)
