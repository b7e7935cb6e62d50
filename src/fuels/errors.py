"""Errors that are not bugs: each is one sentence that a person can act on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Messages name the option of the command line that helps: `--how`, or with a value `--how=sum`.
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]*)(?:=('[^']*'|[^\s,;:()']+))?")


class FuelsError(Exception):
    """Bad input or a failed step; the message is one clear sentence.

    The command line prints only the message and exits with status 1, so the message says what was
    found, where (file, client, round or option), and what to do about it.
    """


class InterruptedRunError(FuelsError):
    """The user stopped the work; the command line exits with status 130, as shells expect."""


Rename = Callable[[str, str | None], str | None]  # an option and a value: as Python calls them


def renamed(message: str, rename: Rename) -> str:
    """A message in which options have other names; None keeps an option as it is."""

    def replace(match: re.Match[str]) -> str:
        value = match[2].strip("'") if match[2] else None
        return rename(match[1].replace("-", "_"), value) or match[0]

    return _OPTION.sub(replace, message)


@contextmanager
def options_renamed(rename: Rename) -> Iterator[None]:
    """Errors raised inside name the arguments of a Python function instead of options."""
    try:
        yield
    except FuelsError as error:
        message = renamed(str(error), rename)
        if message == str(error):
            raise
        raise type(error)(message) from None
