"""The state of a mixture or of its intervals, as named arrays that can be saved and restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats
from fuels.errors import FuelsError

State = dict[str, Floats]
COUNT = "steps"  # seen so far, by all clients: the only array without clients


def restored(like: State, arrays: Mapping[str, NDArray[Any]], what: str) -> State:
    """Copies of saved arrays, which must have the names and shapes of `like`."""
    for name, mine in like.items():
        if name not in arrays or arrays[name].shape != mine.shape:
            found = arrays[name].shape if name in arrays else "missing"
            raise FuelsError(
                f"the saved {what} does not fit: '{name}' is {found}, expected {mine.shape};"
                " clients, experts, levels or horizon have changed, so train again"
            )
    return {name: np.array(arrays[name], dtype=np.float64) for name in like}


def copied(state: State) -> State:
    return {name: array.copy() for name, array in state.items()}


def part_of(state: State, rows: slice) -> State:
    """The state of some clients; except for the step count, it shares the memory of the whole."""
    return {n: array.copy() if n == COUNT else array[rows] for n, array in state.items()}


def joined(parts: Sequence[State]) -> State:
    """The state of several groups of clients, one after the other."""
    first = parts[0]
    return {
        name: first[name] if name == COUNT else np.concatenate([part[name] for part in parts])
        for name in first
    }
