"""Panels on disk, exactly and with a checksum: what a run remembers of its clients' values.

Values that single precision holds exactly take 4 bytes each, others 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats
from fuels.data.panel import Panel
from fuels.errors import FuelsError
from fuels.storage.checkpoint import load_state, prefixed, replace_state

FORMAT = 1
VALUES, INPUT = "values", "input"
NOTHING: Mapping[str, Any] = {}
PLAIN = ("timezone", "name", "unit", "synthetic")  # fields that are facts as they are


def save_panel(
    path: Path,
    panel: Panel,
    arrays: Mapping[str, NDArray[Any]] = NOTHING,
    facts: Mapping[str, Any] = NOTHING,
) -> None:
    """Write a panel without its coordinates, with more arrays and facts; raises OSError."""
    about = {
        "format": FORMAT,
        "ids": list(panel.ids),
        "start": str(panel.start),
        "step": panel.step_seconds,
        **{name: getattr(panel, name) for name in PLAIN},
    }
    given = dict(arrays) | prefixed(INPUT, {n: compact(p.values) for n, p in panel.inputs.items()})
    if panel.inputs:
        about["inputs"] = {
            name: {"ids": list(source.ids), "start": str(source.start), "name": source.name}
            for name, source in panel.inputs.items()
        }
    replace_state(path, {**given, VALUES: compact(panel.values)}, {**facts, **about})


def read_panel_file(path: Path) -> tuple[Panel, dict[str, NDArray[Any]], dict[str, Any]]:
    """The panel, and the arrays and facts with it."""
    arrays, facts = load_state(path)
    if facts.get("format") != FORMAT or VALUES not in arrays:
        raise FuelsError(f"{path}: not a file of values that this version of fuels reads")
    panel = Panel(
        values=arrays.pop(VALUES).astype(np.float64),
        ids=tuple(facts["ids"]),
        start=np.datetime64(facts["start"], "s"),
        step=np.timedelta64(facts["step"], "s"),
        **{name: facts[name] for name in PLAIN},
    )
    inputs = {
        name: replace(
            panel,
            values=arrays.pop(f"{INPUT}/{name}").astype(np.float64),
            ids=tuple(about["ids"]),
            start=np.datetime64(about["start"], "s"),
            name=about["name"],
        )
        for name, about in facts.get("inputs", {}).items()
    }
    return replace(panel, inputs=inputs), arrays, facts


def compact(values: Floats) -> NDArray[Any]:
    """The values in single precision if that loses nothing."""
    single = values.astype(np.float32)
    same = np.array_equal(single.astype(np.float64), values, equal_nan=True)
    return single if same else np.ascontiguousarray(values)
