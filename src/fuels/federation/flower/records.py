"""Bytes as the content of a Flower message, and back."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, RecordDict

from fuels.errors import FuelsError

RECORD, FIELD, STYPE = "fuels", "payload", "fuels.envelope"


def pack(content: bytes) -> RecordDict:
    """Bytes as the one array of a message; Flower sends it in pieces without reading it."""
    array = Array(dtype="uint8", shape=(len(content),), stype=STYPE, data=content)
    return RecordDict({RECORD: ArrayRecord({FIELD: array})})


def unpack(records: RecordDict) -> bytes:
    """The bytes of a message; anything else in it is refused."""
    record = records.get(RECORD)
    if len(records) != 1 or not isinstance(record, ArrayRecord) or set(record) != {FIELD}:
        raise FuelsError("the message is not in this format")
    return bytes(record[FIELD].data)
