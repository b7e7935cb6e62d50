"""Joining earlier and new data of the same clients into one panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fuels.data.clock import format_moment
from fuels.data.inputs import merged, overlaid
from fuels.data.panel import Panel
from fuels.errors import FuelsError


def join_panels(old: Panel, new: Panel) -> Panel:
    """The clients of `new` with the values of both panels, up to the end of `new`.

    Where both have a value, `new` takes precedence.
    """
    if old.step != new.step or old.timezone != new.timezone:
        raise FuelsError(
            f"{new.name}: the new data have a different step or time zone from {old.name}"
        )
    if (new.start - old.start) % old.step != np.timedelta64(0, "s"):
        raise FuelsError(
            f"{new.name}: the times of the new data do not fall on the steps of {old.name}"
        )
    start = min(old.start, new.start)
    length = int((new.times[-1] - start) // old.step) + 1
    values = overlaid(old, new, new.ids, start, length)
    return replace(new, values=values, start=start, inputs=merged(old.inputs, new.inputs))


def add_unknown_clients(panel: Panel, ids: Sequence[str]) -> Panel:
    """The panel plus those of `ids` that it lacks, with all their values missing."""
    known = set(panel.ids)
    absent = tuple(client for client in ids if client not in known)
    if not absent:
        return panel
    unknown = np.full((panel.length, len(absent)), np.nan)
    return replace(
        panel,
        values=np.concatenate([panel.values, unknown], axis=1),
        ids=(*panel.ids, *absent),
        coordinates=None,
    )


def describe_gap(old: Panel, new: Panel) -> list[str]:
    """A note about the steps between two panels, if there are any."""
    steps = int((new.start - old.times[-1]) // old.step) - 1
    if steps < 1:
        return []
    first, last = (
        format_moment(moment, new.timezone)
        for moment in (old.times[-1] + old.step, new.start - new.step)
    )
    span = f"at {first}" if steps == 1 else f"from {first} to {last} ({steps} steps)"
    return [
        f"{new.name}: no data {span}, between {old.name} and these data; add the values for that"
        " time to improve the forecasts"
    ]
