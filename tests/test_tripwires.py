"""The tripwires themselves: they see what they are there for, and nothing else."""

from __future__ import annotations

import importlib
import io
import json
import marshal
import os
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.tripwires import nothing_executed

PICKLED = pickle.dumps(pytest.approx)
OBJECTS = io.BytesIO()
np.save(OBJECTS, np.array([None, {}], dtype=object), allow_pickle=True)
CODE = compile("1 + 1", "x", "eval")
LOADS = pickle.loads  # as a module would have it that imported the name
EVAL = eval


@pytest.mark.parametrize(
    "touch",
    [
        lambda: pickle.loads(PICKLED),
        lambda: LOADS(PICKLED),
        lambda: pickle.Unpickler(io.BytesIO(PICKLED)).load(),
        lambda: np.load(io.BytesIO(OBJECTS.getvalue()), allow_pickle=True),
        lambda: np.lib.format.read_array(io.BytesIO(OBJECTS.getvalue()), allow_pickle=True),
        lambda: eval("1 + 1"),
        lambda: EVAL("1 + 1"),
        lambda: exec("1 + 1"),
        lambda: compile("1 + 1", "x", "eval"),
        lambda: marshal.loads(marshal.dumps(CODE)),
        lambda: importlib.import_module("colorsys"),
        lambda: __import__("this_module_is_not_there"),
        lambda: os.system("true"),
        lambda: os.popen("true"),
        lambda: subprocess.run(["true"], check=True),
        lambda: Path("/dev/null").read_bytes(),
    ],
)
def test_whatever_executes_or_opens_is_seen(touch: Callable[[], Any]) -> None:
    def swallowed() -> None:
        try:
            touch()
        except Exception:
            return

    with pytest.raises(AssertionError, match="something was executed"), nothing_executed():
        swallowed()


def test_reading_numbers_and_text_is_not_seen() -> None:
    with nothing_executed():
        read = json.loads('{"a": [1, 2]}')
        numbers = np.frombuffer(bytes(16), np.float32).reshape(2, 2).astype(np.float64)
    assert read == {"a": [1, 2]} and not numbers.any()


def test_what_the_block_raises_is_raised() -> None:
    with pytest.raises(KeyError), nothing_executed():
        raise KeyError
