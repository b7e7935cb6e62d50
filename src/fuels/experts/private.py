"""Experts from sums with a formal guarantee: what is shared is noised and kept in a ledger.

The same experts as in shared.py, as far as they need only the smaller private statistics
(sharing/private_statistics.py). What a client forecasts with is not sent: its own experts use its
values as they are. Only its contributions use the scale that was released.

With `privacy.groups`, each client also releases its own mean day, and groups of similar clients
have a live mean each (sharing/similar_clients.py). What a client adds depends only on the group
that its noised day puts it into, which is public; it may hear another group's mean, the one that
resembles its exact day most, which nobody else sees.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fuels.arrays import Floats, Integers
from fuels.config import Privacy, Sharing
from fuels.errors import FuelsError
from fuels.experts.history import History
from fuels.experts.linear import Arrays
from fuels.experts.pool import EXPERTS, Pool
from fuels.experts.private_releases import (
    LEAST_PERIODS,
    PLANS,
    Ready,
    cells_of,
    day_from,
    day_release,
    declared_for,
    fitted,
    live_from,
    live_release,
    own_release,
    rows_of,
    scale_from,
    scale_release,
    span_of,
    statistics_name,
    statistics_release,
    sums_of,
)
from fuels.experts.shared import (
    LIVE,
    POOLED,
    POOLED_LIVE,
    SHRUNK,
    PooledRidge,
    SharedExperts,
    slots,
)
from fuels.privacy.ledger import Entry, Release
from fuels.privacy.sensitivity import Unit
from fuels.sharing import private_statistics as private
from fuels.sharing.private_sums import PrivateSums
from fuels.sharing.protection import DAY, LEDGER, MEAN, OWN, STATISTICS, Protection
from fuels.sharing.similar_clients import (
    centres,
    grouped,
    nearest,
    own_days,
    placed,
)
from fuels.sharing.sums import LocalSums


@dataclass
class PrivateExperts(SharedExperts):
    """The shared experts of one group of clients, whose sums carry noise."""

    protection: Protection | None = None
    trained: np.datetime64 = field(default_factory=lambda: np.datetime64(0, "s"))
    mean: Floats = field(default_factory=lambda: np.zeros(0))  # of the models, [client]
    std: Floats = field(default_factory=lambda: np.ones(0))
    heard: Integers | None = None  # the group whose live mean each client uses; stays with it

    @classmethod
    def protected(
        cls,
        chosen: Sharing,
        protection: Protection,
        trained: np.datetime64,
        scale: tuple[Floats, Floats],
    ) -> PrivateExperts:
        """`scale`: means and deviations by which the clients' histories are normalised."""
        return cls(
            LocalSums(chosen.min_clients),
            chosen.statistics,
            chosen.live_mean,
            chosen.min_clients,
            protection=protection,
            trained=trained,
            mean=scale[0],
            std=scale[1],
        )

    def facts(self) -> dict[str, Any]:
        kept = self._protection
        return {
            **super().facts(),
            "private": {
                "settings": asdict(kept.settings),
                "run": kept.run,
                "horizon": kept.horizon,
                "trained": str(self.trained),
                **({} if self.heard is None else {"heard": self.heard.tolist()}),
            },
        }

    @classmethod
    def restored(
        cls, facts: Mapping[str, Any], folder: Path, scale: tuple[Floats, Floats]
    ) -> PrivateExperts:
        """From the facts of a saved mixture in `folder` or a folder inside it."""
        own = facts["private"]
        settings = Privacy(**own["settings"])
        at = next((f for f in (folder, folder.parent) if (f / LEDGER).is_file()), None)
        if at is None and not settings.ledger:
            raise FuelsError(
                f"{folder / LEDGER} is missing: without the privacy ledger nobody knows what has"
                " been released; restore it from a backup"
            )
        made = Protection.of(settings, own["run"], own["horizon"], at)
        sharing = {name: facts[name] for name in ("statistics", "live_mean", "min_clients")}
        found = cls.protected(Sharing(**sharing), made, np.datetime64(own["trained"]), scale)
        found.heard = np.array(own["heard"]) if "heard" in own else None
        return found

    def guarantee(self) -> dict[str, Any]:
        """As in summary.json."""
        return self._protection.facts()

    @property
    def pool(self) -> Pool:
        live = LIVE if self.live_mean else ()
        names = {expert.name for expert in self.pooled}
        return Pool((*EXPERTS, *live, *(e for e in SHRUNK if e.towards in names), *self.pooled))

    @property
    def pooled(self) -> tuple[PooledRidge, ...]:
        if not self.statistics:
            return ()
        experts = POOLED_LIVE if self.live_mean else POOLED
        return tuple(e for e in experts if e.change and e.lags in PLANS)

    @property
    def numbers(self) -> dict[str, int]:
        """Numbers that each client contributes, by release."""
        kept = self._protection
        sent = {OWN: 0, DAY: 0, STATISTICS: 0}
        for entry in kept.ledger.entries.values():
            name = entry.release.name.partition(",")[0]
            if entry.release.run == kept.run and name in sent:
                alone = name == OWN  # not part of a sum
                sent[name] += entry.release.numbers // (entry.release.shape[0] if alone else 1)
        found = {name.replace(" ", "_"): numbers for name, numbers in sent.items() if numbers}
        return found | ({"live_mean_per_step": 1} if self.live_mean else {})

    def with_live_mean(self, history: History, ids: Sequence[str]) -> History:
        """The history with the noised mean of all clients, or of a group of similar ones."""
        if not self.live_mean or history.live is not None:
            return history
        live = self._live(history, ids)
        if live is None:
            return history
        if self.heard is None and len(live) > 1:
            end = self._step(history, self.trained)
            self._need_training(history, end)
            self.heard = self._nearest(history, history, ids, end)
        heard = np.zeros(history.clients, dtype=np.int64) if self.heard is None else self.heard
        return replace(history, live=live[heard])

    def heard_by(self, unseen: History, members: History, ids: Sequence[str]) -> History:
        live = self._live(members, ids)
        if live is None:
            return unseen
        return replace(unseen, live=live[self._nearest(unseen, members, ids, unseen.length)])

    def coefficients(
        self, history: History, ids: Sequence[str], end: int, horizon: int = 1
    ) -> dict[str, Arrays]:
        """Coefficients of the pooled experts from released statistics of steps before `end`.

        Empty if the budget does not allow releasing them.
        """
        if not self.pooled or (ready := self._ready(history, ids)) is None:
            return {}
        live = self._live(history, ids) if self.live_mean else None
        until = min(self._step(history, self.trained), history.length)
        rows = rows_of(history, horizon, ready.day, ready.cell, until, live=live is not None)
        of_group = None if live is None else live[ready.group]
        found = self._statistics(history, rows, ready.scale, of_group, end, horizon)
        if found is None:
            return {}
        return fitted(rows, found, self.pooled, history, horizon, live=live is not None)

    # -- releases ------------------------------------------------------------------------------

    @property
    def _protection(self) -> Protection:
        assert self.protection is not None
        return self.protection

    def _sums(self, history: History) -> PrivateSums:
        kept = self._protection
        chosen = Sharing(self.statistics, self.live_mean, self.min_clients)
        seconds = int(history.step // np.timedelta64(1, "s"))
        return sums_of(
            kept.settings, chosen, kept.horizon, seconds, kept.ledger, kept.run, kept.sites
        )

    def _ready(self, history: History, ids: Sequence[str]) -> Ready | None:
        """What is released before the first live mean; None with too few clients."""
        sums = self._sums(history)
        cell, cells = cells_of(history)
        end = self._step(history, self.trained)
        scale = self._scale(sums, history, ids, end)
        if (number := int(scale.member.sum())) < self.min_clients:
            warnings.warn(
                f"nothing is shared: {number} of {len(ids)} clients have a scale that is clear of"
                f" noise, and a sum needs {self.min_clients}; see fuels privacy plan",
                stacklevel=2,
            )
            return None
        own = self._own_days(sums, history, scale, end, cells // 2)
        if not sums.known(DAY):
            self._need_training(history, end)
            span, group = span_of(history, 0, end), self._grouped(own)
            sums.expect(day_release(sums, span, end, history.period, cells))
            scaled = self._scaled(history, scale)[:, :end]
            parts = {
                str(i): private.day_sums(own, cell[:end], cells) for i, own in enumerate(scaled)
            }
            about = {} if group is None else {"groups": group.tolist()}
            if sums.total(DAY, span[0], parts, about) is None:
                return None
        entry = sums.known(DAY)[0]
        member = np.array(entry.about.get("groups", np.zeros(number)), dtype=np.int64)
        return Ready(cell, scale, day_from(entry), member, centres(own, member))

    def _own_days(
        self, sums: PrivateSums, history: History, scale: private.Scale, end: int, slots_: int
    ) -> Floats:
        """The noised mean day of each contributing client, [client, slot]; 0 for one group."""
        members = int(scale.member.sum())
        if self._protection.settings.groups == 1:
            return np.zeros((members, slots_))
        if not sums.known(OWN):
            self._need_training(history, end)
            span = span_of(history, 0, end)
            release = own_release(sums, span, end, history.period, slots_, members)
            slot, scaled = slots(history, 0, end), self._scaled(history, scale)[:, :end]
            sums.ledger.release(release, [own_days(scaled, slot, slots_)])
        return sums.known(OWN)[0].values

    def _grouped(self, own: Floats) -> Integers | None:
        if (wanted := self._protection.settings.groups) == 1:
            return None
        group = grouped(own, wanted, self.min_clients)
        if group.max() + 1 < wanted:
            warnings.warn(
                f"all clients have one live mean: their noised mean days do not form {wanted}"
                f" groups of at least {self.min_clients} (privacy.groups)",
                stacklevel=2,
            )
        return group

    def _nearest(self, of: History, members: History, ids: Sequence[str], end: int) -> Integers:
        """The group that each client's exact mean day before `end` resembles most."""
        ready = self._ready(members, ids)
        assert ready is not None
        slot = slots(of, 0, end)
        return nearest(ready.shapes, own_days(of.observed[:, :end], slot, ready.shapes.shape[1]))

    def _scale(
        self, sums: PrivateSums, history: History, ids: Sequence[str], end: int
    ) -> private.Scale:
        least = LEAST_PERIODS * history.period
        known = declared_for(self._protection.settings, ids) or scale_from(sums, ids, least)
        if known is not None:
            return known
        self._need_training(history, end)
        release = scale_release(sums, span_of(history, 0, end), end, len(ids))
        counts = np.stack([private.histogram(own) for own in self._values(history)[:, :end]])
        entry = sums.ledger.release(release, [counts], {"clients": list(ids)})
        return private.scale_of(entry.values, entry.release.sigma, least)

    def _live(self, history: History, ids: Sequence[str]) -> Floats | None:
        """The noised live mean [group, step], NaN where it is not available."""
        ready = self._ready(history, ids)
        if ready is None:
            return None
        sums, end = self._sums(history), self._step(history, self.trained)
        known = sums.known(MEAN)
        begin, stop = span_of(history, 0, history.length)
        if known:  # newer steps only; those before the data are lost
            begin = max(begin, known[-1].release.last)
        trained = span_of(history, 0, end)[1]
        spans = [(begin, min(trained, stop)), (max(begin, trained), stop)]
        if any(first < last for first, last in spans):
            scaled = self._scaled(history, ready.scale)
            parts = private.deviations(scaled, ready.day, ready.cell)
            for first, last in spans:
                for piece in sums.pieces(first, last):
                    if not self._release_live(sums, history, parts, piece, end, ready.group):
                        break
        groups, sizes = len(ready.sizes), ready.sizes[:, None]
        means = ((e.release, e.values.reshape(groups, -1) / sizes) for e in sums.known(MEAN))
        return live_from(history, ready.day[ready.cell], means, groups)

    def _release_live(
        self,
        sums: PrivateSums,
        history: History,
        parts: Floats,
        piece: tuple[int, int],
        end: int,
        group: Integers,
    ) -> bool:
        """Release the live mean of a span; False if the budget does not allow it."""
        origin, seconds = span_of(history, 0, 0)[0], sums.protected.step_seconds
        first, last = ((time - origin) // seconds for time in piece)
        groups = int(group.max()) + 1
        release = sums.expect(live_release(sums, piece, end, groups))
        # What a later step costs a client adds up, and would leave nothing for the statistics.
        once = sums.protected.unit is Unit.CLIENT and bool(sums.known(MEAN))
        if not self._affordable(release, sums, refused=once):
            return False
        own = (placed(part[first:last], g, groups) for part, g in zip(parts, group, strict=True))
        sums.total(MEAN, piece[0], {str(i): part for i, part in enumerate(own)})
        return True

    def _statistics(
        self,
        history: History,
        rows: private.Rows,
        scale: private.Scale,
        live: Floats | None,
        end: int,
        horizon: int,
    ) -> Entry | None:
        """The statistics of the first steps of training, `end` of them if not released yet.

        The experts are fitted twice, first for their warm-up. Both use the same release.
        """
        sums, name = self._sums(history), statistics_name(horizon)
        first, until = span_of(history, 0, end)
        if known := sums.known(name):
            return known[0] if known[0].release.last <= until else None
        if end <= max(rows.lags):
            return None
        release = sums.expect(statistics_release(sums, (first, until), end, rows, horizon))
        if not self._affordable(release, sums):
            return None
        made = rows.make(self._scaled(history, scale), live, 0, end)
        parts = {str(i): rows.packed(own) for i, own in enumerate(made)}
        return None if sums.total(name, first, parts) is None else sums.known(name)[0]

    def _affordable(self, release: Release, sums: PrivateSums, refused: bool = False) -> bool:
        if not refused and sums.ledger.affords(release):
            return True
        warnings.warn(
            f"the privacy budget (epsilon {sums.ledger.budget.epsilon:g}) is spent:"
            f" '{release.name}' is not released, and experts that need it abstain",
            stacklevel=2,
        )
        return False

    # -- values and times ----------------------------------------------------------------------

    def _values(self, history: History) -> Floats:
        """The clients' values [client, step], in the data's unit."""
        return history.observed * self.std[:, None] + self.mean[:, None]

    def _scaled(self, history: History, scale: private.Scale) -> Floats:
        return scale.apply(self._values(history))

    def _step(self, history: History, time: np.datetime64) -> int:
        return int((time - history.start) // history.step)

    def _need_training(self, history: History, end: int) -> None:
        if not 0 < end <= history.length:
            raise FuelsError(
                "the privacy ledger of this run has no scale or mean day yet, and they need the"
                " data of its training part; give a file that includes it"
            )
