"""The methods by name. A new method is one file and one line in names.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, get_type_hints

from fuels import names
from fuels.config import Settings, coerce, nearest
from fuels.errors import FuelsError
from fuels.methods.base import Facts, Method


def _found(kinds: Mapping[str, str]) -> dict[str, type[Method]]:
    return {name: names.load("methods", name, kind) for name, kind in kinds.items()}


METHODS = _found(names.METHODS)
EXTENSIONS = _found(names.EXTENSIONS)


def find_method(name: str) -> type[Method]:
    known = METHODS | EXTENSIONS
    if name not in known:
        raise FuelsError(f"unknown method {name}{nearest(name, known)}")
    return known[name]


def complete(settings: Settings) -> Settings:
    """The settings with what they leave to the method filled in."""
    kind = find_method(settings.method)
    options = asdict(method_options(settings.method, settings.options))
    return replace(settings, training=kind.complete(settings.training), options=options)


def method_options(name: str, options: Mapping[str, Any], place: str = "") -> Any:
    """The method's own settings with their defaults; unknown keys are refused.

    `place` names where the options come from (a file, an option), if that is known.
    """
    where = f"{place}: " if place else ""
    kind = find_method(name).Options
    known, hints = {f.name for f in fields(kind)}, get_type_hints(kind)
    for key in options:
        if key not in known:
            raise FuelsError(f"{where}{name} has no option options.{key}{nearest(key, known)}")
    return kind(
        **{k: coerce(value, hints[k], f"{where}options.{k}") for k, value in options.items()}
    )


def build_method(name: str, options: Mapping[str, Any], facts: Facts) -> Method:
    return find_method(name)(method_options(name, options), facts)
