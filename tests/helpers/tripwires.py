"""Tripwires around whatever reads what came from outside: it must not come near executing anything.

Two nets, since each has holes. The interpreter itself reports, to a hook that cannot be evaded from
Python, every code that is compiled or executed, every class that a pickle names, every import,
process, library and file. And the usual ways to all that are replaced by something that remembers.
"""

from __future__ import annotations

import _pickle
import builtins
import importlib
import marshal
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

EVENTS = {
    "code.__new__", "compile", "cpython.run_command", "ctypes.dlopen", "ctypes.dlsym", "exec",
    "import", "marshal.load", "marshal.loads", "open", "os.exec", "os.fork", "os.forkpty",
    "os.posix_spawn", "os.spawn", "os.system", "pickle.find_class", "socket.connect",
    "subprocess.Popen",
}  # fmt: skip
WAYS: tuple[tuple[Any, str], ...] = (
    *((module, name) for module in (pickle, _pickle) for name in ("load", "loads", "Unpickler")),
    (pickle, "_Unpickler"),
    (marshal, "loads"),
    (builtins, "eval"),
    (builtins, "exec"),
    (builtins, "compile"),
    (importlib, "import_module"),
    (importlib, "reload"),
    (os, "system"),
    (os, "popen"),
    (subprocess, "Popen"),
    (np, "load"),
    (np, "fromfile"),
)

_armed: dict[int, list[str]] = {}  # by thread: what was touched while it was watched


class TouchedError(BaseException):
    """Something was about to be executed; no `except Exception` swallows it."""


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _armed and event in EVENTS:
        touched = _armed.get(threading.get_ident())
        if touched is not None:
            touched.append(event)


sys.addaudithook(_hook)  # for as long as the interpreter runs; it asks who is watched


def _trap(name: str) -> Callable[..., None]:
    def trip(*_: object, **__: object) -> None:
        if threading.get_ident() in _armed:
            _armed[threading.get_ident()].append(name)
        raise TouchedError(name)

    return trip


_TRAPS = [(module, name, getattr(module, name), _trap(name)) for module, name in WAYS]


@contextmanager
def nothing_executed() -> Iterator[None]:
    """Fails if anything in the block executes, loads or opens something, or tries to."""
    touched = _armed[threading.get_ident()] = []
    for module, name, _, trap in _TRAPS:
        setattr(module, name, trap)
    try:
        yield
    except TouchedError:
        pass
    finally:
        del _armed[threading.get_ident()]
        for module, name, original, _ in _TRAPS:
            setattr(module, name, original)
        assert touched == [], f"something was executed, or nearly: {touched}"
