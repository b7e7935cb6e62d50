"""Kernels work on addresses: none may read memory that was freed or never written.

Freed memory mostly keeps its content until something else needs it, so a kernel that reads it is
right nearly always. Here the system's allocator (glibc; others ignore the setting) overwrites what
is freed and what is handed out, and the kernels must still give what plain torch gives.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EVERY_TEST = (
    "kernels/test_loss_kernels.py",
    "kernels/test_gru_kernels.py",
    "model/test_optimiser.py",
    "kernels/test_divergence_kernel.py",
    "training/test_step.py",
)
ONE_PER_KERNEL = (
    "kernels/test_loss_kernels.py::test_terms",
    "kernels/test_gru_kernels.py::test_a_client_does_not_depend_on_its_group",
    "model/test_optimiser.py::test_adam_equals_torch_with_clients_sitting_out",
    "kernels/test_divergence_kernel.py::test_jsd_with_zeros_by_hand",
    "training/test_step.py::test_a_step_on_the_prediction_loss_equals_autograd",
)
EVERY_SIZE = "glibc.malloc.tcache_count=0"  # small pieces would be spared


# Freed memory is filled with this byte, allocated memory with its complement. Of the two, bytes of
# 85 are the number 1e103, or 1e13 in single precision; bytes of 170 are close to 0.
@pytest.mark.parametrize(
    ("byte", "tests"),
    [
        pytest.param(85, ONE_PER_KERNEL, id="freed, one test per kernel"),
        pytest.param(85, EVERY_TEST, id="freed", marks=pytest.mark.nightly),
        pytest.param(170, EVERY_TEST, id="fresh", marks=pytest.mark.nightly),
    ],
)
def test_kernels_read_nothing_that_was_freed_or_never_written(
    byte: int, tests: tuple[str, ...]
) -> None:
    here = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        + [str(here / name) for name in tests],
        cwd=here.parent,
        env=os.environ | {"MALLOC_PERTURB_": str(byte), "GLIBC_TUNABLES": EVERY_SIZE},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
