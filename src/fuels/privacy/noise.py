"""Noise on the uploads of a client.

The FUELS paper (Appendix D.2) adds random numbers to every entry of the uploaded prototype: Laplace
and Gaussian with mean 0, exponential with mean `scale`; `scale` is the standard deviation of all
three, so Laplace has b = scale / sqrt(2). Entries are not clipped and no privacy budget is tracked
over the rounds: the noise obscures values but does not guarantee differential privacy.

On one machine the noise depends only on the seed, so that a run is reproducible. A server that
knows the seed, the clients and the rounds could generate the same noise and subtract it. A site of
a federation therefore also derives the noise from its secret and from the upload. The same upload
always gets the same noise, so asking twice reveals nothing new; a different upload gets independent
noise, so the difference of two uploads is as noisy as each of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from math import sqrt

import numpy as np

from fuels.arrays import Floats, Floats32
from fuels.config import nearest
from fuels.errors import FuelsError
from fuels.randomness import NOISE, generator

Draw = Callable[[np.random.Generator, float, tuple[int, ...]], Floats]

NONE = "none"
KINDS: dict[str, Draw] = {
    "laplace": lambda rng, scale, shape: rng.laplace(0.0, scale / sqrt(2), shape),
    "gaussian": lambda rng, scale, shape: rng.normal(0.0, scale, shape),
    "exponential": lambda rng, scale, shape: rng.exponential(scale, shape),
}
# In units of `scale`: a bound that no draw exceeds in the lifetime of a federation (probability
# below 1e-17 per number), so that a receiver can reject larger values.
REACH = {NONE: 0.0, "laplace": 40 / sqrt(2), "gaussian": 10.0, "exponential": 40.0}


def check_noise(kind: str, scale: float) -> None:
    """Reject an unknown kind or an invalid scale."""
    if kind not in REACH:
        raise FuelsError(f"options.noise {kind} is unknown{nearest(kind, REACH)}")
    if not (scale >= 0 and np.isfinite(scale)):
        raise FuelsError(
            f"options.noise_scale must be a finite number of at least 0; it is {scale}"
        )


def reach(kind: str, scale: float) -> float:
    """By how much the noise widens the bound of an entry."""
    return REACH[kind] * scale


def add_noise(
    values: Floats32,
    clients: Sequence[str],
    kind: str,
    scale: float,
    *,
    seed: int,
    round_number: int,
    secret: bytes = b"",
) -> Floats32:
    """`values` [client, ...] with independent noise for each client.

    Drawn from (seed, client, round); with a secret, from all arguments and the secret.
    """
    if kind == NONE or scale == 0:
        return values
    noise = []
    for client, row in zip(clients, values, strict=True):
        rng = generator(seed, NOISE, client, round_number)
        if secret:
            known = repr((seed, client, round_number, kind, float(scale), row.shape)).encode()
            rng = _secret_generator(secret, known + row.tobytes())
        noise.append(KINDS[kind](rng, scale, row.shape))
    return (values + np.stack(noise)).astype(np.float32)


def _secret_generator(secret: bytes, known: bytes) -> np.random.Generator:
    """A generator that cannot be reproduced without the secret, even from its earlier output."""
    digest = hashlib.blake2b(known, key=secret, digest_size=32).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))
