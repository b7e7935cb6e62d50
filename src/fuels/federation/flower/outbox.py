"""What leaves a site: the last check of an upload, and copies of replies."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from fuels.federation.flower.folders import RefusalError, log
from fuels.federation.guard import refusals
from fuels.federation.reasons import general
from fuels.methods.base import Method
from fuels.methods.messages import Upload


def check_upload(
    method: Method, number: int, upload: Upload, asked: tuple[str, ...]
) -> tuple[Upload, list[str]]:
    """The last check before anything leaves: only declared arrays, only of the requested clients.

    Returns what may be sent and the clients that are withheld, for instance because their training
    diverged; the others are sent.
    """
    counted = method.counts(number)
    reasons, whole = refusals(upload, method.uploads(number), asked, counted=counted)
    rows = [i for i, client in enumerate(upload.clients) if client not in reasons]
    for client, reason in reasons.items():
        log.error("round %d: nothing from client %s is sent: %s", number, client, reason)
    if whole or not rows:
        # Without the numbers that a reason quotes.
        each = [f"client {client}: {general(reason)}" for client, reason in reasons.items()]
        why = general(whole) or "; ".join(each)
        raise RefusalError(f"nothing is sent: {why}")
    return (upload.take(rows) if reasons else upload), list(reasons)


def keep_copy(answer: bytes, folder: Path, name: str) -> None:
    """Keep a copy of what leaves; a different reply to the same request gets its own file."""
    folder.mkdir(exist_ok=True)
    for number in count(1):
        path = folder / (f"{name}.bin" if number == 1 else f"{name}-{number}.bin")
        if not path.exists():
            path.write_bytes(answer)
        if path.read_bytes() == answer:
            return
