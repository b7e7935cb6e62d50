"""Compiles functions with Numba; without Numba they run as plain Python.

The first run on a machine compiles what it uses, about half a minute in all, and stores the result.
`python -m fuels.kernels.jit` does it during installation, so that the first run does not wait.

Without Numba `compiled` returns the function unchanged. Loops over arrays (mixture, intervals,
smoothing, telecom) then run slowly. Kernels that work on registers cannot run at all, and
dispatch.py calls their references.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable
from typing import Any, TypeVar

try:
    from fuels.kernels.jit_cache import compile_ahead, jit
    from fuels.kernels.numba_internals import jit_disabled

    # Why nothing can be compiled here; empty if it can.
    ABSENT = "NUMBA_DISABLE_JIT is set" if jit_disabled() else ""
except (ImportError, OSError) as problem:  # an OSError is a compiler library that does not load
    ABSENT = str(problem)

Function = TypeVar("Function", bound=Callable[..., Any])

KERNELS = (
    "telecom", "screening", "blend", "intervals", "lagged", "mixture", "ridge", "smoothing",
    "smoothing_simd", "divergence", "step",
)  # fmt: skip

# Division by 0 gives infinity, as in NumPy and PyTorch: a stage has no way to raise an exception.
OPTIONS = {"nogil": True, "error_model": "numpy"}

_log = logging.getLogger(__name__)


def compiled(
    signature: Any = None, *, ahead: str = "", **options: Any
) -> Callable[[Function], Function]:
    """Compile without the GIL; later processes load the machine code from disk.

    With a signature it compiles on import, without one at the first call with new types. `ahead`
    names the types to compile for during installation, as text, which does not import Numba.
    """

    def decorate(function: Function) -> Function:
        if ABSENT:
            warn_absent()
            return function
        made: Function = jit(function, signature, ahead, {**OPTIONS, **options})
        return made

    return decorate


@functools.cache  # once in a process
def warn_absent() -> None:
    _log.warning(
        "compiled kernels are not available (%s): using plain torch and Python, which are slower",
        ABSENT,
    )


def compile_all() -> None:
    if ABSENT:
        warn_absent()
        return
    for name in KERNELS:
        importlib.import_module(f"fuels.kernels.{name}")
    compile_ahead()


if __name__ == "__main__":
    compile_all()
