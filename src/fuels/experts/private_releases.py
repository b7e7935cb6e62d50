"""The releases of a run with a formal guarantee: what each covers, and what a client adds to it.

The same on one machine (private.py) and in a federation (private_run_sums.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fuels.arrays import Floats, Integers
from fuels.config import Privacy, Sharing
from fuels.errors import FuelsError
from fuels.experts.history import History
from fuels.experts.linear import Arrays, live_lags, period_lags, season_lag, week_lags
from fuels.experts.shared import PooledRidge, declared, slots
from fuels.privacy.accountant import multipliers
from fuels.privacy.ledger import Entry, Ledger, Release
from fuels.privacy.sensitivity import Protected, Unit, relation_of, unit_of
from fuels.sharing import private_statistics as private
from fuels.sharing.declared_scale import declared_scales
from fuels.sharing.private_sums import PrivateSums
from fuels.sharing.protection import (
    DAY,
    MEAN,
    OWN,
    SCALE,
    STATISTICS,
    releases_per_unit,
)
from fuels.sharing.statistics import union_of_lags

PLANS = (week_lags, period_lags)  # lags of the pooled ridges
LONG = 2**40  # steps, more than any data have
LEAST_PERIODS = 7  # of training that a client needs to contribute


@dataclass(frozen=True)
class Ready:
    """What a run has released before its first live mean, and what follows from it."""

    cell: Integers  # of every step
    scale: private.Scale
    day: Floats  # of all clients, [cell]
    group: Integers  # of each contributing client
    shapes: Floats  # the mean day of each group, [group, slot]

    @property
    def sizes(self) -> Integers:
        return np.bincount(self.group)


def sums_of(
    settings: Privacy,
    sharing: Sharing,
    horizon: int,
    step_seconds: int,
    ledger: Ledger,
    run: str,
    sites: tuple[int, int] = (1, 0),
) -> PrivateSums:
    """The noise of each release of a run, and the ledger that they are kept in."""
    names = releases_per_unit(settings, sharing, horizon)
    noise = multipliers(settings.epsilon, settings.delta, names)
    protected = Protected(unit_of(settings.unit), relation_of(settings.relation), step_seconds)
    return PrivateSums(ledger, run, noise, protected, sharing.min_clients, sites)


# -- what each release covers ----------------------------------------------------------------------


def scale_release(sums: PrivateSums, span: tuple[int, int], end: int, clients: int) -> Release:
    """Histograms of the first `end` steps."""
    return sums.about(SCALE, span, sums.protected.histogram(end), (clients, private.BINS))


def day_release(
    sums: PrivateSums, span: tuple[int, int], end: int, period: int, cells: int
) -> Release:
    """The mean day of the first `end` steps."""
    sensitivity = sums.protected.cells(private.CLIP, end, period, cells // 2)
    return sums.about(DAY, span, sensitivity, (2, cells))


def own_release(
    sums: PrivateSums, span: tuple[int, int], end: int, period: int, slots: int, clients: int
) -> Release:
    """The mean day of each client, in the first `end` steps, as sums: only its shape is used."""
    sensitivity = sums.protected.cells(private.CLIP, end, period, slots, counts=False)
    return sums.about(OWN, span, sensitivity, (clients, slots))


def live_release(sums: PrivateSums, piece: tuple[int, int], end: int, groups: int = 1) -> Release:
    """The live mean of a span of seconds; `end`: steps of the training part.

    One after the other for several groups, of which a client is in one: it adds zeros to the
    others, so that it changes no more numbers than with one group.
    """
    steps = (piece[1] - piece[0]) // sums.protected.step_seconds
    # An hour or a day is whole in any span; of a client, the training part is released.
    span = max(end, 1) if sums.protected.unit is Unit.CLIENT else LONG
    whole, sensitivity = sums.protected.steps(span), sums.protected.values(private.CLIP, span)
    release = sums.about(MEAN, piece, sensitivity, (groups * steps,))
    return sums.part_of_unit(release, min(steps, whole), whole)


def statistics_name(horizon: int) -> str:
    return STATISTICS if horizon == 1 else f"{STATISTICS}, {horizon} steps ahead"


def statistics_release(
    sums: PrivateSums, span: tuple[int, int], end: int, rows: private.Rows, horizon: int
) -> Release:
    """The statistics of the first `end` steps."""
    sensitivity = sums.protected.products(private.NORM, end, rows.lags)
    return sums.about(statistics_name(horizon), span, sensitivity, (rows.numbers,))


# -- what is made of them --------------------------------------------------------------------------


def scale_from(sums: PrivateSums, ids: Sequence[str], least: int) -> private.Scale | None:
    """The scales of these clients, as declared or released; None before the release."""
    known = sums.known(SCALE)
    if not known:
        return None
    if list(known[0].about["clients"]) != list(ids):
        raise FuelsError(
            "the privacy ledger of this run belongs to other clients; nothing was sent"
        )
    return private.scale_of(known[0].values, known[0].release.sigma, least)


def declared_for(
    settings: Privacy, ids: Sequence[str], folder: Path = Path()
) -> private.Scale | None:
    """The scale that the settings declare for these clients; None if it is released.

    A file is relative to a folder.
    """
    if not settings.scale:
        return None
    mean, std = np.array(declared_scales(settings.scale, ids, folder)).T
    return private.Scale(mean, std, std > 0)


def day_from(entry: Entry) -> Floats:
    return private.mean_day(entry.values, entry.release.sigma)


def live_from(
    history: History, usual: Floats, means: Iterable[tuple[Release, Floats]], groups: int = 1
) -> Floats:
    """The live mean of each group [group, step], NaN where it was not released.

    `usual` is the mean day at each step, and `means` has mean deviations from it [group, step].
    """
    live = np.full((groups, history.length), np.nan)
    origin, seconds = seconds_of(history, 0), seconds_of(history, 1) - seconds_of(history, 0)
    for release, values in means:
        first = (release.first - origin) // seconds
        low, high = max(first, 0), min(first + values.shape[1], history.length)
        if low < high:
            live[:, low:high] = usual[low:high] + values[:, low - first : high - first]
    return live


def rows_of(
    history: History, horizon: int, day: Floats, cell: Integers, until: int, *, live: bool
) -> private.Rows:
    """The rows of the statistics; the calendar of the first `until` steps counts."""
    return private.Rows.of(*lags_of(history, horizon, live=live), day, cell, until)


def lags_of(
    history: History, horizon: int, *, live: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The lags of a row, and those of the live mean if there is one."""
    near = season_lag(history.period, horizon)
    means = [lag for lag in live_lags(history, horizon) if lag <= near + 1] if live else []
    return union_of_lags([lags(history, horizon) for lags in PLANS]), tuple(means)


