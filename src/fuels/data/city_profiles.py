"""The city model behind the synthetic federation: kinds of cells, services, calendar.

Nothing random: the tables are in city_profiles.toml. Day profiles are relative rates by hour for a
working day, a Saturday and a Sunday (holidays count as Sundays); their overall level is divided
out. They were drawn by hand after the real Milan data (see docs/explanation/synthetic-data.md).
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np

from fuels.arrays import Floats

FIRST_DAY: Final = date(2013, 11, 1)  # a Friday and a holiday in Italy
LAST_DAY: Final = date(2014, 3, 29)  # the clocks change on the day after
MAX_DAYS: Final = (LAST_DAY - FIRST_DAY).days + 1


@dataclass(frozen=True)
class Kind:
    """One use of a place in the city, and its activity through the week."""

    name: str
    places: int  # of the 36 places of a district
    level: float  # typical Net activity per hour
    season: float  # how much of the citywide seasonal change it feels
    workday: Sequence[float]
    saturday: Sequence[float]
    sunday: Sequence[float]
    pure: bool = False  # never blended: any share of a busy kind would fill an empty cell


@dataclass(frozen=True)
class Service:
    """One service that observes the same cells."""

    name: str
    code: int  # part of the seed of what only this service sees
    share: float  # activity relative to Net
    hours: Sequence[float]  # use at each hour relative to Net's
    scatter: float  # variance of the hour-to-hour scatter, relative to the squared level
    silence: float  # chance that a very quiet hour leaves no record at all
    quiet: float  # activity per hour at which that chance has fallen to 1/e
    greetings: float  # how much of the crowd of GREETINGS it sees


@dataclass(frozen=True)
class Event:
    """A crowd that comes to one place and the places around it."""

    every_days: int  # on average
    days: int
    hour: int  # when it begins
    course: Sequence[float]  # size in the hours from then on
    spread: float  # squared distance, in places, at which it has fallen to 1/e


def hour_of(day: date, hour: int) -> int:
    """Steps from the start of the panel."""
    return 24 * (day - FIRST_DAY).days + hour


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
KINDS: Final = tuple(Kind(**kind) for kind in _TABLES["kinds"])
SERVICES: Final = {each["name"]: Service(**each) for each in _TABLES["services"]}
MATCH, FAIR = (Event(**_TABLES[name]) for name in ("match", "fair"))
SPECIAL_DAYS: Final = dict(_TABLES["special_days"])  # by month and day
SEASON: Final = tuple((date.fromisoformat(day), v) for day, v in _TABLES["season"].items())
GREETINGS: Final = tuple(
    (hour_of(when.date(), when.hour), size)
    for when, size in ((datetime.fromisoformat(t), s) for t, s in _TABLES["greetings"].items())
)


def day_types(days: int, before: int = 0) -> Floats:
    """Share of working day, Saturday and Sunday in each day, [day, 3], from `before` the first."""
    rows = []
    for offset in range(days):
        today = FIRST_DAY + timedelta(days=offset - before)
        weekday = today.weekday()
        usual = (float(weekday < 5), float(weekday == 5), float(weekday == 6))
        rows.append(SPECIAL_DAYS.get(f"{today:%m-%d}", usual))
    return np.array(rows)


def season(hours: int) -> Floats:
    """The citywide seasonal change at every hour, [time]: 0 is an ordinary autumn day."""
    knots = [float(hour_of(when, 0)) for when, _ in SEASON]
    values = [value for _, value in SEASON]
    return np.asarray(np.interp(np.arange(float(hours)), knots, values), dtype=np.float64)
