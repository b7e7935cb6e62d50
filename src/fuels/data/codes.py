"""Values that look like a code for missing, such as -1 or 9999 outside the range of all others."""

from __future__ import annotations

import numpy as np

from fuels.arrays import Floats

_CODES = (
    *(-1.0, -9.0, -99.0, -999.0, -9999.0, -99999.0, -999999.0, -32768.0, -32767.0),
    *(99.0, 999.0, 9999.0, 99999.0, 999999.0, 9999999.0, 32767.0, 65535.0, 2147483647.0),
)
_LARGE = 999  # smaller codes count only if they occur more than once


def missing_codes(values: Floats) -> dict[float, int]:
    """Codes among the values, NaN if missing, and how often each occurs.

    A code lies outside the range of all other values: -1 below 0, others by at least the width of
    that range.
    """
    counts = {code: int(np.count_nonzero(values == code)) for code in _CODES}
    counts = {c: n for c, n in counts.items() if n > 1 or (n == 1 and abs(c) >= _LARGE)}
    if not counts:
        return {}
    others = ~np.isnan(values)
    for code in counts:
        others &= values != code
    if not others.any():
        return {}
    low = float(np.min(values, where=others, initial=np.inf))
    high = float(np.max(values, where=others, initial=-np.inf))
    width = high - low
    return {
        code: count
        for code, count in counts.items()
        if code > high + width or code < low - width or (code == -1 and low >= 0)
    }
