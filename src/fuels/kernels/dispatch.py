"""Which implementation runs: compiled kernels, or plain torch operators.

`auto` (the default) takes the kernels for float32 tensors on the CPU where Numba can compile them,
and the plain path otherwise, saying so once. `fused` insists on the kernels, `plain` does without.
"""

from __future__ import annotations

import importlib
import logging
import threading
from types import ModuleType

import torch
from torch import Tensor

from fuels.errors import FuelsError
from fuels.kernels import jit

CHOICES = ("auto", "fused", "plain")

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_choice = "auto"
_threads = 1
_loaded: dict[str, ModuleType | Exception] = {}


def prepare_thread() -> None:
    """Settings of PyTorch that hold per thread: one core each, and tiny numbers count as zero.

    Gradients of saturated contrastive losses are denormal numbers, a hundred times slower to
    multiply; all threads must treat them alike for results not to depend on their number.
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def set_threads(count: int) -> None:
    """How many threads work that is not done client by client may use."""
    global _threads
    _threads = count


def threads() -> int:
    return _threads


def use_kernels(choice: str, place: str = "kernels") -> None:
    """Choose "auto", "fused" or "plain" for the whole process; `place` says who chose."""
    global _choice
    if choice not in CHOICES:
        raise FuelsError(f"{place} must be one of {', '.join(CHOICES)}, not {choice!r}")
    _choice = choice


def kernels(name: str, *tensors: Tensor) -> ModuleType | None:
    """The module of compiled kernels to use on these tensors, or None for the plain path."""
    if _choice == "plain":
        return None
    fitting = all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
    if not fitting:
        if _choice == "fused":
            raise FuelsError("kernels: the fused kernels need float32 on the CPU; choose auto")
        return None
    module = _loaded.get(name) or _load(name)
    if isinstance(module, ModuleType):
        return module
    if _choice == "fused":
        raise FuelsError(f"kernels: the fused kernels are not available ({module}); choose auto")
    return None


def _load(name: str) -> ModuleType | Exception:
    with _lock:
        if name not in _loaded:
            _loaded[name] = _imported(name)
        return _loaded[name]


def _imported(name: str) -> ModuleType | Exception:
    if jit.ABSENT:
        jit.note_absence()
        return RuntimeError(jit.ABSENT)
    try:
        return importlib.import_module(name)
    except Exception as problem:  # whatever stops the compiler, the plain path still works
        if str(problem) not in map(str, _loaded.values()):  # one cause is told once
            _log.warning("compiled kernels are not available (%s): plain torch runs", problem)
        return problem
