"""Downloads, uploads and reports as envelopes, and back.

Reading checks that an envelope has the form of what it claims to be; whether its numbers may be
used is the guard's business.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, text_list
from fuels.federation.guard import LARGEST
from fuels.federation.site import Report
from fuels.methods.messages import Download, Upload
from fuels.storage.checkpoint import prefixed, unprefixed

FIGURES = ("val_mse", "val_mae")


def request(
    kind: str,
    run: str,
    number: int,
    site: str,
    asked: Sequence[str],
    download: Download,
    best_round: int = 0,
) -> Envelope:
    """What the server asks of a site; at the end also of which best round its model is, if any."""
    best = {"best_round": best_round} if best_round else {}
    return Envelope(
        kind=kind,
        run=run,
        round=number,
        site=site,
        facts={"asked": list(asked), "having": list(download.clients), **best},
        arrays=prefixed("shared", download.shared) | prefixed("personal", download.personal),
    )


def read_request(envelope: Envelope) -> tuple[tuple[str, ...], Download]:
    """The clients asked for and what they get."""
    asked = text_list(envelope.facts.get("asked"), "the list of clients asked for")
    download = Download(
        shared=unprefixed("shared", envelope.arrays),
        personal=unprefixed("personal", envelope.arrays),
        clients=text_list(envelope.facts.get("having"), "the list of clients that get something"),
    )
    _only(envelope.arrays, ("shared/", "personal/"), ())
    return asked, download


def read_best_round(envelope: Envelope) -> int:
    """The best round whose model a request brings; 0 where the server names none."""
    found = envelope.facts.get("best_round", 0)
    if type(found) is not int or not 0 <= found <= envelope.round:
        raise FuelsError("the best round is none of the run's")
    return found


def reply(envelope: Envelope, upload: Upload | None, report: Report | None) -> Envelope:
    """A site's answer to a request, with its error figures."""
    clients = upload.clients if upload is not None else report.clients if report is not None else ()
    arrays: dict[str, NDArray[Any]] = {}
    if upload is not None:
        arrays |= prefixed("upload", upload.arrays)
        if upload.samples is not None:
            arrays["samples"] = upload.samples
    if report is not None:
        arrays |= prefixed("loss", report.losses)
        arrays |= {"val_mse": report.val_mse, "val_mae": report.val_mae}
    return Envelope(
        kind=envelope.kind,
        run=envelope.run,
        round=envelope.round,
        site=envelope.site,
        facts={"clients": list(clients)},
        arrays=arrays,
    )


def without_figures(envelope: Envelope) -> Envelope:
    """A site's answer without losses and validation errors, for a site that keeps them."""
    arrays = {
        name: array
        for name, array in envelope.arrays.items()
        if name not in FIGURES and not name.startswith("loss/")
    }
    return replace(envelope, arrays=arrays)


def read_upload(envelope: Envelope) -> Upload:
    """The upload in a site's answer."""
    _only(envelope.arrays, ("upload/", "loss/"), ("samples", *FIGURES))
    return Upload(
        clients=text_list(envelope.facts.get("clients"), "the list of clients"),
        arrays=unprefixed("upload", envelope.arrays),
        samples=envelope.arrays.get("samples"),
    )


def read_withheld(envelope: Envelope) -> tuple[str, ...]:
    """The clients of which a site sends nothing because it would not be accepted."""
    return text_list(envelope.facts.get("withheld", []), "the list of clients withheld")


def read_report(envelope: Envelope, declared: Collection[str]) -> Report | None:
    """The error figures in a site's answer, if it gives any, with losses of the declared names."""
    clients = text_list(envelope.facts.get("clients"), "the list of clients")
    if not any(name in envelope.arrays for name in FIGURES):
        return None
    losses = unprefixed("loss", envelope.arrays)
    for name in sorted(losses.keys() - set(declared)):
        raise FuelsError(f"undeclared loss {name!r}")
    figures = [envelope.arrays.get(name, np.empty(0)) for name in FIGURES]
    for values in (*losses.values(), *figures):
        if values.shape != (len(clients),) or values.dtype != np.float64:
            raise FuelsError("error figures do not fit the clients")
    for values in losses.values():
        if not np.isfinite(values).all():
            raise FuelsError("a training loss is not finite, its training diverged")
        if np.abs(values).max(initial=0.0) > LARGEST:
            raise FuelsError(f"a training loss is beyond {LARGEST:g}")
    for values in figures:  # NaN: nothing was observed to judge by
        if not ((values >= 0) & (values <= LARGEST) | np.isnan(values)).all():
            raise FuelsError(f"a validation error is not between 0 and {LARGEST:g}")
    return Report(clients, losses, *figures)


def _only(arrays: Mapping[str, Any], prefixes: tuple[str, ...], names: tuple[str, ...]) -> None:
    for name in arrays:
        if not name.startswith(prefixes) and name not in names:
            raise FuelsError(f"undeclared array {name!r}")
