"""The version of this package, its name for pip, and the optional packages it can use."""

from importlib import import_module
from typing import Any

from fuels.errors import FuelsError

__version__ = "0.1.0"

# The import name and the command are `fuels`, but on the package index that is another project.
DISTRIBUTION = "fuels-forecast"


def requirement(extra: str) -> str:
    """This package with one of its extras, as pip takes it."""
    return f"{DISTRIBUTION}[{extra}]"


def not_installed(what: str, extra: str) -> str:
    """The message that something optional is missing, with the command that installs it.

    The command works without a published package: pip keeps the installed one and adds the extra.
    """
    return f'{what} is not installed: pip install "{requirement(extra)}"'


def optional(module: str, what: str, extra: str, place: str) -> Any:
    """A module of an optional package; the error without it begins with `place`."""
    try:
        return import_module(module)
    except ImportError:
        raise FuelsError(f"{place}: {not_installed(what, extra)}") from None
