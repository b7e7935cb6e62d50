"""The compiled inner loop over raw Telecom Italia records: text in, sums out.

A record is a line of eight fields between tabs: square id, interval start in ms since 1970,
country code, sms in, sms out, call in, call out, internet; an empty field means nothing recorded.
The loop checks every byte, so that a damaged line is reported rather than read as zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats, Integers
from fuels.kernels.jit import compiled

DONE, MALFORMED, ELSEWHERE, NO_NUMBER = 0, 1, 2, 3

_MAX_DIGITS = 18  # more do not fit an int64, and a float64 keeps no more than 17
_REACH = 60
_POWERS = 10.0 ** np.arange(_REACH + 1)


def _sum_lines(
    text: NDArray[np.uint8],
    begin: int,
    end: int,
    shift_ms: int,
    step_ms: int,
    first_bin: int,
    slots: Integers,
    sums: Floats,
    seen: NDArray[np.uint8],
    span: Integers,
) -> tuple[int, int, int, Any, Any]:
    """Add the records in text[begin:end], which ends with a line feed, to a block.

    Field f is added to sums [slot, bin, cell] in slot slots[f], or skipped if that is negative;
    seen [bin, cell] marks what has a record; span holds the first and last time in ms. Returns
    (status, position, lines read, bin, cell); ELSEWHERE means that the line at `position` is
    outside the block, at this bin and cell.
    """
    at, lines = begin, 0
    while at < end:
        line = at
        if text[at] == 10:  # an empty line
            at += 1
            lines += 1
            continue
        cell, time = np.int64(0), np.int64(0)
        for field in range(3):  # square id, time, country code
            number, start = np.int64(0), at
            while 48 <= text[at] <= 57:
                number = number * 10 + (text[at] - 48)
                at += 1
            digits = at - start
            if text[at] != 9 or digits > _MAX_DIGITS or (digits == 0 and field < 2):
                return MALFORMED, line, lines, 0, 0
            if field == 0:
                cell = number
            elif field == 1:
                time = number
            at += 1
        row = (time + shift_ms) // step_ms - first_bin
        if row < 0 or row >= sums.shape[1] or cell >= sums.shape[2]:
            return ELSEWHERE, line, lines, row + first_bin, cell
        for field in range(5):
            number, digits, exponent, start = np.int64(0), 0, 0, at
            while 48 <= text[at] <= 57:
                number = number * 10 + (text[at] - 48)
                digits += 1
                at += 1
            if digits > _MAX_DIGITS:
                return NO_NUMBER, line, lines, 0, 0
            if text[at] == 46:  # "."
                at += 1
                while 48 <= text[at] <= 57:
                    if digits < _MAX_DIGITS:
                        number = number * 10 + (text[at] - 48)
                        exponent -= 1
                    digits += 1
                    at += 1
            if at > start and digits == 0:
                return NO_NUMBER, line, lines, 0, 0
            if digits > 0 and (text[at] == 101 or text[at] == 69):  # "e" or "E"
                at += 1
                sign, power, first = 1, np.int64(0), at  # uint8 would overflow in plain Python
                if text[at] == 45 or text[at] == 43:
                    sign = -1 if text[at] == 45 else 1
                    at += 1
                    first = at
                while 48 <= text[at] <= 57 and at - first < 4:
                    power = power * 10 + int(text[at] - 48)
                    at += 1
                if at == first:
                    return NO_NUMBER, line, lines, 0, 0
                exponent += int(sign * power)
            if field == 4 and text[at] == 13:  # a carriage return before the line feed
                at += 1
            if text[at] != (10 if field == 4 else 9):
                # Fields are missing if the line ends early; any other byte is part of a bad number.
                early = text[at] == 9 or text[at] == 10 or text[at] == 13
                return MALFORMED if early else NO_NUMBER, line, lines, 0, 0
            if exponent < -_REACH or exponent > _REACH:
                return NO_NUMBER, line, lines, 0, 0
            if number != 0 and slots[field] >= 0:
                # Dividing by an exact power of ten rounds once, so that 0.3 is read as 0.3.
                scale = _POWERS[abs(exponent)]
                sums[slots[field], row, cell] += number / scale if exponent < 0 else number * scale
            at += 1
        seen[row, cell] = 1
        span[0] = min(span[0], time)
        span[1] = max(span[1], time)
        lines += 1
    return DONE, at, lines, 0, 0


sum_lines: Any = compiled(
    ahead="(u1[::1], i8, i8, i8, i8, i8, i8[::1], f8[:, :, ::1], u1[:, ::1], i8[::1])"
)(_sum_lines)
