"""The format of messages between a site and the server: a JSON header, then plain arrays.

Layout: 8 bytes that identify the format, the length of the header (4 bytes, little endian), the
JSON header, then the arrays, little endian, in the header's order. The format cannot express code,
so decoding never executes any. The decoder trusts nothing: it caps the size before it parses, and
header and body must match to the byte.

Safetensors would not replace these checks: it accepts a name twice and has no limit of ours on
header, arrays or axes. It also decodes more slowly (40 MB: 120 ms against 34 ms).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError

MAGIC = b"FUELS\0\0\1"
HEAD = len(MAGIC) + 4
DTYPES = ("float32", "float64", "int64")
MOST_HEADER = 4 * 2**20  # bytes; 100 000 client names fit
MOST_ARRAYS = 64
MOST_AXES = 4
MOST_ROUND = 10**9
KINDS = ("hello", "sum", "check", "train", "evaluate", "finish", "live", "live sum")


@dataclass(frozen=True)
class Envelope:
    """One message: its kind and origin, some facts, and arrays."""

    kind: str  # one of KINDS; a reply has the kind of its request
    run: str
    round: int
    site: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def encode(envelope: Envelope) -> bytes:
    """The envelope as bytes; only dtypes that `decode` accepts can be written."""
    layout, bodies = [], []
    for name, array in envelope.arrays.items():
        if str(array.dtype) not in DTYPES:
            raise FuelsError(f"array {name} is {array.dtype}; only {', '.join(DTYPES)} can travel")
        layout.append([name, str(array.dtype), list(array.shape)])
        plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        bodies.append(plain.reshape(-1).view(np.uint8).data)  # not copied before the join
    fields = {**vars(envelope), "facts": dict(envelope.facts), "arrays": layout}
    header = json.dumps(fields, separators=(",", ":")).encode()
    return b"".join([MAGIC, struct.pack("<I", len(header)), header, *bodies])


def decode(data: bytes, limit: int) -> Envelope:
    """The envelope in `data`; raises FuelsError with the reason if the message is malformed."""
    if len(data) > limit:
        raise FuelsError(f"the message has {len(data)} bytes; at most {limit} are accepted")
    if len(data) < HEAD or data[: len(MAGIC)] != MAGIC:
        raise FuelsError("the message is not in this format")
    (length,) = struct.unpack_from("<I", data, len(MAGIC))
    if length > min(MOST_HEADER, len(data) - HEAD):
        raise FuelsError("the header of the message is truncated or too long")
    header = _header(data[HEAD : HEAD + length])
    arrays: dict[str, NDArray[Any]] = {}
    position = HEAD + length
    for name, dtype, shape in _layout(header["arrays"]):
        if name in arrays:
            raise FuelsError(f"array {name!r} appears twice")
        kind = np.dtype(dtype).newbyteorder("<")
        end = position + prod(shape) * kind.itemsize
        if end > len(data):
            raise FuelsError(f"array {name!r} is truncated")
        flat = np.frombuffer(data, dtype=kind, count=prod(shape), offset=position)
        arrays[name] = flat.reshape(shape).astype(dtype)
        position = end
    if position != len(data):
        raise FuelsError(f"{len(data) - position} bytes follow the last array")
    return Envelope(**{**header, "arrays": arrays})


_FIELDS: dict[str, type] = {
    "kind": str, "run": str, "round": int, "site": str, "facts": dict, "arrays": list,
}  # fmt: skip


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError):
        raise FuelsError("the header of the message is not JSON") from None
    if not isinstance(header, dict) or set(header) != set(_FIELDS):
        raise FuelsError("the header of the message has missing or unexpected fields")
    for key, kind in _FIELDS.items():
        if not isinstance(header[key], kind) or isinstance(header[key], bool):
            raise FuelsError(f"the field {key} of the header is not of type {kind.__name__}")
    if header["kind"] not in KINDS:
        raise FuelsError("the message is of an unknown kind")
    if not 0 <= header["round"] <= MOST_ROUND:
        raise FuelsError("the round of the message is out of range")
    return header


def _layout(entries: list[Any]) -> list[tuple[str, str, tuple[int, ...]]]:
    if len(entries) > MOST_ARRAYS:
        raise FuelsError(
            f"the message lists {len(entries)} arrays; at most {MOST_ARRAYS} are accepted"
        )
    layout = []
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 3:
            raise FuelsError("an array of the message is not described by name, dtype and shape")
        name, dtype, shape = entry
        if not isinstance(name, str) or not isinstance(dtype, str) or dtype not in DTYPES:
            raise FuelsError(f"array {str(name)[:60]!r} has an unacceptable dtype")
        if not isinstance(shape, list) or len(shape) > MOST_AXES:
            raise FuelsError(f"array {name!r} has an unacceptable shape")
        if any(type(size) is not int or not 0 <= size < 2**40 for size in shape):
            raise FuelsError(f"array {name!r} has an unacceptable shape")
        if prod(max(size, 1) for size in shape) >= 2**40:  # an axis of 0 hides how long others are
            raise FuelsError(f"array {name!r} has an unacceptable shape")
        layout.append((name, dtype, tuple(shape)))
    return layout


def text_list(value: Any, what: str) -> tuple[str, ...]:
    """A list of strings from a header's facts."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise FuelsError(f"{what} is not a list of strings")
    return tuple(value)
