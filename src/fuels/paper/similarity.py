"""The server side of FUELS: similar clients (Section 3.3.2) and the global prototypes (Eq. 9-10).

The paper does not say how prototypes become distributions for the Jensen-Shannon divergence, and
GRU states are signed. Here a softmax over the columns turns each row of a prototype into a
distribution; the divergence of two prototypes is the mean over their rows, in nats. It is 0 for
equal prototypes and at most ln 2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Flags, Floats, Floats32, Integers
from fuels.kernels.dispatch import threads
from fuels.paper.divergence import pairwise_jsd

BLOCK = 512  # clients whose distributions or means are computed at once
SAME = 1e-5  # clients with equal data differ by less than this, because W_n is drawn


def softmax_rows(prototypes: Floats32) -> Floats32:
    """Rows [member, .., width] as distributions, computed in double precision in blocks."""
    rows = np.empty_like(prototypes)
    for start in range(0, len(prototypes), BLOCK):
        part = prototypes[start : start + BLOCK]
        weights = np.exp((part - part.max(axis=-1, keepdims=True)).astype(np.float64))
        rows[start : start + BLOCK] = weights / weights.sum(axis=-1, keepdims=True)
    return rows


def _blocks(rows: Integers) -> list[Integers]:
    """At least one block of some hundreds of clients: weights of all would take 8 N^2 bytes."""
    return np.array_split(rows, max(1, -(-len(rows) // BLOCK)))


class SimilarityTable:
    """All prototypes that the server has received, and their divergences.

    Divergences are kept: a round computes only the pairs with a client that sent a new prototype,
    so selecting a share alpha of the clients saves work.
    """

    def __init__(self, clients: Sequence[str], shape: tuple[int, ...]) -> None:
        self.position = {client: i for i, client in enumerate(clients)}
        self.clients = tuple(clients)
        count = len(self.clients)
        self.prototypes = np.zeros((count, *shape), dtype=np.float32)
        self.known = np.zeros(count, dtype=np.bool_)
        self.jsd = np.zeros((count, count), dtype=np.float32)
        self.pairs_computed = 0
        # Clients whose prototypes others get; None: not decided since the last update.
        self.used: Flags | None = None
        self.apart: Floats = np.zeros(count)  # their median divergences by direction
        # A number for each client's site, if every site has one vote; not in the paper.
        self.sites: Integers | None = None

    def update(
        self, clients: Sequence[str], prototypes: Floats32, sites: Sequence[str] = ()
    ) -> None:
        """Store new prototypes [client, row, width] and update their divergences.

        `sites`: of the clients, if every site has one vote.
        """
        fresh = np.array([self.position[client] for client in clients], dtype=np.int64)
        self.prototypes[fresh] = prototypes
        self.known[fresh] = True
        self.used = None
        if sites:
            if self.sites is None:
                self.sites = np.zeros(len(self.clients), dtype=np.int64)
            self.sites[fresh] = [_number(site) for site in sites]
        members = np.flatnonzero(self.known)
        place = np.full(len(self.clients), -1, dtype=np.int64)
        place[members] = np.arange(len(members))
        whole = len(members) == len(self.clients)  # then no copy is needed
        block = self.jsd if whole else np.ascontiguousarray(self.jsd[np.ix_(members, members)])
        known = self.prototypes if whole else self.prototypes[members]
        pairwise_jsd(softmax_rows(known), place[fresh], block, threads())
        if not whole:
            self.jsd[np.ix_(members, members)] = block
        old = len(members) - len(fresh)
        self.pairs_computed += len(fresh) * old + len(fresh) * (len(fresh) - 1) // 2

    def votes(self, used: Flags) -> Floats | None:
        """The votes of the used clients, which share the one of their site; None: one each."""
        if self.sites is None:
            return None
        _, place, count = np.unique(self.sites[used], return_inverse=True, return_counts=True)
        return 1 / count[place]

    def threshold(self, percentile: float, used: Flags | None = None) -> float:
        """beta: a percentile of the divergences of all pairs of different used clients.

        Default of `used`, here and below: all known clients.
        """
        members = np.flatnonzero(self.known if used is None else used)
        values = np.empty(len(members) * (len(members) - 1) // 2, dtype=np.float32)
        end = 0
        for i, member in enumerate(members):  # indices of all pairs would take 16 N^2 bytes
            later = members[i + 1 :]
            values[end : end + len(later)] = self.jsd[member, later]
            end += len(later)
        return max(SAME, float(np.percentile(values, percentile))) if values.size else SAME

    def known_among(self, clients: Sequence[str]) -> int:
        """How many of these clients have sent a prototype."""
        return int(self.known[[self.position[client] for client in clients]].sum())

    def alike(self, percentile: float) -> Flags:
        """Whether client m is in PC_n, [n, m]; a client is always in its own PC_n."""
        return (self.jsd <= self.threshold(percentile)) & self.known[None, :]

    def prototypes_for(
        self,
        clients: Sequence[str],
        percentile: float,
        *,
        used: Flags | None = None,
        farthest: float = 100.0,
        rows_as: Callable[[Floats32], Floats32] | None = None,
    ) -> tuple[tuple[str, ...], Floats32, Floats32]:
        """PR_n and NR_n (Eq. 9-10) of those clients that have both, with their names.

        A client that has not sent a prototype has neither; one without a dissimilar client has no
        NR_n and trains without L_inter. Not in the paper: only the clients in `used` are averaged
        (and n itself), a client beyond the percentile `farthest` is not a negative, and `rows_as`
        changes the rows before they are averaged.
        """
        rows = np.array([self.position[client] for client in clients], dtype=np.int64)
        used = self.known if used is None else used & self.known
        votes = None
        if self.sites is not None:
            votes = np.ones(len(self.clients))
            votes[used] = self.votes(used)
        near = self.threshold(percentile, used)
        far = np.inf if farthest >= 100 else self.threshold(farthest, used)
        prototypes = self.prototypes if rows_as is None else rows_as(self.prototypes)
        flat = prototypes.reshape(len(self.clients), -1)
        means = partial(self._means, near=near, far=far, used=used, flat=flat, votes=votes)
        with ThreadPoolExecutor(threads()) as pool:  # matrix products in parallel
            pieces = list(pool.map(means, _blocks(rows)))
        has, positive, negative = (np.concatenate(each) for each in zip(*pieces, strict=True))
        having = tuple(client for client, yes in zip(clients, has, strict=True) if yes)
        shape = (-1, *self.prototypes.shape[1:])
        return having, positive.reshape(shape), negative.reshape(shape)

    def _means(
        self,
        rows: Integers,
        near: float,
        far: float,
        used: Flags,
        flat: Floats32,
        votes: Floats | None,
    ) -> tuple[Flags, Floats32, Floats32]:
        """Which of these clients have both, and the means of those that do."""
        alike = (self.jsd[rows] <= near) & used[None, :]
        unlike = ~alike & used[None, :]
        if far < np.inf:
            unlike &= self.jsd[rows] <= far
        alike[np.arange(len(rows)), rows] = self.known[rows]  # n is in PC_n
        has = self.known[rows] & unlike.any(axis=1)
        positive, negative = (_weights(side[has], votes) @ flat for side in (alike, unlike))
        return has, positive, negative

    def state(self) -> dict[str, NDArray[Any]]:
        state = {
            "prototypes": self.prototypes,
            "known": self.known,
            "jsd": self.jsd,
            "pairs_computed": np.array([self.pairs_computed]),
        }
        return state if self.sites is None else {**state, "sites": self.sites}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a saved table; clients that joined later come after those in it."""
        self.used = None
        old = len(state["known"])
        self.prototypes[:old] = state["prototypes"]
        self.known[:old] = state["known"]
        self.jsd[:old, :old] = state["jsd"]
        self.pairs_computed = int(state["pairs_computed"][0])
        if "sites" in state:
            self.sites = np.zeros(len(self.clients), dtype=np.int64)
            self.sites[:old] = state["sites"]


def _weights(members: Flags, votes: Floats | None) -> Floats32:
    """The weight of each member in a mean, [n, m]."""
    counted = members if votes is None else members * votes
    weights = counted / counted.sum(axis=1, keepdims=True)
    del members, counted  # as large as a table of all pairs
    rounded: Floats32 = weights.astype(np.float32)
    return rounded


def _number(site: str) -> int:
    """A number that identifies a site, also after a restart."""
    return int.from_bytes(hashlib.sha256(site.encode()).digest()[:7], "big") + 1
