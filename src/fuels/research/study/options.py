"""Method options given for a whole study: each method takes those that it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from fuels.config import nearest
from fuels.errors import FuelsError
from fuels.methods.registry import find_method, method_options


def known_options(method: str) -> set[str]:
    return {option.name for option in fields(find_method(method).Options)}


def options_for(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given options that the method has, checked."""
    mine = {key: value for key, value in given.items() if key in known_options(method)}
    method_options(method, mine)
    return mine


def check_options(given: Mapping[str, Any], methods: Sequence[str]) -> None:
    """Refuse an option that no method of the study has."""
    known = set().union(*(known_options(method) for method in methods))
    for key in given:
        if key not in known:
            hint = nearest(key, known) if known else ", nor any other"
            raise FuelsError(f"--set options.{key}: none of the methods has it{hint}")
