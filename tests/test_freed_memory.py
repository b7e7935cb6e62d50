"""Kernels go by addresses, which keep nothing alive: none may read memory that was given back.

Freed memory mostly keeps its content until somebody else needs it, so a kernel that reads it is
right nearly always. Here the system's allocator (glibc; others take no notice) writes over what is
freed and over what is handed out, and the kernels must still give what plain torch gives.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = ("test_loss_kernels.py", "test_kernels.py", "test_descent.py", "test_jsd_kernel.py")
SPOILT = {
    "MALLOC_PERTURB_": "85",  # every byte; as a number 1e103, or 1e13 in single precision
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",  # small pieces would be spared
}


def test_kernels_read_nothing_that_was_freed() -> None:
    here = Path(__file__).parent
    files = [str(here / name) for name in TESTS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=here.parent,
        env=os.environ | SPOILT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
