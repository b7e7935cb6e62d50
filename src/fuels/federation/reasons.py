"""Reasons that quote messages, made fit for a log and for counting."""

from __future__ import annotations

import re

QUOTED = re.compile(r"""'[^']*'|"[^"]*"|\[[^\]]*\]|\([^)]*\)|\d[\w.+-]*""")


def printable(text: str, most: int) -> str:
    """One line that is safe to print, whatever the message contained."""
    shown = "".join(sign if sign.isprintable() else " " for sign in text[: 4 * most])
    return " ".join(shown.split())[:most]


def general(reason: str) -> str:
    """A reason without its names and numbers."""
    return QUOTED.sub("*", reason)
