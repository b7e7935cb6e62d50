"""A process that must not outlive the one that started it.

Flower's own task processes are told when their parent is gone, but then try to reach it once more
and hang, holding the lock of their run. They leave instead: all that matters is on disk. Programs
that are not ours are ended by the kernel, where it is Linux.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

LOOK = 0.25  # seconds between two looks
PR_SET_PDEATHSIG = 1  # of prctl(2): the signal that a process gets when its parent ends
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent() -> None:
    """Leave at once when the parent process is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def bind_to_parent() -> None:
    """For a child between fork and exec: be killed when the thread that started it is gone."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
