"""What a clock on the wall tells: the time of the period, and which days are free.

Days are those of the panel's local standard time. A free day is a Saturday, a Sunday or a holiday;
holidays come from a list of dates or, by country, from the optional package `holidays`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.experts.history import Floats, History

MOST_SLOTS = 48  # a period is told apart in at most this many times


@dataclass(frozen=True)
class Calendar:
    """Indicators of the time of the period, for all days and once more for free days."""

    holidays: frozenset[np.datetime64] = frozenset()  # of day resolution

    def free(self, times: NDArray[np.datetime64]) -> NDArray[np.bool_]:
        """Whether each time [step] falls on a free day."""
        days = times.astype("datetime64[D]")
        weekday = (days.astype(np.int64) + 3) % 7  # 1 January 1970 was a Thursday; Monday is 0
        listed = np.array(sorted(self.holidays), dtype="datetime64[D]")
        result: NDArray[np.bool_] = (weekday >= 5) | np.isin(days, listed)
        return result

    def features(self, history: History, first: int, last: int) -> Floats:
        """[step, 2 x slot]: the slot of the period, and the slot if the day is free."""
        slots = min(history.period, MOST_SLOTS)
        slot = np.arange(first, last) % history.period * slots // history.period
        indicator = np.eye(slots)[slot]
        free = self.free(history.times(first, last)).astype(np.float64)
        return np.concatenate([indicator, indicator * free[:, None]], axis=1)


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
            f"the holidays of {country} need the package 'holidays': install fuels[calendar], or"
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
