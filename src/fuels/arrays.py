"""Types of NumPy arrays, by the numbers they hold, and a part of an array in time."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Datetimes = NDArray[np.datetime64]


def window(values: Floats, first: int, last: int) -> Floats:
    """Steps first..last-1 of values [.., step], which need not have all of them; NaN elsewhere."""
    found = np.full((*values.shape[:-1], last - first), np.nan)
    low, high = max(first, 0), min(last, values.shape[-1])
    if low < high:
        found[..., low - first : high - first] = values[..., low:high]
    return found
