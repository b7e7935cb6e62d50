"""The command line in tests."""

from __future__ import annotations

import sys
from collections.abc import Callable

Fuels = Callable[..., tuple[int, str, str]]  # words to exit code, output and error output

FUELS = [sys.executable, "-c", "from fuels.cli import main; main()"]  # in a process
SMALL = ("--set", "model.hidden=4", "--rounds", "2", "--no-plots", "--threads", "1")
