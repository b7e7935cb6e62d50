"""The city model behind the synthetic federation: kinds of cells, services, calendar.

Plain tables, nothing random. Day profiles are relative rates by hour for a working day, a Saturday
and a Sunday (holidays count as Sundays); their overall level is divided out. They were drawn by
hand after the real Milan data (see docs/explanation/synthetic-data.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

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
    workday: tuple[float, ...]
    saturday: tuple[float, ...]
    sunday: tuple[float, ...]
    pure: bool = False  # never blended: any share of a busy kind would fill an empty cell


@dataclass(frozen=True)
class Service:
    """One service that observes the same cells."""

    name: str
    code: int  # part of the seed of what only this service sees
    share: float  # activity relative to Net
    hours: tuple[float, ...]  # use at each hour relative to Net's
    scatter: float  # variance of the hour-to-hour scatter, relative to the squared level
    silence: float  # chance that a very quiet hour leaves no record at all
    quiet: float  # activity per hour at which that chance has fallen to 1/e
    greetings: float  # how much of the crowd of GREETINGS it sees


@dataclass(frozen=True)
class Event:
    """A crowd that comes to one place and the places around it."""

    chance: float  # on a day
    days: int
    hour: int  # when it begins
    course: tuple[float, ...]  # size in the hours from then on
    spread: float  # squared distance, in places, at which it has fallen to 1/e


KINDS: Final = (
    Kind(
        "residential", 14, 2500.0, 0.85,
        (95, 80, 70, 65, 60, 55, 65, 85, 110, 120, 120, 125,
         125, 125, 125, 120, 120, 120, 125, 125, 125, 125, 120, 110),
        (95, 80, 70, 60, 55, 50, 50, 60, 75, 90, 105, 110,
         110, 105, 105, 105, 105, 105, 105, 110, 115, 115, 115, 110),
        (100, 85, 70, 60, 55, 50, 50, 50, 60, 75, 90, 95,
         100, 100, 100, 105, 105, 110, 110, 115, 120, 120, 115, 105),
    ),
    Kind(
        "business", 8, 2900.0, 1.2,
        (50, 40, 35, 30, 30, 30, 35, 55, 120, 185, 220, 230,
         230, 235, 230, 210, 200, 180, 150, 115, 90, 75, 70, 60),
        (50, 40, 35, 35, 30, 30, 30, 35, 45, 65, 80, 85,
         90, 80, 75, 75, 75, 75, 70, 65, 60, 60, 60, 55),
        (50, 45, 40, 30, 30, 25, 25, 25, 30, 40, 50, 55,
         60, 60, 60, 65, 65, 65, 65, 60, 55, 55, 55, 50),
    ),
    Kind(
        "commuter", 4, 2400.0, 1.1,
        (60, 45, 35, 35, 30, 35, 60, 120, 190, 175, 140, 130,
         130, 140, 140, 135, 150, 185, 200, 160, 115, 90, 85, 75),
        (60, 50, 40, 35, 35, 35, 35, 50, 65, 85, 100, 105,
         110, 105, 105, 105, 110, 115, 110, 105, 90, 85, 85, 80),
        (65, 55, 45, 35, 35, 30, 30, 35, 45, 60, 70, 80,
         90, 90, 90, 100, 105, 115, 115, 110, 100, 90, 80, 70),
    ),
    Kind(
        "tourist", 3, 3500.0, 0.75,
        (45, 35, 30, 30, 25, 25, 30, 45, 80, 120, 140, 160,
         175, 200, 195, 185, 180, 175, 160, 130, 100, 80, 70, 55),
        (50, 40, 35, 30, 30, 25, 25, 30, 45, 65, 100, 130,
         155, 160, 170, 185, 200, 200, 175, 140, 105, 85, 75, 60),
        (50, 45, 35, 30, 25, 25, 25, 25, 35, 50, 75, 105,
         125, 130, 135, 150, 170, 170, 145, 110, 75, 60, 50, 40),
    ),
    Kind(
        "nightlife", 6, 2100.0, 0.9,
        (100, 80, 65, 55, 50, 45, 50, 70, 90, 100, 100, 105,
         110, 120, 115, 110, 110, 115, 125, 130, 135, 140, 145, 130),
        (125, 100, 70, 55, 50, 45, 45, 50, 60, 80, 95, 105,
         110, 110, 115, 115, 115, 115, 120, 125, 145, 160, 175, 170),
        (150, 120, 85, 60, 50, 45, 40, 45, 50, 65, 80, 95,
         100, 105, 110, 110, 110, 110, 110, 115, 125, 130, 125, 105),
    ),
    Kind(
        "near-empty", 1, 0.9, 0.6,
        (1, 1, 1, 1, 1, 2, 8, 30, 120, 200, 230, 220,
         160, 170, 210, 200, 170, 110, 50, 20, 8, 4, 2, 1),
        (1, 1, 1, 1, 1, 1, 2, 6, 20, 50, 70, 70,
         60, 50, 40, 30, 20, 12, 6, 4, 3, 2, 2, 1),
        (1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 12, 14,
         14, 12, 12, 12, 10, 8, 6, 4, 3, 2, 2, 1),
        pure=True,
    ),
)  # fmt: skip

SERVICES: Final = {
    service.name: service
    for service in (
        Service(
            "sms", 1, 0.08,
            (80, 42, 32, 30, 26, 28, 34, 65, 130, 140, 150, 145,
             125, 120, 110, 110, 118, 126, 128, 122, 112, 112, 106, 88),
            0.010, 0.35, 12.0, 1.0,
        ),
        Service(
            "call", 2, 0.06,
            (28, 18, 12, 8, 9, 13, 22, 45, 105, 158, 185, 195,
             176, 142, 126, 138, 174, 188, 178, 156, 114, 84, 56, 36),
            0.008, 0.0, 1.0, 0.25,
        ),
        Service("net", 3, 1.0, (100,) * 24, 0.001, 0.0, 1.0, 0.05),
    )
}  # fmt: skip

# Share of (working day, Saturday, Sunday) in days that are not what the week says.
SPECIAL_DAYS: Final = {
    (11, 1): (0.0, 0.1, 0.9),  # All Saints
    (12, 7): (0.0, 0.6, 0.4),  # Sant'Ambrogio, Milan's own day
    (12, 8): (0.0, 0.0, 1.0),  # Immaculate Conception
    (12, 24): (0.4, 0.3, 0.3),
    (12, 25): (0.0, 0.0, 1.0),
    (12, 26): (0.0, 0.0, 1.0),
    (12, 27): (0.5, 0.4, 0.1),
    (12, 30): (0.5, 0.4, 0.1),
    (12, 31): (0.4, 0.3, 0.3),
    (1, 1): (0.0, 0.0, 1.0),
    (1, 6): (0.0, 0.0, 1.0),  # Epiphany
}

# Citywide seasonal change, natural logarithm of the level: (date, value), straight lines between.
SEASON: Final = (
    (date(2013, 11, 1), -0.22),
    (date(2013, 11, 4), 0.1),
    (date(2013, 11, 9), 0.05),
    (date(2013, 11, 24), 0.02),
    (date(2013, 12, 3), -0.05),
    (date(2013, 12, 14), -0.05),
    (date(2013, 12, 20), -0.12),
    (date(2013, 12, 22), -0.31),
    (date(2013, 12, 25), -0.73),
    (date(2013, 12, 27), -0.7),
    (date(2014, 1, 1), -0.83),
    (date(2014, 1, 7), -0.25),
    (date(2014, 1, 13), -0.05),
    (date(2014, 2, 1), 0.0),
    (LAST_DAY, 0.03),
)

# A match fills the evening and empties fast; a fair fills three working days.
MATCH: Final = Event(1 / 12, 1, 18, (0.15, 0.5, 1.0, 0.9, 0.75, 0.15), 0.8)
FAIR: Final = Event(1 / 45, 3, 9, (0.2, 0.6, 0.9, 1.0, 1.0, 0.9, 0.9, 0.8, 0.6, 0.3), 1.5)


def hour_of(day: date, hour: int) -> int:
    """Steps from the start of the panel."""
    return 24 * (day - FIRST_DAY).days + hour


# Hours in which everybody sends greetings: (step, size in mean hours of an eager service).
GREETINGS: Final = (
    (hour_of(date(2013, 12, 24), 23), 0.5),
    (hour_of(date(2013, 12, 25), 9), 0.7),
    (hour_of(date(2013, 12, 25), 10), 1.0),
    (hour_of(date(2013, 12, 25), 11), 1.0),
    (hour_of(date(2013, 12, 25), 12), 0.7),
    (hour_of(date(2013, 12, 31), 22), 0.5),
    (hour_of(date(2013, 12, 31), 23), 1.0),
    (hour_of(date(2014, 1, 1), 0), 2.0),
    (hour_of(date(2014, 1, 1), 1), 0.7),
)


def day_types(days: int, before: int = 0) -> Floats:
    """Share of working day, Saturday and Sunday in each day, [day, 3], from `before` the first."""
    rows = []
    for offset in range(days):
        today = FIRST_DAY + timedelta(days=offset - before)
        weekday = today.weekday()
        usual = (float(weekday < 5), float(weekday == 5), float(weekday == 6))
        rows.append(SPECIAL_DAYS.get((today.month, today.day), usual))
    return np.array(rows)


def season(hours: int) -> Floats:
    """The citywide seasonal change at every hour, [time]: 0 is an ordinary autumn day."""
    knots = [float(hour_of(when, 0)) for when, _ in SEASON]
    values = [value for _, value in SEASON]
    return np.asarray(np.interp(np.arange(float(hours)), knots, values), dtype=np.float64)
