"""Methods by name. A new method is one file and one line here, or an entry point of its package.

Importing this file imports no method, and so no PyTorch: help texts and shell completion need only
the names. A package outside `fuels` offers a method through the entry point group `fuels.methods`:

    [project.entry-points."fuels.methods"]
    mymethod = "mypackage.mymethod:MyMethod"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, get_type_hints

from fuels.config import coerce, nearest
from fuels.errors import FuelsError

if TYPE_CHECKING:
    from fuels.methods.base import Method

GROUP = "fuels.methods"

METHODS = {  # the methods of the paper's tables and of `--methods all`
    "fuels": "fuels.methods.fuels:Fuels",
    "solo": "fuels.methods.solo:Solo",
    "fedavg": "fuels.methods.fedavg:FedAvg",
    "fedprox": "fuels.methods.fedprox:FedProx",
    "fedrep": "fuels.methods.fedrep:FedRep",
    "perfedavg": "fuels.methods.perfedavg:PerFedAvg",
    "pfedme": "fuels.methods.pfedme:PFedMe",
    "fedda": "fuels.methods.fedda:FedDA",
}
EXTENSIONS = {  # methods of our own; they run like the others
    "fuels-start": "fuels.methods.fuels_start:FuelsStart",
}


@cache
def installed_methods() -> dict[str, EntryPoint]:
    """Methods that other installed packages offer; they cannot replace a built-in name."""
    return {
        point.name: point
        for point in entry_points(group=GROUP)
        if point.name not in METHODS | EXTENSIONS
    }


def method_names() -> list[str]:
    """Every name that `find_method` knows."""
    return [*METHODS, *EXTENSIONS, *installed_methods()]


def find_method(name: str) -> type[Method]:
    """The class of a method."""
    if name in METHODS | EXTENSIONS:
        module, _, kind = (METHODS | EXTENSIONS)[name].partition(":")
        found: type[Method] = getattr(import_module(module), kind)
        return found
    if name not in installed_methods():
        raise FuelsError(f"unknown method {name}{nearest(name, method_names())}")
    return _load_installed(installed_methods()[name])


def _load_installed(point: EntryPoint) -> type[Method]:
    from fuels.methods.base import Method

    try:
        found = point.load()
    except Exception as error:  # another package's import may raise anything
        raise FuelsError(f"method {point.name}: cannot load {point.value} ({error})") from None
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise FuelsError(f"method {point.name}: {point.value} is not a subclass of Method")
    return found


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
