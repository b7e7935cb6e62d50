"""Every upload is checked before it is used: what was declared, by whom it belongs, and finite.

One NaN in one prototype would leave no client with a usable global prototype, and one array of the
wrong shape could be broadcast over everybody's mean. A refused client changes nothing for the
others: its reason is reported and the round goes on without it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from fuels.messages import Upload
from fuels.methods.base import Sent

SLACK = 1e-4  # rounding above a declared bound


def refusals(
    upload: Upload, declared: Mapping[str, Sent], expected: Collection[str], margin: float = 0.0
) -> tuple[dict[str, str], str]:
    """Reasons to refuse single clients, and a reason to refuse the whole upload ("" if none).

    `expected`: the clients that may answer. `margin` widens the bounds by declared noise.
    """
    if set(upload.arrays) != set(declared):
        missing = sorted(set(declared) - set(upload.arrays))
        extra = sorted(set(upload.arrays) - set(declared))
        return {}, f"missing arrays {missing}, undeclared arrays {extra}"
    count = len(upload.clients)
    if len(set(upload.clients)) != count:
        return {}, "a client appears twice"
    if upload.samples.shape != (count,) or (upload.samples < 1).any():
        return {}, "sample counts do not fit the clients"
    for name, sent in declared.items():
        array = upload.arrays[name]
        if array.dtype != np.float32:
            return {}, f"{name} is {array.dtype}, declared float32"
        if array.shape != (count, *sent.shape):
            return {}, f"{name} has shape {array.shape}, declared {(count, *sent.shape)}"
    reasons: dict[str, str] = {}
    for row, client in enumerate(upload.clients):
        if client not in expected:
            reasons[client] = "not asked in this round"
            continue
        for name, sent in declared.items():
            largest = np.abs(upload.arrays[name][row]).max(initial=0.0)
            if not np.isfinite(largest):
                reasons[client] = f"{name} is not finite"
            elif sent.bound is not None and largest > sent.bound + margin + SLACK:
                reasons[client] = f"{name} reaches {largest:.3g}, declared at most {sent.bound:g}"
    return reasons, ""
