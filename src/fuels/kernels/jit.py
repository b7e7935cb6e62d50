"""Numba where it is there, plain Python where it is not.

The first run on a machine compiles what it uses, half a minute in all, and keeps it. Setting up can
do it ahead, so that the first run does not wait: python -m fuels.kernels.jit

Without Numba `compiled` hands back the function as it is. A loop over arrays then runs slowly; what
works on registers cannot run at all, and kernels/dispatch.py takes plain torch instead.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable
from typing import Any, TypeVar

try:
    from fuels.kernels.jit_cache import compile_ahead, config, jit

    # Why nothing can be compiled here; empty if it can.
    ABSENT = "NUMBA_DISABLE_JIT is set" if config.DISABLE_JIT else ""
except (ImportError, OSError) as problem:  # an OSError is a compiler library that does not load
    ABSENT = str(problem)

Function = TypeVar("Function", bound=Callable[..., Any])

KERNELS = (
    "fuels.kernels.telecom",
    "fuels.kernels.intervals",
    "fuels.kernels.mixture",
    "fuels.kernels.smoothing",
    "fuels.kernels.divergence",
    "fuels.kernels.losses",
    "fuels.kernels.encoding",
    "fuels.kernels.optimiser",
)

# A number divided by 0 is infinite, as in numpy and torch: many calls could not raise an exception.
OPTIONS = {"nogil": True, "error_model": "numpy"}

_log = logging.getLogger(__name__)


def compiled(
    signature: Any = None, *, ahead: str = "", **options: Any
) -> Callable[[Function], Function]:
    """Compile without the GIL; from the second process on the machine code comes from disk.

    With a signature when the module is imported, without it at the first call with each types;
    `ahead` are the types that setting up compiles it for, as text, which needs no import of Numba.
    """

    def decorate(function: Function) -> Function:
        if ABSENT:
            note_absence()
            return function
        made: Function = jit(function, signature, ahead, {**OPTIONS, **options})
        return made

    return decorate


@functools.cache  # once in a process
def note_absence() -> None:
    _log.warning(
        "compiled kernels are not available (%s): plain torch and Python run, slower", ABSENT
    )


def compile_all() -> None:
    if ABSENT:
        note_absence()
        return
    for name in KERNELS:
        importlib.import_module(name)
    compile_ahead()


if __name__ == "__main__":
    compile_all()