def fitted(
    rows: private.Rows,
    found: Entry,
    experts: Sequence[PooledRidge],
    history: History,
    horizon: int,
    *,
    live: bool,
) -> dict[str, Arrays]:
    """The coefficients of pooled experts from released statistics."""
    columns = declared(history, horizon, live=live)
    noised = found.values, found.release.sigma
    return {
        e.name: dict(vars(rows.coefficients(*noised, columns, e.lags(history, horizon), e.live)))
        for e in experts
        if live or not e.live
    }


# -- times -----------------------------------------------------------------------------------------


def cells_of(history: History) -> tuple[Integers, int]:
    """The cell of every step, slot of the period and free day, and their number."""
    slot = slots(history, 0, history.length)
    number = int(slots(history, 0, history.period).max()) + 1
    free = history.calendar.free(history.times(0, history.length))
    return slot + number * free, 2 * number


def seconds_of(history: History, step: int) -> int:
    """The time of a step, in seconds since 1970."""
    start = int(history.start.astype("datetime64[s]").astype(np.int64))
    return start + step * int(history.step // np.timedelta64(1, "s"))


def span_of(history: History, first: int, last: int) -> tuple[int, int]:
    """The span of steps first..last-1, in seconds since 1970."""
    return seconds_of(history, first), seconds_of(history, last)
