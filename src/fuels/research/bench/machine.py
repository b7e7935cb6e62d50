"""The machine that was measured, in words."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fuels.training.runtime import available_cores
from fuels.version import __version__

PACKAGES = ("torch", "numba", "numpy", "scipy", "flwr", "ray", "pfl")


def describe_machine() -> dict[str, Any]:
    """Processor, cores, system, versions, and how busy others are just now."""
    return {
        "cpu": processor(),
        "cores": available_cores(),
        "system": platform.platform(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "versions": {"python": platform.python_version(), **versions()},
    }


def processor() -> str:
    """The model's name, where the system tells it."""
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
            label, _, name = line.partition(":")
            if label.strip() == "model name":
                return name.strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions of the packages that decide the figures; those not installed are left out."""
    found = {"fuels": __version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
