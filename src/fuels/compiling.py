"""Numba, with what it compiled kept on disk where a disk can be written.

Importing a module of kernels compiles them, some seconds the first time on a machine. Setting up
can do it ahead, so that the first run does not wait: python -m fuels.compiling
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])

KERNELS = (
    "fuels.data.telecom_kernel",
    "fuels.experts.mixture_kernel",
    "fuels.experts.smoothing",
    "fuels.jsd_lanes",
    "fuels.loss_kernels",
    "fuels.model.fused",
    "fuels.model.updates",
)


def compiled(signature: Any = None, **options: Any) -> Callable[[Function], Function]:
    """Compile without the GIL; from the second process on the machine code comes from disk.

    Numba watches the file of the compiled function, not those it calls into: after an edit of
    model/lanes.py, tiles.py or doubles.py remove the __pycache__ folders.
    """

    def decorate(function: Function) -> Function:
        options.setdefault("nogil", True)
        try:
            made: Function = njit(signature, cache=True, **options)(function)
        except (RuntimeError, OSError):  # no folder or no room for the cache: in memory then
            made = njit(signature, **options)(function)
        return made

    return decorate


def compile_all() -> None:
    for name in KERNELS:
        importlib.import_module(name)


if __name__ == "__main__":
    compile_all()
