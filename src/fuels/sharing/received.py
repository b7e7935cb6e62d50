"""The live mean as a site receives it: sums step by step, stored with the run.

    received = ReceivedMean.load(folder / FILE)
    live = received.seen(ids, observed, start, min_clients)   # the mean of the others

The sums come from a federation (federation/flower/live_site.py), so a site cannot compute them
again: a step without a sum stays without one. What a client subtracts is what it has contributed,
which is stored too: a value that arrived late was not counted, and one that was revised later was
counted as it was.

Times are local standard time, as in a history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fuels.arrays import Floats, window
from fuels.errors import FuelsError
from fuels.sharing.live_mean import LiveMean, estimated
from fuels.sharing.sums import MIN_CLIENTS
from fuels.storage.checkpoint import load_state, replace_state

FILE = "live-mean.safetensors"  # in a run folder
FORMAT = 1


@dataclass(frozen=True)
class ReceivedMean:
    """Sums over all clients of a federation, and the contributions of this site's clients."""

    ids: tuple[str, ...]  # this site's clients
    start: np.datetime64  # of the first step
    step: np.timedelta64
    total: Floats  # [step]; NaN without a sum
    count: Floats  # [step]; NaN while it is open whether there will be a sum
    own: Floats  # [client, step]: the values that were contributed, clipped; NaN: none

    @classmethod
    def begin(cls, ids: Sequence[str], start: np.datetime64, step: np.timedelta64) -> ReceivedMean:
        """Nothing was received yet."""
        return cls(tuple(ids), start, step, np.empty(0), np.empty(0), np.empty((len(ids), 0)))

    @property
    def length(self) -> int:
        return len(self.total)

    def position(self, time: np.datetime64) -> int:
        """The step of a time; negative before the first one."""
        return int((time - self.start) // self.step)

    def contributed(self, time: np.datetime64, values: Floats) -> ReceivedMean:
        """With the values [client] that these clients contribute to the sum of a step."""
        longer, at = self._with_step(time)
        own = longer.own.copy()
        own[:, at] = values
        return replace(longer, own=own)

    def decided(self, time: np.datetime64) -> bool:
        """Whether the sum of a step has arrived, or there will be none."""
        at = self.position(time)
        return 0 <= at < self.length and not np.isnan(self.count[at])

    def with_sums(self, time: np.datetime64, total: Floats, count: Floats) -> ReceivedMean:
        """With the sums [step] of steps from `time` on; those that are already known stay.

        A step that has no sum, and will have none, has a total of NaN and a count of 0.
        """
        if not len(total):
            return self
        longer, _ = self._with_step(time + (len(total) - 1) * self.step)
        longer, at = longer._with_step(time)
        totals, counts = longer.total.copy(), longer.count.copy()
        here = slice(at, at + len(total))
        new = np.isnan(counts[here])
        totals[here] = np.where(new, total, totals[here])
        counts[here] = np.where(new, count, counts[here])
        return replace(longer, total=totals, count=counts)

    def _with_step(self, time: np.datetime64) -> tuple[ReceivedMean, int]:
        """Long enough for a step, and the step's position."""
        at = self.position(time)
        before, after = max(-at, 0), max(at + 1 - self.length, 0)
        if not before and not after:
            return self, at
        if not self.length:
            before, after, at = 0, 1, 0
        pad = ((before, after),)
        longer = replace(
            self,
            start=time if before or not self.length else self.start,
            total=np.pad(self.total, pad, constant_values=np.nan),
            count=np.pad(self.count, pad, constant_values=np.nan),
            own=np.pad(self.own, ((0, 0), *pad), constant_values=np.nan),
        )
        return longer, at + before

    def newest(self, steps: int) -> ReceivedMean:
        """Only the newest steps."""
        drop = max(self.length - steps, 0)
        return replace(
            self,
            start=self.start + drop * self.step,
            total=self.total[drop:],
            count=self.count[drop:],
            own=self.own[:, drop:],
        )

    # -- what clients see ----------------------------------------------------------------------

    def seen(
        self,
        ids: Sequence[str],
        start: np.datetime64,
        steps: int,
        min_clients: int = MIN_CLIENTS,
        period: int = 0,
    ) -> Floats:
        """The mean of the others [client, step] for these clients, at `steps` steps from a time.

        A client that contributed nothing has nothing to subtract. With a period, short gaps are
        estimated.
        """
        at = self.position(start)
        if (start - self.start) % self.step != np.timedelta64(0, "s"):
            raise FuelsError("the live mean and the clients' values are at different times")
        total, count = window(self.total, at, at + steps), window(self.count, at, at + steps)
        own, row = np.full((len(ids), steps), np.nan), {c: i for i, c in enumerate(self.ids)}
        for i, client in enumerate(ids):
            if client in row:
                own[i] = window(self.own[row[client]], at, at + steps)
        found = LiveMean(total, count, min_clients).others(own)
        return estimated(found, period) if period else found

    def on(self, start: np.datetime64, steps: int) -> Floats:
        """The mean over all clients [step], at `steps` steps from a time; NaN where unknown."""
        at, mean = self.position(start), np.full(steps, np.nan)
        low, high = max(at, 0), min(at + steps, self.length)
        if high > low:
            total, count = self.total[low:high], self.count[low:high]
            known = ~np.isnan(total) & (count > 0)
            mean[low - at : high - at] = np.where(known, total / np.maximum(count, 1.0), np.nan)
        return mean

    # -- on disk -------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write everything, atomically; raises OSError."""
        arrays = {"total": self.total, "count": self.count, "own": self.own}
        step = int(self.step / np.timedelta64(1, "s"))
        facts = {"format": FORMAT, "ids": list(self.ids), "start": str(self.start), "step": step}
        replace_state(path, arrays, facts)

    @classmethod
    def load(cls, path: Path) -> ReceivedMean:
        arrays, facts = load_state(path)
        if facts.get("format") != FORMAT:
            raise FuelsError(f"{path}: not a live mean that this version of fuels reads")
        start, step = np.datetime64(facts["start"], "s"), np.timedelta64(facts["step"], "s")
        return cls(
            tuple(facts["ids"]), start, step, *(arrays[k] for k in ("total", "count", "own"))
        )


def read_received(folder: Path) -> tuple[ReceivedMean | None, list[str]]:
    """The live mean that a run has received, None if it has none, and a note if it is damaged."""
    if not (folder / FILE).is_file():
        return None, []
    try:
        return ReceivedMean.load(folder / FILE), []
    except FuelsError as error:
        nothing = ReceivedMean.begin((), np.datetime64(0, "s"), np.timedelta64(1, "s"))
        return nothing, [f"{error}: the forecasts do not use the live mean"]
