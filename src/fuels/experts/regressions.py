"""All regressions of a horizon at once, fitted and forecast by compiled code.

The references are in experts/linear.py and experts/shared.py: one expert after the other, with
every input as an array. The results are the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fuels.arrays import Flags, Floats, Integers
from fuels.data.calendar import MOST_SLOTS
from fuels.experts.groups import by_groups
from fuels.experts.history import Columns, History
from fuels.experts.linear import Arrays, RidgeExpert
from fuels.experts.ridge import PENALTIES, SHRINKAGES
from fuels.experts.shared import declared_by, slots
from fuels.kernels import lagged, ridge
from fuels.sharing.live_mean import CLIP
from fuels.sharing.statistics import Columns as Declared


@dataclass(frozen=True)
class Plan:
    """The lags that some ridge experts need together, and where each finds its own."""

    experts: Sequence[RidgeExpert]
    columns: Sequence[Columns]  # of each expert
    lags: Integers
    live: Integers  # lags of the live mean

    @classmethod
    def of(cls, experts: Sequence[RidgeExpert], history: History, horizon: int) -> Plan:
        columns = [expert.columns(history, horizon) for expert in experts]
        lags = sorted({lag for one in columns for lag in one.lags})
        live = sorted({lag for one in columns for lag in one.live})
        return cls(experts, columns, np.array(lags, np.int64), np.array(live, np.int64))

    @property
    def both(self) -> tuple[Integers, Integers]:
        return self.lags, self.live

    def places(self, r: int) -> tuple[list[int], list[int]]:
        """The positions of an expert's lags and of its lags of the live mean, which come last."""
        own = np.searchsorted(self.lags, self.columns[r].lags)
        means = np.searchsorted(self.live, self.columns[r].live) + len(self.lags)
        return own.tolist(), means.tolist()

    def pairs(self, r: int, base: int) -> list[tuple[int, int]]:
        """An expert's columns and its target as sums of two columns of the kernel's row."""
        own, means = self.places(r)
        newest, target = len(self.lags), len(self.lags) + len(self.live)
        if self.experts[r].change:
            found = [(i, -1) for i in [*own[1:], *means[1:]]]
        else:
            found = [(i, 0 if i else -1) for i in own]
            found += [(i, newest if i > newest else -1) for i in means]
        found += [(target + 1 + i, -1) for i in range(len(self.columns[r].inputs))]
        if base >= 0:
            return [*found, (target + 1 + base, -1)]
        level = not self.experts[r].change and len(self.lags)
        return [*found, (target, 0 if level else -1)]


def fit_ridges(
    experts: Sequence[RidgeExpert],
    history: History,
    end: int,
    horizon: int,
    bases: Mapping[str, Floats],
) -> dict[str, Arrays]:
    """As in experts/linear.py."""
    learned: dict[str, Arrays] = {}
    for inputs in dict.fromkeys(expert.inputs for expert in experts):
        together = [expert for expert in experts if expert.inputs == inputs]
        learned |= _fit_together(together, inputs, history, end, horizon, bases)
    return {expert.name: learned[expert.name] for expert in experts}


def _fit_together(
    experts: Sequence[RidgeExpert],
    inputs: Sequence[str],
    history: History,
    end: int,
    horizon: int,
    bases: Mapping[str, Floats],
) -> dict[str, Arrays]:
    """Fit experts with the same external inputs."""
    plan, names = Plan.of(experts, history, horizon), list(bases) if not inputs else []
    given = [bases[name][:, :end] for name in names]
    scales = history.input_scales(inputs, end) if inputs else None
    if scales is not None:
        # The kernel subtracts a base from the truth, so what remains of this one is the input.
        wanted = plan.columns[0].inputs
        made = history.input_columns(wanted, scales, 0, end)
        given = [history.observed[:, :end] - column for column in made]
    needs, member, pairs = [], [], []
    for r, expert in enumerate(experts):
        base = names.index(expert.towards) if expert.towards else -1
        bits = [*plan.places(r)[0], *plan.places(r)[1]]
        further = range(len(given)) if inputs else [base] if base >= 0 else []
        bits += [len(plan.lags) + len(plan.live) + i for i in further]
        need = sum(1 << bit for bit in bits)
        if need not in needs:
            needs.append(need)
        member.append(needs.index(need))
        pairs.append(plan.pairs(r, base))
    columns = np.full((len(pairs), max(map(len, pairs)), 2), -1, dtype=np.int64)
    for r, pair in enumerate(pairs):
        columns[r, : len(pair)] = pair
    widths = np.array([len(pair) for pair in pairs])
    calendar = np.array([one.calendar for one in plan.columns])
    penalties = np.stack([SHRINKAGES if expert.towards else PENALTIES for expert in experts])
    slot, free, slots = clock(history, 0, end)
    width = columns.shape[1] - 1 + 2 * slots
    weights = np.zeros((history.clients, len(experts), width))
    constants, rows = np.zeros(weights.shape[:2]), np.zeros(weights.shape[:2])
    targets = np.stack(given, axis=1) if given else np.zeros((history.clients, 0, end))
    observed, live = np.ascontiguousarray(history.observed), live_mean(history)
    parts = (np.array(needs), np.array(member), columns, widths, calendar, penalties)
    ridge.fit(
        np.ascontiguousarray(history.filled), observed, live, targets, end, plan.both, slot, free,
        slots, parts, weights, constants, rows,
    )  # fmt: skip
    learned: dict[str, Arrays] = {}
    for r, expert in enumerate(experts):
        used = widths[r] - 1 + 2 * slots * calendar[r]
        own = weights[:, r, :used].copy()
        if expert.may_lack_rows:
            own[rows[:, r] < used] = np.nan  # too few rows to fit: the expert abstains
        learned[expert.name] = {"weights": own, "constant": constants[:, r].copy()}
        if scales is not None:
            learned[expert.name]["scales"] = scales
    return learned


