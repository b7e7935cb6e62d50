"""Types of NumPy arrays, by the numbers they hold, and a part of an array in time."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Datetimes = NDArray[np.datetime64]
