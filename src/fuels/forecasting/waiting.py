"""Waiting for the live mean of a federation, which the site's worker stores with the run."""

from __future__ import annotations

import time
from pathlib import Path

from fuels.data.clock import format_moment
from fuels.data.panel import Panel
from fuels.sharing.received import FILE, ReceivedMean, read_received

LOOK = 0.1  # seconds between two looks at the file


def await_mean(folder: Path, panel: Panel, seconds: float) -> tuple[ReceivedMean | None, list[str]]:
    """The live mean once it covers the newest step of a panel, or as it is when time is up.

    And notes for the user.
    """
    newest, end = panel.times[-1], time.monotonic() + seconds
    seen = found = None
    notes: list[str] = []
    while True:
        stamp = _stamp(folder / FILE)
        if stamp != seen:
            seen, (found, notes) = stamp, read_received(folder)
            if found is not None and found.decided(newest + panel.standard_offset):
                return found, notes
        if not seconds:
            return found, notes
        if time.monotonic() >= end:
            when = format_moment(newest, panel.timezone)
            late = f"the live mean of {when} did not arrive within {seconds:g} s: it is not used"
            return found, [*notes, late]
        time.sleep(LOOK)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino
