"""External inputs: columns known in advance, such as a weather forecast, events or prices.

Each input is a panel of its own that travels with the values (`Panel.inputs`) and may go on after
their end. An input without clients, as in a file without a client column, holds for all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fuels.arrays import Floats
from fuels.data.clock import format_step
from fuels.data.panel import Panel
from fuels.errors import FuelsError

Inputs = Mapping[str, Panel]
Adding = Callable[[Panel], Panel] | None  # what adds inputs to a panel, if anything does
EVERYONE = ("",)  # the ids of an input that holds for all clients
MOST = 12  # inputs


def values_at(source: Panel, ids: Sequence[str], start: np.datetime64, length: int) -> Floats:
    """An input of some clients from a time on, [client, time]; NaN where it is unknown."""
    at = int((source.start - start) // source.step)
    low, high = max(at, 0), min(at + source.length, length)
    column = {client: i for i, client in enumerate(source.ids)}
    common = column.get(*EVERYONE, -1)
    columns = np.array([column.get(client, common) for client in ids], dtype=np.int64)
    result = np.full((len(ids), length), np.nan)
    if high > low:
        rows = columns >= 0
        result[rows, low:high] = source.values[low - at : high - at, columns[rows]].T
    return result


def aligned(panel: Panel, offset: int) -> dict[str, Floats]:
    """The inputs of a panel's clients, [client, time] from `offset` steps before its start on.

    They go on after its end as far as they are known.
    """
    start = panel.start - offset * panel.step
    made = {}
    for name, source in panel.inputs.items():
        length = int((source.start - start) // source.step) + source.length
        length = max(length, offset + panel.length)
        if source.ids == EVERYONE:  # one row for all needs less memory
            row = values_at(source, EVERYONE, start, length)
            made[name] = np.broadcast_to(row, (len(panel.ids), length))
        else:
            made[name] = values_at(source, panel.ids, start, length)
    return made


def with_inputs(panel: Panel, found: Inputs) -> Panel:
    """The panel with inputs, which must be on its clock."""
    for name, source in found.items():
        _check_clock(panel, name, source)
    same_zone = {n: replace(source, timezone=panel.timezone) for n, source in found.items()}
    return replace(panel, inputs=merged(panel.inputs, same_zone))


def merged(old: Inputs, new: Inputs) -> dict[str, Panel]:
    """Inputs of both; where both have a value, that of `new` counts."""
    result = dict(old)
    for name, source in new.items():
        result[name] = _joined(old[name], source) if name in old else source
    return result


def since(inputs: Inputs, start: np.datetime64) -> dict[str, Panel]:
    """The inputs from a time on."""
    result = {}
    for name, source in inputs.items():
        drop = min(max(int((start - source.start) // source.step), 0), source.length - 1)
        first = source.start + drop * source.step
        result[name] = replace(source, values=source.values[drop:], start=first)
    return result


def digest(inputs: Inputs) -> bytes:
    """A digest of all inputs; empty without any."""
    if not inputs:
        return b""
    made = hashlib.blake2b(digest_size=8)
    for name in sorted(inputs):
        source = inputs[name]
        made.update(str((name, source.ids, source.start, source.step)).encode())
        made.update(np.ascontiguousarray(source.values).tobytes())
    return made.digest()


def missing_notes(
    panel: Panel, names: Sequence[str], ids: Sequence[str], horizon: int, period: int
) -> list[str]:
    """What the user should know about inputs that forecasts of these clients need and lack."""
    notes, end = [], panel.times[-1] + panel.step
    for name in names:
        missing = np.ones((len(ids), period + horizon), dtype=np.bool_)
        if name in panel.inputs:
            begin = end - period * panel.step
            missing = np.isnan(values_at(panel.inputs[name], ids, begin, period + horizon))
        if not missing.any():
            continue
        past, ahead = (int(part.any(axis=0).sum()) for part in np.split(missing, [period], axis=1))
        some = int(missing.any(axis=1).sum())
        spans = [f"{past} of the last {period} steps"] if past else []
        spans += [f"{ahead} of the {horizon} steps ahead"] if ahead else []
        of = f" for {some} of {len(ids)} clients" if some < len(ids) else ""
        notes.append(
            f"input {name} has no value at {' and '.join(spans)}{of}: forecasts there"
            " do without it (--inputs-file gives values)"
        )
    return notes


def without_blank_end(panel: Panel) -> Panel:
    """The panel up to its last step with a value; later rows of a file may only hold inputs."""
    known = np.flatnonzero(~np.isnan(panel.values).all(axis=1))
    return panel if not len(known) else replace(panel, values=panel.values[: int(known[-1]) + 1])


def _joined(old: Panel, new: Panel) -> Panel:
    ids = tuple(dict.fromkeys([*old.ids, *new.ids]))
    ids = tuple(i for i in ids if (i,) != EVERYONE) or EVERYONE
    start, end = min(old.start, new.start), max(old.times[-1], new.times[-1])
    values = overlaid(old, new, ids, start, int((end - start) // new.step) + 1)
    return replace(new, values=values, ids=ids, start=start)


def overlaid(
    old: Panel, new: Panel, ids: Sequence[str], start: np.datetime64, length: int
) -> Floats:
    """Values [time, client] of both panels; where both have one, that of `new` counts."""
    known, added = (values_at(panel, ids, start, length) for panel in (old, new))
    return np.ascontiguousarray(np.where(np.isnan(added), known, added).T)


def _check_clock(panel: Panel, name: str, source: Panel) -> None:
    """Refuse an input that has another step, zone or clock than the values."""
    place = f"{source.name}: input {name}"
    known = np.flatnonzero(~np.isnan(source.values).all(axis=1))
    apart = source.step
    if apart == panel.step and len(known) > 2:
        apart = apart * int(np.diff(known).min())
    if apart != panel.step:
        raise FuelsError(
            f"{place} has a value every {format_step(apart)}, but the step of {panel.name} is"
            f" {format_step(panel.step)}: give one value for each step"
        )
    if (source.timezone is None) != (panel.timezone is None):
        theirs, ours = (
            "have a time zone" if zone else "have none"
            for zone in (source.timezone, panel.timezone)
        )
        raise FuelsError(
            f"{place}: its times {theirs}, and those of {panel.name} {ours}: write both the same"
            " way, or give --timezone"
        )
    if (source.start - panel.start) % panel.step != np.timedelta64(0, "s"):
        raise FuelsError(
            f"{place}: its times do not fall on the steps of {panel.name}, which are"
            f" {format_step(panel.step)} apart"
        )
