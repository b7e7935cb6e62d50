"""Compiling ahead and keeping what was compiled; runs where either cannot be had."""

from __future__ import annotations

import ast
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fuels
from fuels.config import Engine
from fuels.kernels import jit_cache
from fuels.kernels.dispatch import find_kernels
from fuels.kernels.jit import compiled
from fuels.training.runtime import set_up
from helpers.commands import SMALL

# Commands of the command line, one after the other in one process.
COMMANDS = """
import sys
from fuels.cli import main
for words in {commands!r}:
    sys.argv = ["fuels", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""
BEST = ["run", "--data", "traffic.csv", "--out", "best", *SMALL]
PAPER = ["run", "--data", "traffic.csv", "--preset", "paper", "--out", "paper", *SMALL]
SPLIT = ["--split", "10/2/2"]

# Prints every function whose machine code is looked for on disk, and for which types.
LOOK = """
import fuels.kernels.jit_cache as kept
look = kept.CodeCache.load_overload
def load_overload(self, sig, context):
    print("looked for", self._name.split(" at ")[0], sig)
    return look(self, sig, context)
kept.CodeCache.load_overload = load_overload
"""

# Prints the bits of regressions with a calendar: `fit` contains a copy of `eliminate` that rounds
# differently from the code of `eliminate` itself.
REGRESSIONS = """
import numpy as np
from fuels.kernels import ridge

random, steps, slots, width = np.random.default_rng(0), np.arange(200), 12, 8
series, live = random.normal(size=(2, 3, len(steps)))
bases = random.normal(size=(3, 1, len(steps)))
lags = np.array([1, 2, 3, 12, 24]), np.array([1, 2])
columns = np.stack([np.arange(width), np.full(width, -1)], axis=1)[np.newaxis]
plan = (np.array([127]), np.array([0]), columns, np.array([width]), np.array([True]),
        np.array([[0.1, 1.0, 10.0]]))
weights = np.zeros((3, 1, width - 1 + 2 * slots))
constants, rows = np.zeros((2, 3, 1))
ridge.fit(series, series, live, bases, len(steps), lags, steps % slots, steps // slots % 7 > 4,
          slots, plan, weights, constants, rows)
assert np.abs(weights).max() > 0.01 and np.isfinite(weights).all()
print(weights.tobytes().hex(), constants.tobytes().hex(), sum(ridge.fit.stats.cache_hits.values()))
"""


def python(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def looked_for(done: subprocess.CompletedProcess[str]) -> set[str]:
    assert done.returncode == 0, done.stderr
    return {line for line in done.stdout.splitlines() if line.startswith("looked for")}


def test_setup_compiles_everything_a_first_run_needs(csv: str, tmp_path: Path) -> None:
    """What `python -m fuels.kernels.jit` leaves out would make the first run wait."""
    package = Path(fuels.__file__).parent
    holding = {
        "fuels." + ".".join(file.relative_to(package).with_suffix("").parts)
        for file in package.rglob("*.py")
        if "compiled(" in file.read_text() and "import compiled" in file.read_text()
        if file.parent.name != "bench"
    }
    assert "fuels.kernels.intervals" in holding
    script = "import sys, fuels.kernels.jit as c; c.compile_all(); print(*sys.modules)"
    ahead = python(LOOK + script, tmp_path)
    assert holding <= set(ahead.stdout.split())
    commands = [BEST, ["forecast", "best"]]
    first = looked_for(python(LOOK + COMMANDS.format(commands=commands), tmp_path))
    assert len(first) > 10
    assert first <= looked_for(ahead)


@pytest.mark.parametrize(
    ("hide", "environment", "reason"),
    [
        ("import sys; sys.modules.update(numba=None, llvmlite=None)", {}, "numba"),
        ("", {"NUMBA_DISABLE_JIT": "1"}, "NUMBA_DISABLE_JIT is set"),
    ],
    ids=["without Numba", "switched off"],
)
def test_runs_finish_without_a_compiler(
    hide: str, environment: dict[str, str], reason: str, csv: str, tmp_path: Path
) -> None:
    commands = [BEST, [*PAPER, *SPLIT], ["forecast", "best"]]
    done = python(hide + COMMANDS.format(commands=commands), tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "best" / "summary.json").exists()
    assert (tmp_path / "paper" / "summary.json").exists()
    notes = [line for line in done.stderr.splitlines() if "not available" in line]
    assert len(notes) == 1 and reason in notes[0]
    assert "Warning" not in done.stderr and "note: " not in done.stderr
    demand = [*BEST, "--out", "demand", "--set", "engine.kernels=fused"]
    done = python(hide + COMMANDS.format(commands=[demand]), tmp_path, **environment)
    assert done.returncode == 1
    assert "the fused kernels are not available" in done.stderr.splitlines()[-1]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of its own for compiled code, and nothing said or given up yet."""
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(jit_cache, "_logged", set())
    monkeypatch.setattr(jit_cache, "_writable", True)
    return tmp_path


