"""Experts that use what the other clients share: the live mean and the shared statistics.

    shared = SharedExperts(carrier, statistics=True, live_mean=True)
    shared.pool                               # the local experts and the shared ones
    history = shared.with_live_mean(history, ids)
    shared.coefficients(history, ids, end)    # of the pooled experts, from the steps before `end`

Three kinds join the local experts:

- local ridges that also see the live mean, each fitted by the client on its own past;
- pooled ridges with coefficients for each slot of the period, from the data of all clients, with
  and without the live mean;
- shrunk ridges: pooled ones that the client corrects as far as its own past supports it.

An expert abstains where the live mean does not go back far enough to fit it. How far the shared
experts may change a forecast is limited (experts/blend.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fuels.arrays import Floats, Integers
from fuels.config import Sharing
from fuels.data.calendar import MOST_SLOTS, slot_of
from fuels.experts.history import History
from fuels.experts.input_experts import with_inputs
from fuels.experts.linear import (
    Arrays,
    Lags,
    RidgeExpert,
    day_lags,
    live_lags,
    period_lags,
    recent_lags,
    week_lags,
)
from fuels.experts.pool import EXPERTS, Pool
from fuels.kernels.dispatch import has_twin
from fuels.sharing import live_mean as means
from fuels.sharing import statistics
from fuels.sharing.received import ReceivedMean
from fuels.sharing.received_statistics import FILE, ReceivedStatistics
from fuels.sharing.statistics import Coefficients, Columns, Regression, Totals, union_of_lags
from fuels.sharing.sums import MIN_CLIENTS, LocalSums


@dataclass(frozen=True)
class PooledRidge:
    """A ridge with the coefficients of all clients together, for each slot of the period."""

    name: str
    lags: Lags
    live: bool = True
    change: bool = True
    one_step_only: bool = False
    shared: bool = True
    pooled: bool = True

    def regression(self, history: History, horizon: int) -> Regression:
        live = live_lags(history, horizon) if self.live else ()
        return Regression(self.lags(history, horizon), live, self.change)

    def fit(self, history: History, end: int, horizon: int) -> Arrays:
        return {}  # its arrays come from the statistics

    def forecasts(
        self, fitted: Arrays, history: History, first: int, last: int, horizon: int
    ) -> Floats:
        if not fitted:
            return np.full((history.clients, last - first), np.nan)
        return forecast_pooled(fitted, history, first, last, horizon)


@has_twin("fuels.experts.regressions")
def forecast_pooled(
    fitted: Arrays, history: History, first: int, last: int, horizon: int
) -> Floats:
    """Forecasts [client, step] of steps first..last-1 by a fitted pooled ridge."""
    used = declared_by(fitted, history, horizon)
    x = used.inputs(history.filled, history.live, first, last)
    free = history.calendar.free(history.times(first, last))
    return Coefficients(**fitted).predict(x, free, slots(history, first, last))


LIVE: tuple[RidgeExpert, ...] = tuple(
    replace(expert, name=f"{expert.name}, live mean", live=True)
    for expert in EXPERTS
    if isinstance(expert, RidgeExpert) and not expert.one_step_only
)
POOLED_LIVE: tuple[PooledRidge, ...] = (
    PooledRidge("pooled ridge, weekly lags, change, live mean", week_lags),
    PooledRidge("pooled ridge, period lags, change, live mean", period_lags),
    PooledRidge("pooled ridge, day lags, change, live mean", day_lags),
    PooledRidge("pooled ridge, recent lags, change, live mean", recent_lags),
    PooledRidge("pooled ridge, weekly lags, live mean", week_lags, change=False),
)
POOLED: tuple[PooledRidge, ...] = (
    PooledRidge("pooled ridge, weekly lags, change", week_lags, live=False),
    PooledRidge("pooled ridge, period lags, change", period_lags, live=False),
    PooledRidge("pooled ridge, recent lags, change", recent_lags, live=False),
)
SHRUNK: tuple[RidgeExpert, ...] = tuple(
    RidgeExpert(
        pooled.name.replace("pooled", "shrunk"),
        pooled.lags,
        pooled.change,
        live=True,
        towards=pooled.name,
    )
    for pooled in POOLED_LIVE
    if pooled.lags is not day_lags
)
EVERY_EXPERT = Pool((*EXPERTS, *LIVE, *SHRUNK, *POOLED_LIVE, *POOLED))


def saved_pool(
    horizon: int,
    arrays: Collection[str],
    names: Sequence[str] | None,
    inputs: Sequence[str] = (),
) -> Pool:
    """The pool of a file with these arrays; older files name no experts and have fewer of them."""
    experts = with_inputs(EVERY_EXPERT, inputs).for_horizon(horizon)
    if names is None:
        fitted = {key.split("/")[1] for key in arrays}
        names = [e.name for e in experts if not e.shared or e.name in fitted]
    return Pool(tuple(e for e in experts if e.name in names))


def declared(history: History, horizon: int, *, live: bool) -> Columns:
    """The columns of the shared statistics: the lags of all pooled ridges."""
    lags = union_of_lags([lags(history, horizon) for lags in (recent_lags, period_lags, week_lags)])
    means = live_lags(history, horizon) if live else ()
    return Columns(lags, means, min(history.period, MOST_SLOTS))


@has_twin("fuels.experts.regressions")
def contributions(columns: Columns, history: History, first: int, last: int) -> Sequence[Floats]:
    """What each client contributes for steps first..last-1, [slot, pair]."""
    free = history.calendar.free(history.times(0, last))
    rows = columns.rows(history.observed, history.live, free, first, last, filled=history.filled)
    slot = slots(history, first, last)
    return [statistics.moments(columns, own, slot) for own in rows]


def declared_by(fitted: Arrays, history: History, horizon: int) -> Columns:
    """The columns of a fitted pooled ridge.

    The live mean's columns come last, so they can be left out of the file and of the row.
    """
    own = len(declared(history, horizon, live=False).lags)
    return declared(history, horizon, live=fitted["inputs"].shape[1] > own)


def mostly_live(history: History, end: int) -> bool:
    """Whether the live mean is known for most of the steps before `end`."""
    return history.live is not None and bool((~np.isnan(history.live[:, :end])).mean() > 0.5)


def slots(history: History, first: int, last: int) -> Integers:
    """The slot of steps first..last-1."""
    return slot_of(np.arange(first, last) % history.period, history.period)


@dataclass
class SharedExperts:
    """The shared experts of one group of clients, and the sums behind them."""

    carrier: LocalSums
    statistics: bool = True
    live_mean: bool = True
    min_clients: int = MIN_CLIENTS
    totals: dict[tuple[int, int], Totals] = field(default_factory=dict)  # by horizon and end
    # From a federation; None: computed here.
    received: ReceivedMean | None = None
    received_statistics: ReceivedStatistics | None = None

    @classmethod
    def of(cls, chosen: Sharing, seed: int = 0) -> SharedExperts | None:
        """The shared experts that settings ask for, with sums computed in this process.

        `seed` is that of the noise on the sums, if there is any.
        """
        if not (chosen.statistics or chosen.live_mean):
            return None
        carrier = LocalSums(chosen.min_clients, chosen.noise, seed)
        return cls(carrier, chosen.statistics, chosen.live_mean, chosen.min_clients)

    def facts(self) -> dict[str, Any]:
        """The settings and the seed, to be saved."""
        noise, seed = self.carrier.noise, self.carrier.seed
        chosen = Sharing(self.statistics, self.live_mean, self.min_clients, noise)
        remote = {"federation": True} if self.of_federation else {}
        return {**asdict(chosen), "seed": seed, **remote}

    def guarantee(self) -> dict[str, Any]:
        """A formal guarantee for the sums; empty if there is none (experts/private.py)."""
        return {}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> SharedExperts | None:
        """As saved; what came from a federation is not among the facts, see `receive`."""
        settings = {k: value for k, value in facts.items() if k not in ("seed", "federation")}
        found = cls.of(Sharing(**settings), facts.get("seed", 0))
        if found is not None and facts.get("federation"):
            time, step = np.datetime64(0, "s"), np.timedelta64(1, "s")
            found.received = ReceivedMean.begin((), time, step)
            found.received_statistics = ReceivedStatistics(time, step)
        return found

    @property
    def of_federation(self) -> bool:
        """Whether the sums of the run came from a federation: they are never computed here."""
        return self.received_statistics is not None

    def receive(self, mean: ReceivedMean | None, folder: Path) -> None:
        """Use a received live mean, and the statistics that a run folder has received."""
        if mean is not None or not self.of_federation:
            self.received = mean
        if self.of_federation and (folder / FILE).is_file():
            self.received_statistics = ReceivedStatistics.load(folder / FILE)

    @property
    def numbers(self) -> dict[str, int]:
        """Numbers that each client sends: once for the statistics, at each step for the mean."""
        sent = self.carrier.sent.get("statistics", 0)
        if (received := self.received_statistics) is not None:
            sent = received.numbers
        found = {"statistics": sent} if self.statistics else {}
        return found | ({"live_mean_per_step": means.NUMBERS} if self.live_mean else {})

    @property
    def pool(self) -> Pool:
        """The local experts, and the shared ones that are asked for."""
        live = LIVE if self.live_mean else ()
        if self.live_mean and self.statistics:
            live = (*LIVE, *SHRUNK)
        return Pool((*EXPERTS, *live, *self.pooled))

    @property
    def pooled(self) -> tuple[PooledRidge, ...]:
        if not self.statistics:
            return ()
        return (*(POOLED_LIVE if self.live_mean else ()), *POOLED)

    def with_live_mean(self, history: History, ids: Sequence[str]) -> History:
        """The history of these clients with the mean of the others at each step."""
        if not self.live_mean or history.live is not None:
            return history
        if self.received is not None:
            steps = history.start, history.length
            live = self.received.seen(ids, *steps, self.min_clients, history.period)
            return replace(history, live=live)
        found = self.live(history, ids)
        return history if found is None else replace(history, live=found.others(history.observed))

    def live(self, history: History, ids: Sequence[str]) -> means.LiveMean | None:
        """The sums behind the live mean, step by step."""
        observed = dict(zip(ids, history.observed, strict=True))
        return means.exchange(self.carrier, observed, min_clients=self.min_clients)

    def heard_by(self, unseen: History, members: History, ids: Sequence[str]) -> History:
        """The history of clients that contribute nothing, with the mean of those that do."""
        found = self.live(members, ids)
        if found is None:
            return unseen
        return replace(unseen, live=found.others(unseen.observed, member=False))

    def coefficients(
        self, history: History, ids: Sequence[str], end: int, horizon: int = 1
    ) -> dict[str, Arrays]:
        """Coefficients of the pooled experts from the steps before `end`, `horizon` steps ahead.

        Only steps after those of an earlier call are exchanged. Empty without a sum.
        """
        if not self.pooled:
            return {}
        totals = self._totals(history, ids, end, horizon)
        if totals is None:
            return {}
        return {
            e.name: dict(vars(totals.coefficients(e.regression(history, horizon))))
            for e in self.pooled
            if totals.columns.live_lags or not e.live
        }

    def _totals(
        self, history: History, ids: Sequence[str], end: int, horizon: int
    ) -> Totals | None:
        if self.received_statistics is not None:
            return self.received_statistics.until(history.times(end, end + 1)[0], horizon)
        columns = declared(history, horizon, live=self.live_mean and mostly_live(history, end))
        earlier = [
            until
            for (ahead, until), totals in self.totals.items()
            if ahead == horizon and until <= end and totals.columns == columns
        ]
        first = max(earlier, default=0)
        if first < end:
            parts = dict(zip(ids, contributions(columns, history, first, end), strict=True))
            found = statistics.add_up(self.carrier, columns, parts, step=end)
            if found is None:
                return None
            self.totals[horizon, end] = found + self.totals[horizon, first] if first else found
        return self.totals[horizon, end]
