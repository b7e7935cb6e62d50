"""The built-in federation: a generator of synthetic mobile traffic, so that `fuels` runs anywhere.

Nothing here is real data. A city consists of districts of 6 x 6 places. Each district has every
kind of cell (city_profiles.KINDS) in neighbouring places, and its own events and small
fluctuations; each cell has its own mix of kinds, time lag, level, capacity and noise. The three
services SMS, Call and Net observe the same cells.

A whole district is generated from (seed, district), and every random stream runs forward in time.
So fewer clients or days give exactly the first columns or rows of the larger panel, and the same
seed always gives the same bytes. Values are whole counts, which hides nearly all differences in the
last bit between processors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuels.arrays import Floats, Integers
from fuels.data.city_profiles import (
    FAIR,
    GREETINGS,
    KINDS,
    MATCH,
    MAX_DAYS,
    SERVICES,
    Service,
    day_types,
    season,
)
from fuels.data.panel import Panel
from fuels.errors import FuelsError

SIDE = 6  # places along one side of a district
PLACES = SIDE * SIDE
MAX_CLIENTS = 9999  # so that ids of four digits sort as numbers do
START = np.datetime64("2013-10-31T23:00:00", "s")  # 1 November 2013 00:00 in Rome
CENTRE = np.array([9.19, 45.464])  # longitude, latitude
SPACING = np.array([0.0030, 0.0021])  # degrees between places, about 235 m

# Names of the random streams: see _stream.
CITY, CELLS, LOCAL, DRIFT, OWN, EVENTS, SCATTER, COUNTS, SILENCE = range(9)


def synthesise(activity: str = "net", clients: int = 100, days: int = 62, seed: int = 0) -> Panel:
    """A synthetic federation: hourly activity of `clients` cells over `days` days.

    The three activities (sms, call, net) observe the same cells. The same arguments give the same
    bytes; fewer clients or days give the beginning of the larger panel.
    """
    service = _check(activity, clients, days, seed)
    city = _city_movement(seed, 24 * days)
    values, places = [], []
    for district, corner in enumerate(_spiral(-(-clients // PLACES))):
        cells = _draw_cells(seed, district)
        values.append(_district(seed, district, cells, service, city))
        places.append(_path()[cells.place] + SIDE * np.array(corner))
    return Panel(
        values=np.ascontiguousarray(np.concatenate(values, axis=1)[:, :clients]),
        ids=tuple(f"cell-{number:04d}" for number in range(1, clients + 1)),
        start=START,
        step=np.timedelta64(3600, "s"),
        timezone="Europe/Rome",
        coordinates=np.round(CENTRE + SPACING * np.concatenate(places)[:clients], 6),
        name=f"synthetic-{service.name}",
        unit="activity",
        synthetic=True,
        notes=(f"synthetic data from seed {seed}: results say nothing about a real network",),
    )


def kinds_of(clients: int = 100, seed: int = 0) -> tuple[str, ...]:
    """The main kind of each cell that `synthesise` generates from the same seed."""
    _check("net", clients, 1, seed)
    drawn = [_draw_cells(seed, district).kind for district in range(-(-clients // PLACES))]
    return tuple(KINDS[kind].name for kind in np.concatenate(drawn)[:clients])


def _check(activity: str, clients: int, days: int, seed: int) -> Service:
    if activity not in SERVICES:
        raise FuelsError(f"synthetic data: no activity {activity!r}; choose sms, call or net")
    limits = (
        ("clients", clients, 1, MAX_CLIENTS),
        ("days", days, 1, MAX_DAYS),
        ("seed", seed, 0, 2**32 - 1),
    )
    for name, value, low, high in limits:
        if not isinstance(value, int | np.integer) or not low <= value <= high:
            raise FuelsError(
                f"synthetic data: {name} must be a whole number from {low} to {high}, not {value}"
            )
    return SERVICES[activity]


def _stream(seed: int, name: int, district: int = 0, service: int = 0) -> np.random.Generator:
    """One random stream; always four numbers, because NumPy treats [1] and [1, 0] alike."""
    return np.random.default_rng([seed, name, district, service])


# -- where the cells are and what they are -----------------------------------------------------


@dataclass(frozen=True)
class _Cells:
    """The constants of the cells of one district; arrays over cells."""

    place: Integers  # position along the district's path
    kind: Integers  # the main kind, an index of KINDS
    blend: Floats  # [cell, kind], rows sum to 1
    contrast: Floats  # exponent of the usual week: above 1, peaks and lulls are stronger
    lag: Floats  # hours by which the cell's day runs late
    level: Floats  # Net activity of a mean hour
    season: Floats  # share of the citywide seasonal change
    capacity: Floats  # in levels
    noise: Floats  # size of the cell's own movement
    shift_hour: Integers  # when the network around the cell is rearranged
    shift: Floats  # natural logarithm of its effect, 0 for most cells


def _draw_cells(seed: int, district: int) -> _Cells:
    rng = _stream(seed, CELLS, district)
    order = rng.permutation(len(KINDS))
    along_path = np.repeat(order, [KINDS[kind].places for kind in order])
    place = rng.permutation(PLACES)  # ids are spread: a few cells cover all kinds
    kind = along_path[place]
    blend = rng.standard_gamma(0.15, (PLACES, len(KINDS)))
    blend[np.arange(PLACES), kind] += 1.6
    pure = np.array([k.pure for k in KINDS])
    blend[:, pure] = 0.0
    blend[pure[kind]] = pure  # a cell of a pure kind has no other kind
    shifted = rng.random(PLACES) < 0.25
    return _Cells(
        place=place,
        kind=kind,
        blend=blend / blend.sum(axis=1, keepdims=True),
        contrast=np.exp(0.15 * rng.standard_normal(PLACES)),
        lag=np.clip(0.4 * rng.standard_normal(PLACES), -1.5, 1.5),
        level=np.array([k.level for k in KINDS])[kind] * np.exp(0.65 * rng.standard_normal(PLACES)),
        season=np.array([k.season for k in KINDS])[kind] + 0.22 * rng.standard_normal(PLACES),
        capacity=3.0 / np.sqrt(np.sqrt(rng.uniform(0.01, 1.0, PLACES))),
        noise=0.045 * np.exp(0.4 * rng.standard_normal(PLACES)),
        shift_hour=rng.integers(24 * 3, 24 * 35, PLACES),
        shift=np.where(shifted, -0.1 - 0.7 * rng.standard_exponential(PLACES), 0.0),
    )


def _path() -> Integers:
    """Column and row of each place along a path that snakes through a district, [place, 2]."""
    row, step = np.divmod(np.arange(PLACES), SIDE)
    return np.stack([np.where(row % 2 == 0, step, SIDE - 1 - step), row], axis=1)


def _spiral(count: int) -> list[tuple[int, int]]:
    """The first `count` squares of a spiral around (0, 0): where the districts are."""
    squares: list[tuple[int, int]] = []
    (x, y), (dx, dy), leg = (0, 0), (1, 0), 1
    while len(squares) < count:
        for _ in range(leg):
            squares.append((x, y))
            x, y = x + dx, y + dy
        dx, dy = -dy, dx
        leg += dy == 0
    return squares[:count]


# -- what happens in time ----------------------------------------------------------------------


def _district(seed: int, district: int, cells: _Cells, service: Service, city: Floats) -> Floats:
    """Counts of one district, [time, cell]."""
    hours = city.shape[0]

    def shared(name: int) -> np.random.Generator:  # what all services see
        return _stream(seed, name, district)

    def special(name: int) -> np.random.Generator:  # what only this service sees
        return _stream(seed, name, district, service.code)

    shape = _usual_week(cells, service, hours)
    moved = city[:, None] + season(hours)[:, None] * cells.season
    moved += _fading(0.02 * shared(LOCAL).standard_normal((hours, 1)), 0.85)
    moved += _fading(0.004 * shared(DRIFT).standard_normal((hours, PLACES)), 0.99)
    moved += _own_movement(special(OWN), cells, shape)
    moved += np.where(np.arange(hours)[:, None] >= cells.shift_hour, cells.shift, 0.0)
    demand = shape * np.exp(moved) + _crowds(shared(EVENTS), cells, hours)
    for hour, size in GREETINGS:
        demand[hour : hour + 1] += size * service.greetings  # a slice: the panel may end before
    fullness = (demand / cells.capacity) ** 2
    served = demand / np.sqrt(np.sqrt(1.0 + fullness * fullness))
    rate = served * cells.level * service.share

    scatter = special(SCATTER).standard_gamma(1.0 / service.scatter, rate.shape)
    counts = special(COUNTS).poisson(rate * scatter * service.scatter)
    silence = service.silence * np.exp(-rate / service.quiet)
    heard = special(SILENCE).random(rate.shape) >= silence
    return np.where(heard, counts, 0).astype(np.float64)


def _usual_week(cells: _Cells, service: Service, hours: int) -> Floats:
    """The usual activity of each cell and hour, holidays included, 1 on average, [time, cell]."""
    tables = np.array([[k.workday, k.saturday, k.sunday] for k in KINDS]) * np.array(service.hours)
    means = (tables.mean(axis=2) * np.array([5, 1, 1])).sum(axis=1) / 7
    blended = np.einsum("ck,kdh->dhc", cells.blend, tables / means[:, None, None])
    days = hours // 24 + 2  # early and late cells reach beyond either end
    usual = np.einsum("td,dhc->thc", day_types(days, before=1), blended).reshape(-1, PLACES)
    whole = np.floor(cells.lag).astype(np.int64)
    part = cells.lag - whole
    now = np.arange(24, 24 + hours)[:, None] - whole
    column = np.arange(PLACES)
    week = (1 - part) * usual[now, column] + part * usual[now - 1, column]
    return np.asarray(week**cells.contrast)


def _city_movement(seed: int, hours: int) -> Floats:
    """Small fluctuations and rare shocks (a storm, a strike) shared by the whole city, [time]."""
    rng = _stream(seed, CITY)
    normal, chance, size = rng.standard_normal((3, 24 * MAX_DAYS))[:, :hours]
    shock = np.where(chance > 2.6, -0.08 * np.abs(size), 0.0)  # about one in nine days
    return _fading((0.008 * normal + shock)[:, None], 0.85)[:, 0]


def _fading(push: Floats, keep: float) -> Floats:
    """An autoregression per column: `push` at every hour, decaying by `keep`, [time, column]."""
    out = push.copy()
    for t in range(1, len(out)):
        out[t] += keep * out[t - 1]
    return out


def _own_movement(rng: np.random.Generator, cells: _Cells, shape: Floats) -> Floats:
    """A cell's own heavy-tailed fluctuation, [time, cell], which lasts longer in busy hours.

    Surges are larger than lulls but decay faster the larger they are: crowds disperse.
    """
    tails = np.clip(rng.standard_t(3.0, shape.shape), -12.0, 12.0) / np.sqrt(3.0)
    out: Floats = cells.noise * np.where(tails > 0.0, 1.2, 0.8) * tails
    memory = 0.55 + 0.35 * shape / (1.0 + shape)
    for t in range(1, len(out)):
        excess = np.maximum(out[t - 1], 0.0)
        out[t] += memory[t] * (out[t - 1] - excess * excess)
    return out


def _crowds(rng: np.random.Generator, cells: _Cells, hours: int) -> Floats:
    """Matches at one place of the district and fairs at another, in levels, [time, cell]."""
    path = _path()
    stadium, ground = rng.integers(0, PLACES, 2)
    chance = rng.random((MAX_DAYS, 2))
    size = np.minimum(0.9 / np.sqrt(rng.random((MAX_DAYS, 2))), 8.0)
    crowds = np.zeros((24 * (MAX_DAYS + 3), PLACES))
    for event, centre, column in ((MATCH, stadium, 0), (FAIR, ground, 1)):
        distance2 = ((path[cells.place] - path[centre]) ** 2).sum(axis=1)
        near = np.exp(-distance2 / event.spread)
        for day in np.flatnonzero(chance[:, column] < 1 / event.every_days):
            for more in range(event.days):
                start = 24 * (day + more) + event.hour
                course = np.array(event.course)[:, None]
                crowds[start : start + len(course)] += size[day, column] * course * near
    return crowds[:hours]
