"""What travels between sites and server, and how much of it.

A method fills these messages, a transport carries them, and nothing else travels. Arrays are
float32 and stacked over the clients they belong to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from fuels.arrays import Floats32, Integers

Arrays = dict[str, Floats32]

BYTES = 4  # of one float32


@dataclass(frozen=True)
class Upload:
    """What clients send: arrays [client, ...] and, if the method weights clients by it, the number
    of samples that each trained on."""

    clients: tuple[str, ...]
    arrays: Arrays
    samples: Integers | None = None  # [client]; not counted as payload
    sites: tuple[str, ...] = ()  # of the clients, if every site has one vote; nobody sends them

    @property
    def numbers(self) -> int:
        """Numbers sent per client."""
        return sum(prod(array.shape[1:]) for array in self.arrays.values())

    @property
    def weights(self) -> Integers:
        """The samples of each client, for a method that declares to count them."""
        assert self.samples is not None, "the method does not declare that samples are counted"
        return self.samples

    def take(self, rows: Sequence[int]) -> Upload:
        index = np.asarray(rows, dtype=np.int64)
        return Upload(
            clients=tuple(self.clients[i] for i in index),
            arrays={name: array[index] for name, array in self.arrays.items()},
            samples=None if self.samples is None else self.samples[index],
            sites=tuple(self.sites[i] for i in index) if self.sites else (),
        )


@dataclass(frozen=True)
class Download:
    """What the server sends: arrays for everyone, and arrays [client, ...] for some clients."""

    shared: Arrays = field(default_factory=dict)
    personal: Arrays = field(default_factory=dict)
    clients: tuple[str, ...] = ()  # of the rows of `personal`

    def numbers(self, receivers: Sequence[str]) -> float:
        """Numbers received per client, on average over the receivers."""
        shared = sum(array.size for array in self.shared.values())
        row = sum(prod(array.shape[1:]) for array in self.personal.values())
        having = len(set(self.clients) & set(receivers))
        return shared + row * having / max(1, len(receivers))

    def take(self, clients: Sequence[str]) -> Download:
        """The part for these clients."""
        wanted = set(clients)
        rows = [i for i, client in enumerate(self.clients) if client in wanted]
        return Download(
            shared=self.shared,
            personal={name: array[rows] for name, array in self.personal.items()},
            clients=tuple(self.clients[i] for i in rows),
        )


def concatenate(uploads: Sequence[Upload]) -> Upload:
    """Uploads of several groups or sites as one."""
    names = uploads[0].arrays.keys()
    counts = [upload.samples for upload in uploads if upload.samples is not None]
    return Upload(
        clients=tuple(client for upload in uploads for client in upload.clients),
        arrays={n: np.concatenate([upload.arrays[n] for upload in uploads]) for n in names},
        samples=np.concatenate(counts) if counts else None,
        sites=tuple(site for upload in uploads for site in upload.sites),
    )
