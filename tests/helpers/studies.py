"""Small runs for tests of studies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fuels.config import Settings, merge


def small(source: Path, **changes: Any) -> Settings:
    base = merge(
        Settings(),
        {
            "data": {"source": str(source), "clients": 6},
            "windows": {"split": "7/2/3"},
            "training": {"rounds": 3},
            "model": {"hidden": 4},
        },
        "test",
    )
    return merge(base, changes, "test")


def no_training(*_: object, **__: object) -> None:
    raise AssertionError("this run was already done")
