"""What the kernels use of Numba beyond its documented interface, name by name.

After an upgrade of Numba a failure here says what changed; kernels/numba_internals.py is the only
module to adapt. Then raise the limit in pyproject.toml.
"""

from __future__ import annotations

import ast
import ctypes
import importlib
import tomllib
from pathlib import Path
from typing import Any

import llvmlite
import numba
import pytest

import fuels
from fuels.kernels import numba_internals

ROOT = Path(__file__).parents[2]
PACKAGE = Path(fuels.__file__).parent

# (module, attribute, what the kernels need it for)
NAMES = [
    ("numba.core.config", "DISABLE_JIT", "to see whether compiling is switched off"),
    ("numba.core.config", "CPU_FEATURES", "to see which registers Numba compiles for"),
    ("numba.core.config", "CACHE_DIR", "to give tests a cache folder"),
    ("numba.core.codegen", "get_host_cpu_features", "to find the size of a register"),
    ("numba.core.codegen", "JITCPUCodegen._library_class", "to compute the same bits everywhere"),
    (
        "numba.core.codegen",
        "JITCodeLibrary._finalize_final_module",
        "to compute the same bits everywhere",
    ),
    ("numba.core.sigutils", "normalize_signature", "to compile for types given as text"),
    ("numba.core.caching", "FunctionCache.load_overload", "to survive damaged cache files"),
    ("numba.core.caching", "FunctionCache.save_overload", "to survive a full disk"),
    ("numba.core.caching", "FunctionCache.cache_path", "to name the folder in log lines"),
    (
        "numba.core.caching",
        "CacheImpl._locator_classes",
        "to test without a cache folder",
    ),
    ("numba.core.caching", "IndexDataCacheFile._save_data", "to test a full disk"),
    ("numba.core.cgutils", "alloca_once", "to hold sums in registers"),
    ("numba.core.cgutils", "alloca_once_value", "to hold sums in registers"),
    ("numba.core.cgutils", "for_range", "for loops in LLVM"),
    ("numba.core.cgutils", "for_range_slice", "for loops in LLVM"),
    ("numba.core.cgutils", "get_or_insert_function", "to call LLVM's vector functions"),
    ("numba.core.cgutils", "pack_array", "to return tuples"),
    ("numba.extending", "intrinsic", "to write functions in LLVM"),
    ("numba.extending", "lower_builtin", "for arithmetic on registers"),
    ("numba.extending", "models.PrimitiveModel", "for the type of a register"),
    ("numba.extending", "register_model", "for the type of a register"),
    ("numba.extending", "type_callable", "for arithmetic on registers"),
    ("numba.types", "IntegerLiteral", "to read tables of stages"),
    ("numba.types", "CPointer", "to view memory as arrays"),
]


def broken(what: str, purpose: str) -> str:
    return (
        f"Numba {numba.__version__} (llvmlite {llvmlite.__version__}) changed {what}, which the"
        f" kernels need {purpose}: adapt src/fuels/kernels/numba_internals.py"
    )


@pytest.mark.parametrize(("module", "path", "purpose"), NAMES, ids=lambda part: str(part))
def test_numba_still_has(module: str, path: str, purpose: str) -> None:
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as problem:
        pytest.fail(broken(f"{module}.{path} ({problem})", purpose))


def add(table: int, client: int) -> int:
    return table + client


SIGNATURE = numba.int64(numba.int64, numba.int64)


def test_a_dispatcher_still_uses_the_cache_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    asked = []

    class Cache(numba_internals.DiskCache):
        def load_overload(self, sig: Any, target_context: Any) -> Any:
            asked.append("load")
            return super().load_overload(sig, target_context)

        def save_overload(self, sig: Any, data: Any) -> None:
            asked.append("save")
            super().save_overload(sig, data)

    def compiled_with(stamp: str) -> tuple[Path, int]:
        made = numba_internals.make_dispatcher(add, {})
        cache = Cache(add, stamp)
        numba_internals.set_cache(made, cache)
        numba_internals.compile_only(made, SIGNATURE)
        return cache.index, sum(made.stats.cache_hits.values())

    index, hits = compiled_with("one")
    assert asked == ["load", "save"], broken("Dispatcher._cache", "to keep machine code on disk")
    assert index.is_file(), broken("_cache_file._index_path", "to replace damaged files")
    assert hits == 0 and compiled_with("one")[1] == 1, broken("the cache", "to start quickly")
    stale = compiled_with("two")[1]
    assert stale == 0, broken("_cache_file._source_stamp", "to notice changed building blocks")


def test_a_compiled_function_still_has_an_address() -> None:
    made = numba_internals.make_dispatcher(add, {"nogil": True, "error_model": "numpy"})
    numba_internals.compile_only(made, SIGNATURE)
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    found = call(numba_internals.code_address(made))(40, 2)
    assert found == 42, broken("fndesc.llvm_cfunc_wrapper_name", "to call stages by address")
    with pytest.raises(TypeError):
        made("text", 1)  # compile_only allows no other types


def test_types_are_still_read_from_text() -> None:
    made = numba_internals.make_dispatcher(add, {})
    numba_internals.compile_types(made, "(i8, i8)")
    assert made.signatures == [(numba.int64, numba.int64)], broken(
        "normalize_signature", "to compile during installation"
    )


def test_only_one_module_uses_the_private_names() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                if name.startswith(("llvmlite", "numba.core", "numba.extending")):
                    assert path.name == "numba_internals.py", f"{path} imports {name}"


def test_the_installed_numba_is_one_that_pyproject_allows() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (limit,) = [line for line in wanted if line.startswith("numba")]
    low, high = (part.lstrip("numba<>=").split(".") for part in limit.split(","))
    found = [int(part) for part in numba.__version__.split(".")[:2]]
    assert [int(p) for p in low] <= found < [int(p) for p in high], (
        f"numba {numba.__version__} is installed, pyproject.toml allows {limit}"
    )
