"""Chooses between a reference and its compiled twin: the only place that does.

    @has_twin("fuels.kernels.gru", check_encoder)
    def encode(params, inputs, shape): ...  # the reference, in plain PyTorch or NumPy

A twin is the function of the same name in the module given. `auto` (the default) calls the twin on
float32 tensors on the CPU if Numba can compile it, and the reference otherwise, with one log line.
`fused` insists on the twins; `plain` calls the references only.
"""

from __future__ import annotations

import functools
import importlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from fuels.errors import FuelsError
from fuels.kernels import jit

CHOICES = ("auto", "fused", "plain")

Given = ParamSpec("Given")
Result = TypeVar("Result")

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_choice = "auto"
_threads = 1
_loaded: dict[str, ModuleType | Exception] = {}


def has_twin(
    module: str, check: Callable[..., object] | None = None
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Mark a reference whose twin is in `module`; `check` refuses bad arguments of both.

    A twin returns NotImplemented for arguments it does not cover; the reference then runs.
    inspect.unwrap gives the reference itself.
    """

    def decorate(reference: Callable[Given, Result]) -> Callable[Given, Result]:
        @functools.wraps(reference)
        def choose(*args: Given.args, **options: Given.kwargs) -> Result:
            if check is not None:
                check(*args, **options)
            kernels = find_kernels(module, args, options)
            if kernels is not None:
                result = getattr(kernels, reference.__name__)(*args, **options)
                if result is not NotImplemented:
                    return cast(Result, result)
            return reference(*args, **options)

        choose.__dict__["twin"] = f"{module}.{reference.__name__}"
        return choose

    return decorate


def find_kernels(module: str, *arguments: object) -> ModuleType | None:
    """The module of compiled kernels to use on these arguments, or None for the reference."""
    if _choice == "plain":
        return None
    if not all(_suits_kernels(tensor) for tensor in _tensors(arguments)):
        if _choice == "fused":
            raise FuelsError("kernels: the fused kernels need float32 on the CPU; choose auto")
        return None
    found = _loaded.get(module) or _load(module)
    if isinstance(found, ModuleType):
        return found
    if _choice == "fused":
        raise FuelsError(f"kernels: the fused kernels are not available ({found}); choose auto")
    return None


def use_kernels(choice: str, place: str = "kernels") -> None:
    """Choose "auto", "fused" or "plain" for the whole process; errors name the setting `place`."""
    global _choice
    if choice not in CHOICES:
        raise FuelsError(f"{place} must be one of {', '.join(CHOICES)}, not {choice!r}")
    _choice = choice


def set_threads(count: int) -> None:
    """Set how many threads the work across clients, such as the divergences, may use."""
    global _threads
    _threads = count


def threads() -> int:
    return _threads


def prepare_thread() -> None:
    """Set up PyTorch for the calling thread: one core, and denormal numbers count as zero.

    Gradients of saturated contrastive losses are denormal, which makes products a hundred times
    slower. All threads must treat them alike, or results would depend on the number of threads.
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def _suits_kernels(tensor: Tensor) -> bool:
    single = tensor.dtype == torch.float32 or not tensor.is_floating_point()
    return single and tensor.device.type == "cpu"


def _tensors(value: object) -> Iterator[Tensor]:
    """All tensors in nested arguments."""
    if isinstance(value, Tensor):
        yield value
        return
    inside: Iterable[object] = ()
    if isinstance(value, Mapping):
        inside = value.values()
    elif isinstance(value, list | tuple):
        inside = value
    elif is_dataclass(value):
        inside = (getattr(value, field.name) for field in fields(value))
    for each in inside:
        yield from _tensors(each)


def _load(module: str) -> ModuleType | Exception:
    with _lock:
        if module not in _loaded:
            _loaded[module] = _imported(module)
        return _loaded[module]


def _imported(module: str) -> ModuleType | Exception:
    if jit.ABSENT:
        jit.warn_absent()
        return RuntimeError(jit.ABSENT)
    try:
        return importlib.import_module(module)
    except Exception as problem:  # whatever stops the compiler, the reference works
        if str(problem) not in map(str, _loaded.values()):  # one log line per cause
            _log.warning("compiled kernels are not available (%s): using plain torch", problem)
        return problem
