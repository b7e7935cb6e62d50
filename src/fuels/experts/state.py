"""The state of a mixture or of its intervals, as named arrays that can be saved and restored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError

State = dict[str, NDArray[np.float64]]


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
