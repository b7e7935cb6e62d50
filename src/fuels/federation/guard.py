"""Checks of every message before it is used, at the server and at a site.

A single NaN in one prototype would spoil the global prototypes of all clients, and an array of the
wrong shape could be broadcast over everyone's mean. A refused client or site does not affect the
others: the reason is reported and the round continues without it.

Weights of models have no bound: a fixed one is either too tight for some model or too loose to
protect anyone. How far one upload can move the mean is the method's business: see [defence] in
config.py, and methods/aggregation.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf, prod

import numpy as np

from fuels.arrays import Floats32
from fuels.federation.codec import Envelope
from fuels.methods.base import Sent
from fuels.methods.messages import Download, Upload

SLACK = 1e-4  # rounding above a declared bound
OVERHEAD = 65536  # bytes of a message besides its arrays
PER_CLIENT = 1024  # bytes per client besides its arrays: its name, sample count, error figures


def refusals(
    upload: Upload,
    declared: Mapping[str, Sent],
    expected: Collection[str],
    counted: bool = False,
    most_samples: float = inf,
) -> tuple[dict[str, str], str]:
    """Reasons to refuse single clients, and a reason to refuse the whole upload ("" if none).

    `expected`: the clients that may answer. `counted`: sample counts are declared; `most_samples`
    caps the weight that a client can claim.
    """
    whole = _misfit(upload.arrays, declared, len(upload.clients))
    if whole:
        return {}, whole
    if len(set(upload.clients)) != len(upload.clients):
        return {}, "a client appears twice"
    whole = _miscounted(upload, counted)
    if whole:
        return {}, whole
    reasons: dict[str, str] = {}
    for row, client in enumerate(upload.clients):
        if client not in expected:
            reasons[client] = "not asked for in this round"
        elif counted and not 1 <= upload.weights[row] <= most_samples:
            reasons[client] = f"claims {upload.weights[row]} samples"
        else:
            values = {name: array[row] for name, array in upload.arrays.items()}
            reason = _out_of_bounds(values, declared)
            if reason:
                reasons[client] = reason
    return reasons, ""


def download_refusal(
    download: Download, declared: Mapping[str, Sent], asked: Collection[str]
) -> str:
    """Why a site must refuse what the server sent; "" if it is acceptable.

    The server may omit arrays (it may have nothing to send yet) but not send undeclared ones.
    """
    if len(set(download.clients)) != len(download.clients):
        return "a client appears twice"
    strangers = sorted(set(download.clients) - set(asked))
    if strangers:
        return f"it names client {strangers[0]!r}, which is not asked for"
    for arrays, count in ((download.shared, None), (download.personal, len(download.clients))):
        undeclared = sorted(set(arrays) - set(declared))
        if undeclared:
            return f"undeclared array {undeclared[0]!r}"
        present = {name: declared[name] for name in arrays}
        reason = _misfit(arrays, present, count) or _out_of_bounds(arrays, present)
        if reason:
            return reason
    return ""


def _misfit(arrays: Mapping[str, Floats32], declared: Mapping[str, Sent], count: int | None) -> str:
    """How names, dtypes or shapes differ from what is declared, [count, ...] or shared."""
    if set(arrays) != set(declared):
        missing = sorted(set(declared) - set(arrays))
        extra = sorted(set(arrays) - set(declared))
        return f"missing arrays {missing}, undeclared arrays {extra}"
    for name, sent in declared.items():
        array = arrays[name]
        shape = sent.shape if count is None else (count, *sent.shape)
        if array.dtype != np.float32:
            return f"{name} is {array.dtype}, declared float32"
        if array.shape != shape:
            return f"{name} has shape {array.shape}, declared {shape}"
    return ""


def _miscounted(upload: Upload, counted: bool) -> str:
    """Undeclared, missing or malformed sample counts; "" if they are as declared."""
    if upload.samples is None:
        return "sample counts are missing" if counted else ""
    if not counted:
        return "undeclared sample counts"
    if upload.samples.shape != (len(upload.clients),) or upload.samples.dtype != np.int64:
        return "sample counts do not match the clients"
    return ""


def _out_of_bounds(arrays: Mapping[str, Floats32], declared: Mapping[str, Sent]) -> str:
    for name, sent in declared.items():
        largest = float(np.abs(arrays[name]).max(initial=0.0))
        if not np.isfinite(largest):
            return f"{name} is not finite"
        if sent.bound is not None and largest > sent.bound + SLACK:
            return f"{name} reaches {largest:.3g}; at most {sent.bound:g} is accepted"
        if sent.rms is not None:
            rms = float(np.sqrt(np.square(arrays[name], dtype=np.float64).mean()))
            if rms > sent.rms + SLACK:
                return f"{name} has an RMS of {rms:.3g}; at most {sent.rms:g} is accepted"
    return ""


def size_limit(clients: int, declared: Mapping[str, Sent]) -> int:
    """Maximum size in bytes of a message with these arrays for so many clients."""
    row = 4 * sum(prod(sent.shape) for sent in declared.values())
    return OVERHEAD + clients * (row + PER_CLIENT)


@dataclass
class EnvelopeGuard:
    """Accepts a message by its sender, run and round, and each upload only once."""

    run: str
    staleness: int = 1  # rounds that an upload may be late
    used: dict[str, int] = field(default_factory=dict)  # site: latest round used

    def refusal(self, envelope: Envelope, site: str, kind: str, number: int, asked: int) -> str:
        """Why a message from `site` in round `number` is refused; "" if it is accepted.

        `asked`: the round of the request.
        """
        if envelope.site != site:
            return f"it claims to come from site {envelope.site!r}, but its key is another site's"
        if envelope.kind != kind:
            return f"it replies to {envelope.kind!r}, but the request was {kind!r}"
        if envelope.run != self.run:
            return f"it belongs to run {envelope.run!r}"
        if envelope.round > number:
            return f"it is from round {envelope.round}, which has not started"
        if envelope.round < number - self.staleness:
            return f"stale: it is from round {envelope.round}, late by more than {self.staleness}"
        if kind == "train" and envelope.round <= self.used.get(site, 0):
            return f"duplicate: an upload of round {self.used[site]} was already used"
        if envelope.round != asked:
            return f"it is from round {envelope.round}, but round {asked} was requested"
        return ""

    def use(self, envelope: Envelope) -> None:
        self.used[envelope.site] = max(envelope.round, self.used.get(envelope.site, 0))
