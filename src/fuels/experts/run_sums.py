"""The sums of a run across organisations: over which steps, what a site adds, and what it receives.

    steps, left_out = common_steps({"north": steps_of(dataset), ...}, adding, 3)
    live_words(history, steps, sites)                          # the live mean, at one site
    statistics_words(history, steps, horizon, live, sites)     # the statistics, at one site
    received = received_sums(dataset, totals, ...)             # what its experts use instead

Sites may begin and end at different times. Steps are counted from the earliest start, in local
standard time. The live mean covers those at which at least three sites have data, because a sum
over fewer shows what each of them adds. For the same reason statistics begin where at least three
sites have data, and the longest lag later. They end where the first training part ends, so that no
site's test part enters them. As on one machine, they are added up in two parts for each horizon:
before and during the warm-up of the mixtures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fuels.arrays import Floats
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.experts.history import History, history_of, steps_in_week
from fuels.experts.horizon import warm_up_begins
from fuels.experts.shared import SharedExperts, contributions, declared
from fuels.sharing.fixed_point import Words, to_words
from fuels.sharing.live_mean import CLIP, NUMBERS, contribution
from fuels.sharing.received import FILE as MEAN_FILE
from fuels.sharing.received import ReceivedMean
from fuels.sharing.received_statistics import FILE as STATISTICS_FILE
from fuels.sharing.received_statistics import ReceivedStatistics
from fuels.sharing.statistics import Columns, unpack
from fuels.sharing.sums import MIN_CLIENTS, LocalSums

LIVE_MEAN, STATISTICS = "live mean of the past", "statistics"
SETTINGS = {LIVE_MEAN: "live_mean", STATISTICS: "statistics"}  # the settings that ask for them
UNTIL = 2**40 - 1  # larger than any number of steps
MOST_STEPS = 2**21  # that sites may span together: 20 years of 5 minutes


@dataclass(frozen=True)
class Steps:
    """The steps of a site's data, or of those of several sites."""

    start: int  # local standard time of the first step, which begins a period; seconds since 1970
    step: int  # seconds
    period: int
    count: int
    end: int  # steps of the training part
    live_first: int = 0  # the live mean covers these steps,
    live_last: int = UNTIL  # up to the one before this
    zone: int = 0  # seconds that standard time is ahead of UTC; 0 also if no time zone is named
    rows_first: int = 0  # the statistics use values from this step on

    @property
    def live(self) -> slice:
        """The steps of the live mean."""
        last = min(self.live_last, self.count)
        return slice(min(self.live_first, last), last)

    @property
    def first(self) -> np.datetime64:
        return np.datetime64(self.start, "s")

    def time(self, step: int) -> int:
        return self.start + step * self.step

    def facts(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_facts(cls, facts: Any) -> Steps:
        """The steps in a message; raises FuelsError if they cannot be."""
        names = set(cls.__dataclass_fields__)
        added = {"live_first", "live_last", "zone", "rows_first"}  # since the first version
        if not isinstance(facts, dict) or not names - added <= set(facts) <= names:
            raise FuelsError("the steps of a sum are not described completely")
        if any(type(value) is not int or not abs(value) < 2**40 for value in facts.values()):
            raise FuelsError("the steps of a sum are not whole numbers")
        found = cls(**facts)
        begins = min(found.live_first, found.rows_first)
        least = min(found.step, found.period, found.count, found.end, begins + 1)
        if least < 1 or found.end > found.count:
            raise FuelsError("the steps of a sum are out of range")
        return found


def steps_of(dataset: Dataset) -> Steps:
    """The steps of a dataset, whose step 0 begins a period."""
    panel = dataset.panel
    start = panel.start + panel.standard_offset - dataset.offset * panel.step
    begin = int(start.astype("datetime64[s]").astype(np.int64))
    count = dataset.offset + panel.length
    zone = int(panel.standard_offset / np.timedelta64(1, "s"))
    return Steps(begin, panel.step_seconds, dataset.period, count, dataset.split.train, zone=zone)


def common_steps(
    found: Mapping[str, Steps], adding: Collection[str], least: int
) -> tuple[Steps, dict[str, str]]:
    """The steps of several sites together, and why some sites do not fit the majority.

    Sums cover those that at least `least` of the sites `adding` to them have.
    """
    clocks = {
        site: (s.step, s.period, s.start % (s.step * s.period), s.zone) for site, s in found.items()
    }
    clock = Counter(clocks.values()).most_common(1)[0][0]
    left_out = {
        site: f"its steps of {own[0]} s, {own[1]} in a period, do not match those of the others"
        if own[:3] != clock[:3]
        else f"its time zone is {_hours(own[3])}, that of the others {_hours(clock[3])}: the data"
        " section of site.toml names it (timezone)"
        for site, own in clocks.items()
        if own != clock
    }
    fitting = [steps for site, steps in found.items() if site not in left_out]
    start = min(s.start for s in fitting)
    count = max((s.start - start) // s.step + s.count for s in fitting)
    end = min((s.start - start) // s.step + s.end for s in fitting)
    if count > MOST_STEPS:
        raise FuelsError(f"the sites' data span {count} steps; at most {MOST_STEPS} are added up")
    there = [found[site] for site in adding if site not in left_out]
    begins = sorted((s.start - start) // s.step for s in there)
    ends = sorted((s.start - start) // s.step + s.count for s in there)
    live = (begins[least - 1], ends[-least]) if len(there) >= least else (0, 0)
    covered = Steps(start, clock[0], clock[1], count, end, live[0], max(live), clock[3], live[0])
    return covered, left_out


def _hours(zone: int) -> str:
    return f"UTC{zone / 3600:+g}" if zone else "UTC or not named"


class Part(NamedTuple):
    """The statistics of some steps, for forecasts `horizon` steps ahead."""

    horizon: int
    first: int
    last: int
    columns: Columns

    def rows(self, steps: Steps) -> tuple[int, int]:
        """The first step with a row, and the one after the last: lags begin with the third site.

        Where fewer sites have rows, the total would be what one or two of them add.
        """
        return max(self.first, steps.rows_first + max(self.columns.lags)), self.last


def parts_of(steps: Steps, horizon: int, live: bool) -> list[Part]:
    """The parts of the statistics of a run; `live`: with the live mean among the columns."""
    nothing = np.empty((0, 0))
    week, clock = steps_in_week(steps.step, steps.period), np.timedelta64(steps.step, "s")
    shell = History(nothing, nothing, steps.period, week, steps.first, clock)
    found = []
    for h in range(1, horizon + 1):
        columns = declared(shell, h, live=live)
        begin = warm_up_begins(steps.end, steps.period, h)
        found += [Part(h, 0, begin, columns), Part(h, begin, steps.end, columns)]
    return found


def has_rows(steps: Steps, horizon: int) -> bool:
    """Whether the statistics have a step with a row."""
    parts = parts_of(steps, horizon, live=False)
    return any(first < last for first, last in (part.rows(steps) for part in parts))


def shape_of(name: str, steps: Steps, horizon: int, live: bool) -> tuple[int, ...]:
    """The shape of a sum."""
    if name == LIVE_MEAN:
        return (steps.count, NUMBERS)
    return (sum(part.columns.numbers for part in parts_of(steps, horizon, live)),)


def mostly_known(steps: Steps, live: Floats, min_clients: int) -> bool:
    """Whether sums [step, 2] give a live mean for most steps of the training part."""
    return bool((live[: steps.end, 1] >= min_clients).mean() > 0.5)


# -- what a site adds ------------------------------------------------------------------------------


def live_words(history: History, steps: Steps, sites: int) -> Words:
    """What a site's clients add to the live mean, as integers [number]."""
    at = offset_of(history, steps)

    def padded() -> Iterator[Floats]:
        for values in history.observed:
            whole = np.zeros((steps.count, NUMBERS))
            whole[at : at + history.length] = contribution(values)
            whole[: steps.live.start] = whole[steps.live.stop :] = 0.0
            yield whole

    return to_words(padded(), sites, LIVE_MEAN).reshape(-1)


def statistics_words(history: History, steps: Steps, horizon: int, live: bool, sites: int) -> Words:
    """What a site's clients add to the statistics, as integers [number]; `history` with its live
    mean."""
    at, words = offset_of(history, steps), []
    for part in parts_of(steps, horizon, live):
        first, last = (min(max(step - at, 0), history.length) for step in part.rows(steps))
        if first < last:
            own = contributions(part.columns, history, first, last)
        else:
            own = [np.zeros((part.columns.slots, part.columns.numbers // part.columns.slots))]
        words.append(to_words(own, sites, STATISTICS).reshape(-1))
    return np.concatenate(words)


def offset_of(history: History, steps: Steps) -> int:
    """The common step of a history's first one."""
    offset = history.start - steps.first
    step, period = np.timedelta64(steps.step, "s"), steps.period
    at = int(offset // step)
    if (history.step, history.period) != (step, period) or offset != at * step or at % period:
        raise FuelsError("the steps of the sum are not those of this site's data")
    if at < 0 or at + history.length > steps.count:
        raise FuelsError("this site's data begin or end outside the steps of the sum")
    return at


# -- what a site receives --------------------------------------------------------------------------


@dataclass(frozen=True)
class ReceivedSums:
    """The sums of a run that a site has received, for its experts; and why some are missing."""

    mean: ReceivedMean | None = None
    statistics: ReceivedStatistics | None = None
    notes: Mapping[str, str] = field(default_factory=dict)  # setting: why it is not available
    min_clients: int = MIN_CLIENTS

    @property
    def experts(self) -> SharedExperts | None:
        """The experts that use these sums; None without any."""
        if self.mean is None and self.statistics is None:
            return None
        nothing = ReceivedStatistics(np.datetime64(0, "s"), np.timedelta64(1, "s"))
        return SharedExperts(
            LocalSums(self.min_clients),
            statistics=self.statistics is not None,
            live_mean=self.mean is not None,
            min_clients=self.min_clients,
            received=self.mean,
            received_statistics=self.statistics or nothing,
        )

    @property
    def note(self) -> str:
        """Why sums are missing, without a full stop; "" if none is."""
        reasons: dict[str, list[str]] = {}
        for name, reason in self.notes.items():
            reasons.setdefault(reason, []).append(name.replace("_", " "))
        return "; ".join(f"no {' and '.join(names)}: {why}" for why, names in reasons.items())

    def save(self, folder: Path) -> None:
        """Write the sums into a run folder."""
        if self.mean is not None:
            self.mean.save(folder / MEAN_FILE)
        if self.statistics is not None:
            self.statistics.save(folder / STATISTICS_FILE)


def received_mean(dataset: Dataset, steps: Steps, live: Floats, contributed: bool) -> ReceivedMean:
    """The live mean from sums [step, 2]; `contributed`: whether this site's values are in them."""
    history, step, ids = history_of(dataset), np.timedelta64(steps.step, "s"), dataset.ids
    own = np.full((len(ids), steps.count), np.nan)
    if contributed:
        at = offset_of(history, steps)
        own[:, at : at + history.length] = np.clip(history.observed, -CLIP, CLIP)
    here, first = steps.live, steps.first + steps.live.start * step
    return ReceivedMean(ids, first, step, live[here, 0], live[here, 1], own[:, here])


def received_statistics(
    steps: Steps, horizon: int, live: bool, total: Floats
) -> ReceivedStatistics:
    """The statistics from a sum [number]: for each horizon, up to the end of each part."""
    found = ReceivedStatistics(steps.first, np.timedelta64(steps.step, "s"))
    position = 0
    for part in parts_of(steps, horizon, live):
        columns = part.columns
        packed = total[position : position + columns.numbers].reshape(columns.slots, -1)
        position += columns.numbers
        found.add(part.horizon, part.first, part.last, unpack(columns, packed))
    return found
