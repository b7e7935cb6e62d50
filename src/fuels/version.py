"""The version, and the name under which pip knows this package."""

__version__ = "0.1.0"

# The import name and the command are `fuels`, which on the package index is an unrelated project.
DISTRIBUTION = "fuels-forecast"


def requirement(extra: str) -> str:
    """This package with one of its extras, as pip takes it."""
    return f"{DISTRIBUTION}[{extra}]"


def not_installed(what: str, extra: str) -> str:
    """Say that something optional is missing, and how to install it.

    The command needs no published package: pip takes the one that is installed and adds what the
    extra lists.
    """
    return f'{what} is not installed: pip install "{requirement(extra)}"'