def make_double() -> Callable[[Any], Any]:
    def double(x: float) -> float:
        return 2.0 * x

    return compiled("f8(f8)")(double)


def test_compiled_code_is_cached(kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert make_double()(4.0) == 8.0
    assert caplog.text.count("compiling kernels; this takes about half a minute") == 1
    assert len(caplog.records) == 1
    assert len(list(kept.rglob("*.nbi"))) == len(list(kept.rglob("*.nbc"))) == 1


@pytest.mark.parametrize("damaged", ["*.nbi", "*.nbc"])
@pytest.mark.parametrize("left", [0, 40])
def test_a_damaged_cache_is_reported_once_and_replaced(
    damaged: str, left: int, kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_double()
    (file,) = kept.rglob(damaged)
    whole = file.read_bytes()
    file.write_bytes(whole[:left])
    caplog.clear()
    assert make_double()(4.0) == 8.0
    (note,) = caplog.records
    assert str(file.parent) in note.getMessage() and "compiling them again" in note.getMessage()
    assert len(file.read_bytes()) > len(whole) / 2  # pickles of the same code differ in length
    caplog.clear()
    jit_cache._logged.clear()
    assert make_double()(4.0) == 8.0
    assert not caplog.records


def test_on_a_full_disk_kernels_are_compiled_in_memory(
    kept: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object, name: str, data: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile._save_data", full)
    for _ in range(2):
        assert make_double()(4.0) == 8.0
    notes = [record.getMessage() for record in caplog.records]
    assert sum("cannot be stored ([Errno 28] No space left" in note for note in notes) == 1
    assert len(notes) == 2  # and that compiling begins
    assert not [file for file in kept.rglob("*") if file.is_file()]


def test_without_a_folder_kernels_are_compiled_in_memory(
    kept: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    for _ in range(2):
        assert make_double()(4.0) == 8.0
    (note,) = caplog.records
    assert "set NUMBA_CACHE_DIR to a writable folder" in note.getMessage()


def test_the_process_that_compiles_computes_the_bits_of_later_ones(tmp_path: Path) -> None:
    printed = []
    for _ in range(2):
        done = python(REGRESSIONS, tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "kept"))
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.split())
    (*cold, compiled_here), (*warm, loaded) = printed
    assert (compiled_here, loaded) == ("0", "1")
    assert cold == warm


def uses_numba(path: Path) -> bool:
    text = path.read_text()
    return any(word in text for word in ("compiled(", "@intrinsic", "@instructions"))


def test_dependencies_compiled_into_other_files_are_declared() -> None:
    """Numba looks at a function's own file: whatever else is compiled into it must be named."""
    package = Path(fuels.__file__).parent
    named = {f"fuels.kernels.{name.removesuffix('.py')}" for name in jit_cache.SHARED}
    for path in package.rglob("*.py"):
        if not uses_numba(path) or path.name in ("jit.py", "jit_cache.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fuels."):
                module = package.parent / f"{str(node.module).replace('.', '/')}.py"
                if module.is_file() and uses_numba(module) and module.name != "jit.py":
                    assert node.module in named, f"{path.name} is built from {node.module}"


def test_a_changed_building_block_invalidates_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three processes: the second finds the code of the first, the third has another block."""
    script = (
        LOOK
        + """
import fuels.kernels.jit_cache as kept
kept._shared_digest = lambda: {digest!r}
found = kept.DiskCache.load_overload
def tell(self, sig, context):
    made = found(self, sig, context)
    print("found" if made is not None else "not there")
    return made
kept.DiskCache.load_overload = tell
import fuels.kernels.optimiser
"""
    )
    told = []
    for digest in ("one", "one", "two"):
        done = python(script.replace("{digest!r}", repr(digest)), tmp_path,
                      NUMBA_CACHE_DIR=str(tmp_path / "kept"))  # fmt: skip
        assert done.returncode == 0, done.stderr
        told.append({line for line in done.stdout.splitlines() if "looked" not in line})
    assert told == [{"not there"}, {"found"}, {"not there"}]


def test_the_server_of_a_gpu_run_uses_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors on a GPU take the plain path; divergences are computed on the CPU all the same."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    try:
        set_up(Engine(device="cuda", kernels="fused", threads=1))
        assert find_kernels("fuels.kernels.divergence") is not None
    finally:
        set_up(Engine(threads=1))
