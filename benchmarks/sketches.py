"""Aggregation without all pairs: what sketches and clusters of prototypes would give and cost.

The server of FUELS compares all pairs of prototypes of 24 x 256 numbers. Two ways out at scale,
simulated on the prototypes of a real training run, against the exact way:

- sketch: the root of a distribution makes the Jensen-Shannon divergence nearly a squared distance
  (the Hellinger distance), and a random projection to k numbers keeps squared distances
  (Johnson-Lindenstrauss). A pair then costs k multiplications in one matrix product.
- clusters: k-means on the sketches; a client compares itself with K centres and takes the mean of
  whole clusters, so that the cost is linear in the clients.

"same side" is the share of pairs that are divided into alike and unlike as by the exact way, "PR"
and "NR" how far the means are from the exact ones, relative to the spread of those over clients.
`--large N` times the clusters for N clients made from the real prototypes with noise.

    python benchmarks/sketches.py [--clients 1000] [--rounds 3] [--large 100000]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from numpy.typing import NDArray

from fuels.config import Engine, Settings, merge
from fuels.paper.similarity import SimilarityTable, softmax_rows
from fuels.runs.build import build

Floats = NDArray[np.float32]
BETA = 50.0


def train(clients: int, rounds: int) -> Floats:
    """Prototypes [client, 24, 256] after some rounds on synthetic Net data."""
    changes = {
        "data": {"source": "synthetic:net", "clients": clients},
        "training": {"rounds": rounds},
        "windows": {"split": "40/0/11"},
    }
    with build(merge(Settings(), changes, "benchmark"), Engine()) as job:
        for _ in range(rounds):
            job.loop.step()
        table = job.loop.server
        assert isinstance(table, SimilarityTable)
        return table.prototypes[table.known].copy()


def sketches(prototypes: Floats, k: int, rng: np.random.Generator) -> Floats:
    """[client, k]: roots of the distributions, projected."""
    flat = prototypes.reshape(len(prototypes), -1)
    projection = (rng.standard_normal((flat.shape[1], k)) / np.sqrt(k)).astype(np.float32)
    result = np.empty((len(flat), k), dtype=np.float32)
    for start in range(0, len(flat), 2000):
        roots = np.sqrt(softmax_rows(prototypes[start : start + 2000]))
        roots -= 1 / np.sqrt(roots.shape[-1])  # nearly all of a root is common to all
        result[start : start + 2000] = roots.reshape(len(roots), -1) @ projection
    return result


def distances(a: Floats, b: Floats) -> Floats:
    """Squared distances of rows, by one product."""
    found: Floats = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * a @ b.T
    return found


def sides(alike: NDArray[np.bool_], prototypes: Floats) -> tuple[Floats, Floats]:
    """PR and NR of every client (Eq. 9 and 10)."""
    flat = prototypes.reshape(len(prototypes), -1)
    pair = []
    for side in (alike, ~alike):
        weight = side / np.maximum(side.sum(1, keepdims=True), 1)
        pair.append(weight.astype(np.float32) @ flat)
    return pair[0], pair[1]


def apart(found: Floats, exact: Floats) -> float:
    """Root mean square distance, relative to the spread of the exact means over the clients."""
    spread = np.sqrt(((exact - exact.mean(0)) ** 2).sum(1).mean())
    return float(np.sqrt(((found - exact) ** 2).sum(1).mean()) / spread)


def k_means(
    points: Floats, count: int, rng: np.random.Generator, turns: int = 10
) -> NDArray[np.int64]:
    """The cluster of every point; Lloyd's algorithm from random points, in blocks."""
    centres = points[rng.choice(len(points), count, replace=False)].copy()
    nearest = np.zeros(len(points), dtype=np.int64)
    for _ in range(turns):
        for start in range(0, len(points), 20000):
            block = points[start : start + 20000]
            nearest[start : start + 20000] = distances(block, centres).argmin(1)
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, points)
        sizes = np.bincount(nearest, minlength=count)
        centres[sizes > 0] = sums[sizes > 0] / sizes[sizes > 0, None]
    return nearest


