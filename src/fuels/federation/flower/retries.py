"""A short first pause where Flower waits for the pieces of a message.

A message is announced before its pieces have arrived. Whoever asks for a missing piece asks again
after a second, then after two, and so on: up to three seconds for a few hundred bytes. Here the
first pause is short; the later ones double as before, up to Flower's own limit.
"""

from __future__ import annotations

from flwr.supercore.inflatable.inflatable_utils import (
    pull_and_inflate_object_from_tree,
    pull_objects,
)

FIRST = 0.05  # seconds


def shorten() -> None:
    """For all messages that this process receives."""
    for function in (pull_objects, pull_and_inflate_object_from_tree):
        if function.__kwdefaults__ is not None:  # else Flower has changed, and only takes longer
            function.__kwdefaults__["initial_backoff"] = FIRST
