"""Kernels go by addresses: none may read what was given back to the system, or never written.

Freed memory mostly keeps its content until somebody else needs it, so a kernel that reads it is
right nearly always. Here the system's allocator (glibc; others take no notice) writes over what is
freed and over what is handed out, and the kernels must still give what plain torch gives.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = (
    "kernels/test_loss_kernels.py",
    "kernels/test_gru_kernels.py",
    "kernels/test_divergence_kernel.py",
    "training/test_step.py",
)
EVERY_SIZE = "glibc.malloc.tcache_count=0"  # small pieces would be spared


# What is freed becomes this byte, what is handed out its complement. Of the two, bytes of 85 are
# the number 1e103, or 1e13 in single precision; bytes of 170 are close to 0.
@pytest.mark.parametrize("byte", [85, 170], ids=["freed", "fresh"])
def test_kernels_read_nothing_that_was_freed_or_never_written(byte: int) -> None:
    here = Path(__file__).parents[1]
    files = [str(here / name) for name in TESTS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=here.parent,
        env=os.environ | {"MALLOC_PERTURB_": str(byte), "GLIBC_TUNABLES": EVERY_SIZE},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
