"""Compiling ahead: setting up leaves nothing for the first run to compile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fuels


def test_setting_up_compiles_every_kernel() -> None:
    """What `python -m fuels.compiling` leaves out would make the first run wait."""
    package = Path(fuels.__file__).parent
    holding = {
        "fuels." + ".".join(file.relative_to(package).with_suffix("").parts)
        for file in package.rglob("*.py")
        if "\n@compiled(" in file.read_text() and file.parent.name != "bench"
    }
    assert holding
    script = "import sys, fuels.compiling as c; c.compile_all(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert holding <= set(done.stdout.split())
