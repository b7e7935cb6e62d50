"""Everything that the kernels use of Numba beyond its documented interface, and of LLVM.

These names may change with any release of Numba, so pyproject.toml allows only the releases that
this module was tested with. tests/kernels/test_numba_internals.py checks each name and behaviour
and says which one broke.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numba.core.cgutils
import numba.core.codegen
import numba.core.config
import numba.core.sigutils
import numba.extending
import numba.types
from llvmlite import binding, ir
from numba import njit
from numba.core.caching import FunctionCache
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen

__all__ = ["DiskCache", "cgutils", "extending", "ir", "types"]

# Numba's own annotations cover these in part.
cgutils: Any = numba.core.cgutils
extending: Any = numba.extending
types: Any = numba.types
_codegen: Any = numba.core.codegen
_config: Any = numba.core.config
_sigutils: Any = numba.core.sigutils


def llvm_version() -> str:
    return version("llvmlite")


def jit_disabled() -> bool:
    """Whether NUMBA_DISABLE_JIT is set."""
    return bool(_config.DISABLE_JIT)


def cpu_features() -> list[str]:
    """Features of the processor that Numba compiles for, such as "+avx512f"."""
    chosen = _config.CPU_FEATURES
    features: str = _codegen.get_host_cpu_features() if chosen is None else chosen
    return features.split(",")


def make_dispatcher(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    return njit(**options)(function)


def set_cache(dispatcher: Any, cache: DiskCache) -> None:
    """What Numba's cache=True does, with a class of ours."""
    dispatcher._cache = cache


def compile_only(dispatcher: Any, signature: Any) -> None:
    """Compile for this signature and no other."""
    dispatcher.compile(signature)
    dispatcher.disable_compile()


def compile_types(dispatcher: Any, types: str) -> None:
    """Compile for argument types as a call passes them, spelt "(f8[:, ::1], i8)"."""
    dispatcher.compile(_sigutils.normalize_signature(types)[0])


def code_address(dispatcher: Any) -> int:
    """Address of the C function that a dispatcher with one signature was compiled to."""
    (made,) = dispatcher.overloads.values()
    address: int = made.library.get_pointer_to_function(made.fndesc.llvm_cfunc_wrapper_name)
    return address


class OwnCopies(JITCodeLibrary):
    """The machine code of a function, which calls its own copies of the functions compiled into it.

    Each library contains a copy of every function that it calls, optimised in its context. Numba
    leaves these copies visible to the linker, which uses the first one of a name in a process for
    all. Which one that is depends on what was compiled or loaded before, and with `fastmath` copies
    round differently: the process that compiled gave other results than those that load from disk.
    """

    def _finalize_final_module(self) -> None:
        shared: Any = self._final_module  # what other libraries take copies from stays as it was
        copies = [
            function.name
            for function in shared.functions
            if function.linkage == binding.Linkage.linkonce_odr and not function.is_declaration
        ]
        if copies:
            self._final_module = shared.clone()
            self._final_module.name = shared.name
            # Other modules in the process cannot see internal functions, nor replace them.
            for name in copies:
                self._final_module.get_function(name).linkage = binding.Linkage.internal
        super()._finalize_final_module()  # type: ignore[no-untyped-call]
        self._final_module = shared


# There is one compiler in a process, so this applies to all functions that Numba compiles in it.
JITCPUCodegen._library_class = OwnCopies


class DiskCache(FunctionCache):
    """Numba's cache of one function's machine code, valid while the file and `stamp` stay."""

    def __init__(self, function: Callable[..., Any], stamp: str) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._cache_file._source_stamp = (self._cache_file._source_stamp, stamp)

    @property
    def index(self) -> Path:
        """The file that names the machine code of each signature."""
        return Path(self._cache_file._index_path)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The machine code for a signature, or None."""
        return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]

    def save_overload(self, sig: Any, data: Any) -> None:
        super().save_overload(sig, data)  # type: ignore[no-untyped-call]
