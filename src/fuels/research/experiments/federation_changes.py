"""What `fuels experiment federation` compares: mixtures, the clients and days, and the changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from fuels.arrays import Floats
from fuels.data.newcomers import newcomers
from fuels.data.windows import Dataset
from fuels.evaluation.summary import paired_test
from fuels.research.experiments import boosting
from fuels.research.experiments.grid import title_of
from fuels.research.study.mixtures import Errors

ALL = 10**6  # periods of history: the whole training part
LEVEL = 0.05
SHARED: dict[str, dict[str, bool]] = {
    "nothing": {"statistics": False, "live_mean": False},
    "statistics": {"statistics": True, "live_mean": False},
    "live mean": {"statistics": False, "live_mean": True},
    "both sums": {"statistics": True, "live_mean": True},
}
NOTHING, *SUMS = SHARED
BOTH, POOLED = SUMS[-1], "pooled data"
TABLES = ("sums", "history", "horizon", "noise", "methods")


@dataclass(frozen=True)
class Case:
    """One mixture: what is shared as sums, steps ahead, noise on the sums, and an added model."""

    shared: str
    horizon: int = 1
    noise: float = 0.0
    model: str = ""  # a method, or the model of pooled data

    @property
    def name(self) -> str:
        more = [f"with {self.model}"] if self.model else []
        more += [f"{self.horizon} steps ahead"] if self.horizon > 1 else []
        more += [f"noise {self.noise:g}"] if self.noise else []
        return ", ".join([f"{self.shared} shared", *more])


@dataclass(frozen=True)
class Pair:
    """A mixture and what it is compared with: for all clients, or for newcomers with a history."""

    case: Case
    base: Case = Case("nothing")
    history: int = ALL
    new: bool = False


@dataclass(frozen=True)
class Plan:
    """The options of the command: which mixtures are compared."""

    tables: tuple[str, ...]
    days: tuple[int, ...]  # of the newcomers' history
    share: float  # of newcomers
    horizons: tuple[int, ...]
    noise: tuple[float, ...]
    methods: tuple[str, ...]
    method_days: tuple[int, ...]  # histories with which methods are trained

    @property
    def histories(self) -> list[int]:
        """The whole one first: it says who is compared."""
        wanted = {ALL}
        wanted |= set(self.days if "history" in self.tables else ())
        wanted |= set(self.method_days if "methods" in self.tables else ())
        return sorted(wanted, reverse=True)

    def cases(self, history: int) -> list[Case]:
        """The mixtures for clients with a history."""
        found: list[Case] = []
        whole = history == ALL
        if whole or ("history" in self.tables and history in self.days):
            found += [Case(shared) for shared in SHARED]
        if whole and "sums" in self.tables and boosting.installed():
            found.append(Case(NOTHING, model=boosting.TITLE))
        if whole and "horizon" in self.tables:
            found += [Case(shared, horizon=h) for h in self.horizons for shared in (NOTHING, BOTH)]
        if whole and "noise" in self.tables:
            found += [Case(BOTH, noise=noise) for noise in self.noise]
        if "methods" in self.tables and history in self.method_days:
            found += [Case(s, model=name) for name in self.methods for s in (NOTHING, BOTH)]
        return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Window:
    """Days of the test part, and their dates."""

    days: slice
    name: str

    @classmethod
    def of(cls, dataset: Dataset, first: int, last: int) -> Window:
        """Days first..last-1 after the training part."""
        panel = dataset.panel
        steps = dataset.split.train - dataset.offset + np.array([first, last]) * dataset.period
        begin, end = panel.start + panel.standard_offset + (steps - [0, 1]) * panel.step
        one, other = (day.astype("datetime64[s]").item() for day in (begin, end))
        until = f"{other.day} {other:%b}"
        if (one.month, one.day) == (other.month, other.day):
            return cls(slice(first, last), until)
        since = str(one.day) if one.month == other.month else f"{one.day} {one:%b}"
        return cls(slice(first, last), f"{since}-{until}")


@dataclass(frozen=True)
class Group:
    """The data of one seed, with newcomers that have a history of some periods."""

    source: str
    seed: int
    history: int  # ALL: every client has its whole history
    clients: int
    split: str
    newcomers: str
    period: int

    @property
    def name(self) -> str:
        return "whole history" if self.history == ALL else f"history of {self.history}"


@dataclass(frozen=True)
class Change:
    """The MSE of one mixture against another, on the same clients and days."""

    mse: float
    base: float
    better: float  # share of the clients, over all seeds
    clients: int
    p_clients: float | None
    days: int
    p_days: float | None

    @property
    def percent(self) -> float:
        return 100 * (self.mse / self.base - 1)

    @property
    def significant(self) -> bool:
        return all(p is not None and p < LEVEL for p in (self.p_clients, self.p_days))


@dataclass
class Found:
    """The errors of all mixtures, and who is compared."""

    windows: dict[str, tuple[Window, ...]]  # by source
    seeds: tuple[int, ...]
    share: float  # of newcomers
    errors: dict[tuple[str, int, int, Case], Errors] = field(default_factory=dict)
    std: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)  # of everybody
    there: dict[tuple[str, int], set[str]] = field(default_factory=dict)  # in every history
    datasets: dict[str, Dataset] = field(default_factory=dict)  # one of each source

    def add(self, group: Group, dataset: Dataset) -> None:
        """Who takes part; the whole history comes first."""
        place = group.source, group.seed
        if group.history == ALL:
            self.std[place] = dict(zip(dataset.ids, dataset.std.tolist(), strict=True))
            self.there[place] = set(dataset.ids)
            self.datasets[group.source] = dataset
        self.there[place] &= set(dataset.ids)

    def who(self, source: str, seed: int, new: bool) -> tuple[str, ...]:
        """The clients compared: all, or the newcomers that take part with every history."""
        everybody = tuple(self.std[source, seed])
        if not new:
            return everybody
        drawn = newcomers(everybody, self.share, seed)
        return tuple(client for client in drawn if client in self.there[source, seed])

    @property
    def lost(self) -> int:
        """Newcomers left out because some history is too short for them."""
        return sum(
            len(newcomers(tuple(std), self.share, seed)) - len(self.who(source, seed, True))
            for (source, seed), std in self.std.items()
        )

    def places(self) -> Iterator[tuple[str, Window, str]]:
        """Sources and windows, with their names."""
        for source, windows in self.windows.items():
            for window in windows:
                yield source, window, f"{title_of(source)}, {window.name}"

    def by_place(self, pairs: Mapping[str, Pair]) -> dict[str, dict[str, Change | None]]:
        """The changes by source and window, and by the label of the pair."""
        return {
            name: {label: self.change(source, window, pair) for label, pair in pairs.items()}
            for source, window, name in self.places()
        }

    def change(self, source: str, window: Window, pair: Pair) -> Change | None:
        """What the case of a pair changes; None where it or its base is not known.

        Means over the clients, then over seeds; a client drawn by several seeds counts once in the
        test. Errors are in units of each client's whole training part.
        """
        clients, days, better, means = dict[str, list[Floats]](), [], [], []
        for seed in self.seeds:
            who, place = self.who(source, seed, pair.new), (source, seed, pair.history)
            both = [self.errors.get((*place, each)) for each in (pair.case, pair.base)]
            known = [one for one in both if one is not None]
            if len(known) < 2 or not who:
                return None
            std = np.array([self.std[source, seed][client] for client in who])
            mse = np.stack([one.mse(who, std, window.days) for one in known])
            days.append(np.stack([one.daily(who, std, window.days) for one in known]))
            scored = np.isfinite(mse).all(axis=0)
            means.append(mse[:, scored].mean(axis=1))
            better.append(mse[0, scored] < mse[1, scored])
            for client, errors in zip(who, mse.T, strict=True):
                clients.setdefault(client, []).append(errors)
        own, other = np.mean(means, axis=0)
        by_client = np.array([np.mean(errors, axis=0) for errors in clients.values()]).T
        by_day = np.mean(days, axis=0)
        return Change(
            float(own),
            float(other),
            float(np.concatenate(better).mean()),
            int(np.isfinite(by_client).all(axis=0).sum()),
            paired_test(by_client),
            int(np.isfinite(by_day).all(axis=0).sum()),
            paired_test(by_day),
        )
