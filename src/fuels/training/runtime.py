"""Threads and kernels: the one place that sets how many cores this process uses."""

from __future__ import annotations

import os
import resource
import sys

import torch
from threadpoolctl import threadpool_limits

from fuels.checks import check_engine
from fuels.config import Engine
from fuels.errors import FuelsError
from fuels.kernels.dispatch import set_threads, use_kernels


def set_up(engine: Engine) -> int:
    """Prepare this process for an engine; returns the number of worker threads.

    Groups of clients train in parallel, one thread each, so every library gets a single thread:
    more would compete for the same cores.
    """
    check_engine(engine)
    kind = engine.device.partition(":")[0]  # cuda:1 is the second GPU
    if kind not in ("cpu", "cuda"):
        raise FuelsError(f"engine.device is {engine.device}; it must be cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise FuelsError(
            f"engine.device is {engine.device}, but this machine has no such device; use cpu"
        )
    threads = engine.threads or available_cores()
    torch.set_num_threads(1)
    set_threads(threads)
    threadpool_limits(limits=1)
    # Tensors on a GPU use the references; the server works on the CPU and keeps its kernels.
    chosen = "auto" if kind == "cuda" and engine.kernels == "fused" else engine.kernels
    use_kernels(chosen, "engine.kernels")
    return threads


def available_cores() -> int:
    """Cores this process may use, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_memory_mb() -> float:
    """The most memory this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 if sys.platform != "darwin" else peak / 1024**2
