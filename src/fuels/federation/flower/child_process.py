"""Processes that end with the one that started them.

Flower's own task processes notice when their parent has ended, but then try to reach it once more
and hang, holding the lock of their run. Here they exit instead: everything that matters is on disk.
Other programs are ended by the kernel, on Linux.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

PARENT_LOOK = 0.25  # seconds between two checks of the parent
PR_SET_PDEATHSIG = 1  # of prctl(2): the signal that a process gets when its parent ends
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent() -> None:
    """Exit at once when the parent process has ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_LOOK)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def bind_to_parent() -> None:
    """For a child between fork and exec: be killed when the thread that started it has ended."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
