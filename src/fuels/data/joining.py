"""Old and new data of the same clients as one panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fuels.data.clock import format_moment
from fuels.data.panel import Panel
from fuels.errors import FuelsError


def joined(old: Panel, new: Panel) -> Panel:
    """One panel of two that follow or overlap, up to the end of the new one, with its clients.

    Where both know a value the newer panel counts.
    """
    if old.step != new.step or old.timezone != new.timezone:
        raise FuelsError(
            f"{new.name}: the new data have another step or time zone than {old.name} before them"
        )
    if (new.start - old.start) % old.step != np.timedelta64(0, "s"):
        raise FuelsError(
            f"{new.name}: the times of the new data do not lie on the clock of {old.name}"
        )
    start = min(old.start, new.start)
    length = int((new.times[-1] - start) // old.step) + 1
    values = np.full((length, len(new.ids)), np.nan)
    at = int((old.start - start) // old.step)
    known = min(old.length, max(length - at, 0))  # old data may lie after the end of the new
    column = {client: i for i, client in enumerate(old.ids)}
    for i, client in enumerate(new.ids):
        if client in column:
            values[at : at + known, i] = old.values[:known, column[client]]
    at = int((new.start - start) // old.step)
    block = values[at : at + new.length]
    np.copyto(block, new.values, where=~np.isnan(new.values))
    return replace(new, values=values, start=start)


def with_absent(panel: Panel, ids: Sequence[str]) -> Panel:
    """The panel with those of the clients it does not have, of whom it knows nothing."""
    there = set(panel.ids)
    absent = tuple(client for client in ids if client not in there)
    if not absent:
        return panel
    unknown = np.full((panel.length, len(absent)), np.nan)
    return replace(
        panel,
        values=np.concatenate([panel.values, unknown], axis=1),
        ids=(*panel.ids, *absent),
        coordinates=None,
    )


def unknown_between(old: Panel, new: Panel) -> list[str]:
    """A sentence about the steps between two panels, where there are any."""
    steps = int((new.start - old.times[-1]) // old.step) - 1
    if steps < 1:
        return []
    first, last = (
        format_moment(moment, new.timezone)
        for moment in (old.times[-1] + old.step, new.start - new.step)
    )
    span = f"at {first}" if steps == 1 else f"from {first} to {last} ({steps} steps)"
    return [
        f"{new.name}: nothing is known {span}, between the data before and these; give the values"
        " of that time too and forecasts will be better"
    ]
