"""Settings as TOML files: `config.toml` of a run, and files like it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fuels.config import (
    DEFAULT_PRESET,
    Engine,
    Settings,
    merge,
    merge_engine,
    to_dict,
    with_preset,
    without_missing,
)
from fuels.data.files import os_errors
from fuels.errors import FuelsError


def write_toml(path: Path, settings: Settings, engine: Engine) -> None:
    header = "# All settings; fuels run --config config.toml --out NEW_FOLDER trains with them.\n"
    path.write_text(header + tomli_w.dumps(to_dict(settings, engine)), encoding="utf-8")


def read_toml(path: Path) -> dict[str, Any]:
    """The changes a config file makes, not yet checked against the known settings."""
    try:
        with os_errors(path, "cannot be read"):
            return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FuelsError(f"{path}: not valid TOML: {error}") from None


def read_config(path: Path) -> tuple[Settings, Engine]:
    """Settings and engine of a config file: its preset, and over it what else the file says."""
    content = read_toml(path)
    engine_part = content.pop("engine", {})
    preset = str(content.pop("preset", DEFAULT_PRESET))
    settings = with_preset(Settings(), preset, str(path))
    settings = merge(without_missing(settings, content), content, str(path))
    return settings, merge_engine(Engine(), engine_part, str(path))


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as `section.key: value`."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        nested = isinstance(value, Mapping)
        found |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return found
