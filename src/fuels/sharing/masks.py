"""Pairwise masks: sites add up numbers that the server cannot read one by one.

For every sum, each pair of sites derives the same random words from a secret that only the two
share; the site whose name comes first adds them, the other subtracts them. In the total over all
sites of the set the masks cancel, and a single site's words, or a total without one of the sites,
are as random as the mask.

    secret  = X25519(own private key, the other site's public key)
    key     = HKDF-SHA256(secret, info = everything that identifies the sum)
    mask    = the ChaCha20 key stream of that key, as 64-bit words

`info` contains the federation, the roster, the run, the name and step of the sum, the set of sites,
the shape, and a digest of the terms that each site was given. Two different sums never share a
mask, and masks cancel only if all sites were given the same; that no sum is answered twice with
different words is up to the site (answers.py). One more word, 1 at each site, shows the server
whether the masks cancelled: it must add up to the number of sites.

The form is that of Bonawitz et al. (2017), without their recovery from dropouts: here a sum without
one of its sites is asked again or skipped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod

import numpy as np

from fuels.arrays import Floats
from fuels.errors import FuelsError
from fuels.sharing.fixed_point import Words, from_words
from fuels.version import not_installed

try:
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:  # an extra
    raise FuelsError(not_installed("cryptography, which secure sums need,", "flower")) from None

LEAST_SITES = 3  # with two, each learns the other's contribution from the total
PURPOSE = "fuels secure sum 1"


@dataclass(frozen=True)
class SumId:
    """Everything that identifies a sum. Its masks depend on all of it."""

    federation: str
    serial: int  # of the roster
    series: str  # the run, or the series of a live federation
    name: str  # what is added up
    step: int  # the time it belongs to
    sites: tuple[str, ...]  # the set, sorted
    shape: tuple[int, ...]  # of the numbers
    terms: str = ""  # digest of all else that the sites must be given alike; "": nothing

    def __post_init__(self) -> None:
        if list(self.sites) != sorted(set(self.sites)):
            raise FuelsError("the sites of a sum must be sorted, each named once")

    def __str__(self) -> str:
        return f"{self.name}, step {self.step}"

    @property
    def words(self) -> int:
        """The words that each site sends: the numbers, and the one that must add up to `sites`."""
        return prod(self.shape) + 1

    def info(self, pair: tuple[str, str]) -> bytes:
        """The sum and a pair of its sites as bytes; different ones have different bytes."""
        facts = {"purpose": PURPOSE, "pair": pair, **asdict(self)}
        if not self.terms:
            del facts["terms"]
        return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.info(("", ""))).hexdigest()


def new_key() -> bytes:
    """A private key, 32 bytes."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """The public half of a private key, 32 bytes."""
    raw, form = serialization.Encoding.Raw, serialization.PublicFormat.Raw
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes(raw, form)


def masked(
    words: Words, asked: SumId, site: str, private: bytes, keys: Mapping[str, bytes]
) -> Words:
    """What a site sends for a sum: its words [number], the check word, and its masks on both.

    `keys`: the public keys of all sites of the set.
    """
    if words.shape != (asked.words - 1,):
        raise FuelsError(f"{asked}: {words.size} numbers do not fit the shape {asked.shape}")
    result = np.append(words, np.uint64(1))
    for other in asked.sites:
        if other == site:
            continue
        pair = (min(site, other), max(site, other))
        mask = _mask(private, keys[other], asked.info(pair), asked.words, other)
        result = result + mask if site == pair[0] else result - mask
    return result


def _mask(private: bytes, public: bytes, info: bytes, words: int, other: str) -> Words:
    try:
        own = X25519PrivateKey.from_private_bytes(private)
        secret = own.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # not 32 bytes, or a point that makes the secret zero
        raise FuelsError(f"the key of site {other} is not a usable X25519 key") from None
    key = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(secret)
    # A nonce of zeros: each key encrypts one stream only.
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * words)), dtype="<u8").astype(np.uint64)


def total(asked: SumId, replies: Mapping[str, Words]) -> Floats:
    """The sum over all sites of the set, from what they sent; refuses what cannot be decoded."""
    return from_words(added_up(asked, replies)).reshape(asked.shape)


def added_up(asked: SumId, replies: Mapping[str, Words]) -> Words:
    """The words [number] of all sites of the set together, without their masks."""
    missing = sorted(set(asked.sites) - replies.keys())
    if missing:
        raise FuelsError(f"{asked}: no sum without {', '.join(missing)}")
    added = np.zeros(asked.words, dtype=np.uint64)
    for site in asked.sites:
        words = replies[site]
        if words.shape != added.shape or words.dtype != added.dtype:
            raise FuelsError(f"{asked}: {site} sent {words.size} numbers of {added.size}")
        added += words
    if added[-1] != len(asked.sites):
        raise FuelsError(
            f"{asked}: the masks of {', '.join(asked.sites)} do not cancel, so their keys, rosters,"
            " versions or terms differ; the sum is not used"
        )
    return added[:-1]