def by_clusters(
    points: Floats, prototypes: Floats, count: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.bool_], Floats, Floats]:
    """Cluster of each client, alike [cluster, cluster], and PR and NR of each cluster."""
    nearest = k_means(points, count, rng)
    order = np.argsort(nearest, kind="stable")
    sizes = np.bincount(nearest, minlength=count)
    flat = prototypes.reshape(len(prototypes), -1)
    sums = np.zeros((count, flat.shape[1]), dtype=np.float32)
    centres = np.zeros((count, points.shape[1]), dtype=np.float32)
    at = 0
    for cluster, size in enumerate(sizes):
        members = order[at : at + size]
        at += size
        if size:
            sums[cluster], centres[cluster] = flat[members].sum(0), points[members].mean(0)
    gaps = distances(centres, centres)
    weights = np.outer(sizes, sizes)[np.triu_indices(count, 1)]
    values = gaps[np.triu_indices(count, 1)]
    rank = np.argsort(values)
    # The percentile of all pairs of clients: those inside a cluster count as alike.
    inside = float((sizes * (sizes - 1) / 2).sum())
    below = inside + np.cumsum(weights[rank])
    beta = values[rank][min(np.searchsorted(below, BETA / 100 * below[-1]), len(rank) - 1)]
    alike = (gaps <= beta) | np.eye(count, dtype=bool)
    pair = []
    for side in (alike, ~alike):
        weight = side.astype(np.float32)
        pair.append(weight @ sums / np.maximum(weight @ sizes.astype(np.float32), 1)[:, None])
    return nearest, alike, pair[0], pair[1]


def compare(prototypes: Floats) -> None:
    """Sketches and clusters of several sizes against the exact way."""
    count = len(prototypes)
    table = SimilarityTable([str(i) for i in range(count)], prototypes.shape[1:])
    start = time.perf_counter()
    table.update(table.clients, prototypes)
    exact = table.alike(BETA)
    positive, negative = sides(exact, prototypes)
    print(f"{count} prototypes; exact: {time.perf_counter() - start:.2f} s")
    print("| way | same side | PR | NR | seconds |\n|---|---|---|---|---|")

    def show(name: str, alike: NDArray[np.bool_], pr: Floats, nr: Floats, took: float) -> None:
        same = 100 * float((alike == exact).mean())
        print(
            f"| {name} | {same:.1f} % | {apart(pr, positive):.3f} | {apart(nr, negative):.3f}"
            f" | {took:.2f} |"
        )

    for k in (16, 64, 256):
        rng = np.random.default_rng(k)
        start = time.perf_counter()
        points = sketches(prototypes, k, rng)
        gaps = distances(points, points)
        alike = gaps <= np.percentile(gaps[np.triu_indices(count, 1)], BETA)
        alike |= np.eye(count, dtype=bool)
        pr, nr = sides(alike, prototypes)
        show(f"sketch, k = {k}", alike, pr, nr, time.perf_counter() - start)
    for clusters in (16, 64, 256):
        rng = np.random.default_rng(clusters)
        start = time.perf_counter()
        points = sketches(prototypes, 64, rng)
        nearest, among, pr, nr = by_clusters(points, prototypes, min(clusters, count), rng)
        took = time.perf_counter() - start
        show(
            f"{clusters} clusters of sketches, k = 64",
            among[np.ix_(nearest, nearest)],
            pr[nearest],
            nr[nearest],
            took,
        )


def enlarge(prototypes: Floats, count: int) -> Floats:
    """`count` prototypes: real ones, each drawn anew with noise."""
    rng = np.random.default_rng(0)
    result = prototypes[rng.integers(len(prototypes), size=count)]
    for start in range(0, count, 2000):
        noise = rng.standard_normal(result[start : start + 2000].shape, dtype=np.float32)
        result[start : start + 2000] += np.float32(0.02) * noise
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", type=int, default=0)
    options = parser.parse_args()
    prototypes = train(options.clients, options.rounds)
    compare(prototypes)
    if options.large:
        many = enlarge(prototypes, options.large)
        start = time.perf_counter()
        rng = np.random.default_rng(0)
        points = sketches(many, 64, rng)
        sketched = time.perf_counter() - start
        by_clusters(points, many, 256, rng)
        took = time.perf_counter() - start
        print(f"{options.large} clients, 256 clusters: {took:.1f} s, {sketched:.1f} for sketches")


if __name__ == "__main__":
    main()
