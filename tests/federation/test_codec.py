"""The bytes that travel: what is written is read back, and nothing else is ever accepted.

Every generated message is read between tripwires: whatever it holds, reading it executes nothing.
"""

from __future__ import annotations

import io
import json
import marshal
import os
import pickle
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fuels.errors import FuelsError
from fuels.federation.codec import HEAD, MAGIC, Envelope, decode, encode
from helpers.tripwires import nothing_executed

LIMIT = 2**20


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("true",)


def saved_objects() -> bytes:
    """An array of objects as numpy writes it: with a pickle in it."""
    file = io.BytesIO()
    np.save(file, np.array([Bomb()], dtype=object), allow_pickle=True)
    return file.getvalue()


# What is code to one reader or another stands among the generated texts and bytes.
CODE = st.sampled_from(["__import__('os').system('true')", "!!python/object/apply:os.system", "|O"])
BINARY_CODE = st.sampled_from(
    [pickle.dumps(Bomb()), saved_objects(), marshal.dumps(compile("1 + 1", "x", "eval"))]
)
NAMES = st.text(min_size=1, max_size=12) | CODE
ARRAYS = st.dictionaries(
    NAMES,
    st.sampled_from(["float32", "float64", "int64"]).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, max_side=4))
    ),
    max_size=3,
)
ENVELOPES = st.builds(
    Envelope,
    kind=st.sampled_from(["hello", "train", "evaluate", "finish"]),
    run=NAMES,
    round=st.integers(0, 10**9),
    site=NAMES,
    facts=st.dictionaries(NAMES, st.integers() | NAMES | st.lists(NAMES), max_size=3),
    arrays=ARRAYS,
)


def read(content: bytes) -> Envelope:
    with nothing_executed():
        return decode(content, LIMIT)


def same(one: Envelope, other: Envelope) -> bool:
    fields = ("kind", "run", "round", "site", "facts")
    return (
        all(getattr(one, field) == getattr(other, field) for field in fields)
        and list(one.arrays) == list(other.arrays)
        and all(
            a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
            for a, b in zip(one.arrays.values(), other.arrays.values(), strict=True)
        )
    )


@settings(max_examples=100, deadline=None)
@given(ENVELOPES)
def test_what_is_written_is_read_back(envelope: Envelope) -> None:
    assert same(read(encode(envelope)), envelope)


@settings(max_examples=250, deadline=None)
@given(ENVELOPES, st.data())
def test_a_damaged_message_is_refused_or_read_never_worse(
    envelope: Envelope, data: st.DataObject
) -> None:
    """Bytes changed, cut or added: either FuelsError or a well-formed envelope."""
    content = bytearray(encode(envelope))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    tail = data.draw(st.binary(max_size=8) | BINARY_CODE)
    for damaged in (bytes(content), bytes(content[:cut]), bytes(content) + tail):
        try:
            found = read(damaged)
        except FuelsError:
            continue
        assert found.kind in ("hello", "train", "evaluate", "finish")
        assert all(str(a.dtype) in ("float32", "float64", "int64") for a in found.arrays.values())


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200) | BINARY_CODE)
def test_arbitrary_bytes_are_no_message(content: bytes) -> None:
    for whole in (content, MAGIC + content, MAGIC + struct.pack("<I", len(content)) + content):
        with pytest.raises(FuelsError):
            read(whole)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | CODE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
FIELDS = ("kind", "run", "round", "site", "facts", "arrays")


@settings(max_examples=250, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON), st.binary(max_size=32) | BINARY_CODE)
def test_any_json_header_is_refused_or_read(header: dict[str, Any], body: bytes) -> None:
    complete = {
        "kind": "train", "run": "r", "round": 1, "site": "s", "facts": {}, "arrays": [],
    } | header  # fmt: skip
    text = json.dumps(complete).encode()
    content = MAGIC + struct.pack("<I", len(text)) + text + body
    try:
        found = read(content)
    except FuelsError:
        return
    assert isinstance(found.round, int) and isinstance(found.facts, dict)


@pytest.mark.parametrize("shape", [[0, 2**39, 2**39], [2**39, 0, 2**39], [2**20, 2**20, 0]])
def test_an_axis_of_zero_hides_no_other(shape: list[int]) -> None:
    header = {
        "kind": "train", "run": "r", "round": 1, "site": "s", "facts": {},
        "arrays": [["a", "float32", shape]],
    }  # fmt: skip
    text = json.dumps(header).encode()
    with pytest.raises(FuelsError, match="an unacceptable shape"):
        decode(MAGIC + struct.pack("<I", len(text)) + text, LIMIT)


@pytest.mark.parametrize("dtype", ["object", "O", "|O", "V8", "float32,object", "M8[ns]"])
def test_an_array_is_of_plain_numbers(dtype: str) -> None:
    content = message({**GOOD, "arrays": [["a", dtype, [1]]]}, pickle.dumps(Bomb()))
    with pytest.raises(FuelsError, match="an unacceptable dtype"):
        read(content)


def message(header: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return MAGIC + struct.pack("<I", len(text)) + text + body


GOOD: dict[str, Any] = {
    "kind": "train", "run": "r", "round": 1, "site": "s", "facts": {}, "arrays": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not in this format"),
        (b"\x93NUMPY" + bytes(80), "not in this format"),
        (MAGIC + struct.pack("<I", 2**31), "truncated or too long"),
        (MAGIC + struct.pack("<I", 4) + b"\xff\xfe\xfd\xfc", "not JSON"),
        (message({**GOOD, "code": "x"}), "missing or unexpected fields"),
        (message({**GOOD, "round": True}), "round"),
        (message({**GOOD, "round": -1}), "out of range"),
        (message({**GOOD, "kind": "exec"}), "unknown kind"),
        (message({**GOOD, "arrays": [["a", "object", [1]]]}, bytes(8)), "dtype"),
        (message({**GOOD, "arrays": [["a", "float32", [-1]]]}), "shape"),
        (message({**GOOD, "arrays": [["a", "float32", [2**50]]]}), "shape"),
        (message({**GOOD, "arrays": [["a", "float32", [2**39]]]}), "truncated"),
        (message({**GOOD, "arrays": [["a", "float32", [1]]]}, bytes(5)), "follow the last"),
        (message({**GOOD, "arrays": [["a", "float32", [0]]] * 2}), "twice"),
        (message({**GOOD, "arrays": [["a", "float32", [0]]] * 65}), "at most 64"),
        (message({**GOOD, "arrays": [["a", "float32", [1, 1, 1, 1, 1]]]}, bytes(4)), "shape"),
    ],
)
def test_refused_with_its_reason(content: bytes, reason: str) -> None:
    with pytest.raises(FuelsError, match=reason):
        decode(content, LIMIT)


def test_the_size_is_looked_at_before_anything_else() -> None:
    with pytest.raises(FuelsError, match="2048 bytes; at most 2047"):
        decode(bytes(2048), 2047)


def test_overhead_is_a_header() -> None:
    """25 clients' prototypes of 6144 numbers take 25 x 24576 bytes and less than one percent."""
    ids = [f"cell-{i}" for i in range(25)]
    arrays = {"upload/prototype": np.zeros((25, 24, 256), np.float32)}
    content = encode(Envelope("train", "run", 1, "north", {"clients": ids}, arrays))
    assert 25 * 24576 < len(content) < 1.01 * 25 * 24576
    assert len(content) - 25 * 24576 > HEAD


def test_an_object_array_cannot_be_written() -> None:
    with pytest.raises(FuelsError, match="object"):
        encode(Envelope("train", "r", 1, "s", {}, {"a": np.array([None])}))