def forecast_ridges(
    experts: Sequence[RidgeExpert],
    learned: Mapping[str, Arrays],
    history: History,
    first: int,
    last: int,
    horizon: int,
) -> dict[str, Floats]:
    """As in experts/linear.py."""
    plan = Plan.of(experts, history, horizon)
    slot, free, slots = clock(history, first, last)
    shape = history.clients, len(experts)
    uses = np.zeros((len(experts), len(plan.lags) + len(plan.live)), dtype=np.bool_)
    weights, by_time = np.zeros((*shape, uses.shape[1])), np.zeros((*shape, 2 * slots))
    for r, expert in enumerate(experts):
        fitted, (own, means) = learned[expert.name], plan.places(r)
        given, dense = fitted["weights"], len(own) + len(means)
        if expert.change:
            dense -= 1 + bool(means)
            weights[:, r, own[1:]] = given[:, : len(own) - 1]
            weights[:, r, means[1:]] = given[:, len(own) - 1 : dense]
            weights[:, r, own[0]] = float(not expert.towards) - given[:, : len(own) - 1].sum(axis=1)
            if means:
                weights[:, r, means[0]] = -given[:, len(own) - 1 : dense].sum(axis=1)
        else:
            weights[:, r, [*own, *means]] = given[:, :dense]
        uses[r, [*own, *means]] = True
        dense += len(plan.columns[r].inputs)
        by_time[:, r] = fitted["constant"][:, None]
        if expert.calendar:
            every, extra = given[:, dense : dense + slots], given[:, dense + slots :]
            by_time[:, r] += np.concatenate([every, every + extra], axis=1)
    out = np.empty((len(experts), history.clients, last - first))
    lagged.forecast(
        np.ascontiguousarray(history.filled), live_mean(history), first, plan.both,
        slot + slots * free, uses, weights, by_time, out,
    )  # fmt: skip
    for r, expert in enumerate(experts):
        if expert.inputs:
            fitted, wanted = learned[expert.name], plan.columns[r].inputs
            columns = history.input_columns(wanted, fitted["scales"], first, last)
            before = fitted["weights"].shape[1] - len(wanted) - 2 * slots * expert.calendar
            for i, column in enumerate(columns, before):
                out[r] += fitted["weights"][:, i, None] * column
    return {expert.name: made for expert, made in zip(experts, out, strict=True)}


def forecast_pooled(
    fitted: Arrays, history: History, first: int, last: int, horizon: int
) -> Floats:
    """As in experts/shared.py."""
    columns = declared_by(fitted, history, horizon)
    inputs, slot = fitted["inputs"], slots(history, first, last)
    lags = np.array([*columns.lags, *columns.live_lags], np.int64)
    live = np.arange(len(lags)) >= len(columns.lags)
    used = np.any(inputs != 0, axis=0)
    weights = np.ascontiguousarray(inputs[slot][:, used].T)
    free = history.calendar.free(history.times(first, last))
    start = fitted["free"][slot] * free + fitted["constant"][slot]
    out = np.empty((history.clients, last - first))
    filled = np.ascontiguousarray(history.filled)
    lagged.forecast_alike(
        filled, live_mean(history), first, lags[used], live[used], weights, start, out
    )
    return out


def contributions(columns: Declared, history: History, first: int, last: int) -> Sequence[Floats]:
    """As in experts/shared.py."""
    slot, free = slots(history, first, last), history.calendar.free(history.times(first, last))
    lags = np.array(columns.lags, np.int64), np.array(columns.live_lags, np.int64)
    live = live_mean(history)

    def add(rows: slice) -> Floats:
        out = np.zeros((len(live[rows]), columns.slots, columns.numbers // columns.slots))
        filled = np.ascontiguousarray(history.filled[rows])
        observed = np.ascontiguousarray(history.observed[rows])
        lagged.contributions(filled, observed, live[rows], first, last, lags, slot, free, CLIP, out)
        return out

    return [own for part in by_groups(history.clients, add) for own in part]


def clock(history: History, first: int, last: int) -> tuple[Integers, Flags, int]:
    """The slot of steps first..last-1, whether each is on a free day, and the number of slots."""
    free = history.calendar.free(history.times(first, last))
    return slots(history, first, last), free, min(history.period, MOST_SLOTS)


def live_mean(history: History) -> Floats:
    """The live mean [client, time], all missing if there is none."""
    if history.live is None:
        return np.full(history.observed.shape, np.nan)
    return np.ascontiguousarray(history.live)
