"""Durable state: one file, replaced as a whole, so that a kill at any moment leaves a good one.

Arrays are kept in safetensors (no pickle), small facts as JSON in its header.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fuels.errors import FuelsError


def save_state(path: Path, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
    """Write arrays and facts; `path` holds either the old content or the new, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    flat = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    try:
        save_file(flat, temporary, metadata={"facts": json.dumps(facts)})
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise FuelsError(
            f"{path}: cannot be written ({_cause(error)}); what was saved before is still there,"
            " free some space and continue with --resume"
        ) from None


def load_state(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays and facts as `save_state` wrote them."""
    try:
        with safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            facts = json.loads((file.metadata() or {})["facts"])
    except FileNotFoundError:
        raise FuelsError(f"{path}: no such file") from None
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise FuelsError(f"{path}: not a readable checkpoint ({_cause(error)})") from None
    return arrays, facts


def _cause(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def prefixed(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def unprefixed(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    start = f"{prefix}/"
    return {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}
