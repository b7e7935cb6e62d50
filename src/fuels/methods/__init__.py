"""The methods by name. A new method is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, get_type_hints

from fuels.config import Settings, coerce, nearest
from fuels.errors import FuelsError
from fuels.methods.base import Facts, Method
from fuels.methods.fedavg import FedAvg
from fuels.methods.fedda import FedDA
from fuels.methods.fedprox import FedProx
from fuels.methods.fedrep import FedRep
from fuels.methods.fuels import Fuels
from fuels.methods.fuels_start import FuelsStart
from fuels.methods.perfedavg import PerFedAvg
from fuels.methods.pfedme import PFedMe
from fuels.methods.solo import Solo

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Fuels,
        Solo,
        FedAvg,
        FedProx,
        FedRep,
        PerFedAvg,
        PFedMe,
        FedDA,
    )
}
# Methods that are in none of the paper's tables; they can be run like the others.
EXTENSIONS: dict[str, type[Method]] = {FuelsStart.name: FuelsStart}


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
