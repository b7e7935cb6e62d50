"""Earlier and new data of the same clients become one panel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fuels.data.joining import join_panels
from fuels.data.panel import Panel
from fuels.errors import FuelsError


def test_join_panels_by_hand() -> None:
    def panel_at(day: int, values: list[list[float]], ids: tuple[str, ...]) -> Panel:
        start = np.datetime64("2024-01-01T00", "s") + np.timedelta64(day, "D")
        return Panel(np.array(values), ids, start, np.timedelta64(86400, "s"))

    old = panel_at(0, [[1, 10], [2, 20], [3, 30]], ("a", "b"))
    new = panel_at(2, [[np.nan, 0], [5, 0]], ("a", "c"))
    both = join_panels(old, new)
    assert both.ids == ("a", "c") and both.start == old.start
    np.testing.assert_array_equal(both.values, [[1, np.nan], [2, np.nan], [3, 0], [5, 0]])
    early = join_panels(old, panel_at(-4, [[7], [8]], ("a",)))  # ends before the old ones begin
    np.testing.assert_array_equal(early.values, [[7], [8]])
    with pytest.raises(FuelsError, match="do not fall on the steps"):
        join_panels(old, replace(new, start=new.start + np.timedelta64(1800, "s")))
