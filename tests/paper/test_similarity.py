"""Aggregation against numbers worked by hand, and the reuse of divergences."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from fuels.paper.similarity import SimilarityTable, softmax_rows


def draw(clients: int, seed: int = 0, rows: int = 4, width: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (clients, rows, width)).astype(np.float32)


def divergence(one: np.ndarray, other: np.ndarray) -> float:
    """The square of scipy's distance, row by row, in double precision."""
    p, q = (np.exp(x.astype(np.float64)) for x in (one, other))
    p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
    return float(np.mean(jensenshannon(p, q, axis=-1) ** 2))


def test_divergence_is_the_square_of_scipys_distance() -> None:
    prototypes = draw(5)
    table = SimilarityTable("abcde", (4, 6))
    table.update("abcde", prototypes)
    for i in range(5):
        for j in range(5):
            assert table.jsd[i, j] == pytest.approx(
                divergence(prototypes[i], prototypes[j]), abs=1e-6
            )
    assert (np.diag(table.jsd) == 0).all()
    assert table.jsd.max() <= np.log(2)


def test_rows_become_distributions() -> None:
    rows = softmax_rows(np.array([[[0.0, np.log(3.0)]]], dtype=np.float32))
    np.testing.assert_allclose(rows, [[[0.25, 0.75]]], rtol=1e-6)


def test_aggregation_by_hand() -> None:
    """a and b are equal, c is far: PR of a is the mean of a and b, its NR is c."""
    near = np.array([[1.0, -1.0]], dtype=np.float32)
    far = np.array([[-1.0, 1.0]], dtype=np.float32)
    table = SimilarityTable("abc", (1, 2))
    table.update("abc", np.stack([near, near, far]))
    # Divergences: ab 0, ac = bc = d. Median of (0, d, d) is d: everyone is alike.
    assert table.threshold(50) == pytest.approx(table.jsd[0, 2])
    having, _, _ = table.prototypes_for("abc", 50)
    assert having == ()
    # The 25th percentile lies between 0 and d: only a and b are alike.
    having, positive, negative = table.prototypes_for("abc", 25)
    assert having == ("a", "b", "c")
    np.testing.assert_allclose(positive, [near, near, far])
    np.testing.assert_allclose(negative, [far, far, near])


def test_positive_and_negative_are_the_means_of_their_sides() -> None:
    prototypes = draw(9, seed=3)
    table = SimilarityTable("abcdefghi", (4, 6))
    table.update("abcdefghi", prototypes)
    having, positive, negative = table.prototypes_for("abcdefghi", 50)
    beta = np.percentile(table.jsd[np.triu_indices(9, k=1)], 50)
    for row, client in enumerate(having):
        alike = table.jsd["abcdefghi".index(client)] <= beta
        assert alike["abcdefghi".index(client)]  # n is in PC_n
        np.testing.assert_allclose(positive[row], prototypes[alike].mean(0), atol=1e-6)
        np.testing.assert_allclose(negative[row], prototypes[~alike].mean(0), atol=1e-6)


def test_only_pairs_with_a_fresh_member_are_computed() -> None:
    table = SimilarityTable("abcdefgh", (4, 6))
    table.update("abcdefgh", draw(8))
    assert table.pairs_computed == 28
    poisoned = table.jsd.copy()
    poisoned[0, 1] = poisoned[1, 0] = 0.123  # neither a nor b is fresh: must be left as it is
    table.jsd = poisoned.copy()
    table.update("ch", draw(2, seed=9))
    assert table.pairs_computed == 28 + 2 * 6 + 1
    assert table.jsd[0, 1] == np.float32(0.123)
    assert (table.jsd[2] != poisoned[2]).sum() == 7


def test_a_newcomer_joins_without_touching_the_others() -> None:
    table = SimilarityTable("abcd", (4, 6))
    table.update("abc", draw(3))
    assert table.known_among("abcd") == 3
    assert table.prototypes_for("d", 50)[0] == ()
    before = table.jsd[:3, :3].copy()
    table.update("d", draw(1, seed=5))
    np.testing.assert_array_equal(table.jsd[:3, :3], before)
    assert "d" in table.prototypes_for("abcd", 50)[0]


def test_state_is_restored() -> None:
    table = SimilarityTable("abc", (4, 6))
    table.update("abc", draw(3))
    other = SimilarityTable("abc", (4, 6))
    other.load(table.state())
    np.testing.assert_array_equal(other.jsd, table.jsd)
    assert other.pairs_computed == table.pairs_computed


@pytest.mark.parametrize("clients", ["a", "ab"])
def test_too_few_clients_have_nothing_to_share(clients: str) -> None:
    table = SimilarityTable(clients, (4, 6))
    table.update(clients, draw(len(clients)))
    assert table.prototypes_for(clients, 50)[0] == ()


def drawn_table(clients: int, shape: tuple[int, int] = (2, 4)) -> SimilarityTable:
    ids = [f"c{i:04d}" for i in range(clients)]
    table = SimilarityTable(ids, shape)
    draws = np.random.default_rng(7).normal(size=(clients, *shape))
    table.update(ids, draws.astype(np.float32))
    return table


def test_means_do_not_depend_on_the_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    table = drawn_table(11)
    wanted = table.prototypes_for(table.clients, 40)
    monkeypatch.setattr("fuels.paper.similarity.BLOCK", 3)
    found = table.prototypes_for(table.clients, 40)
    assert found[0] == wanted[0] and len(found[0]) == 11
    for ours, whole in zip(found[1:], wanted[1:], strict=True):
        np.testing.assert_allclose(ours, whole, rtol=0, atol=1e-6)


def test_the_server_keeps_few_copies_of_prototypes() -> None:
    """As distributions once more, and in double precision only some of them."""
    count, shape = 2000, (4, 32)
    size = 4 * count * shape[0] * shape[1]
    drawn = np.random.default_rng(0).random((count, *shape), dtype=np.float32)
    softmax_rows(drawn[:2])
    tracemalloc.start()
    try:
        softmax_rows(drawn)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size < peak < 3 * size


def test_the_server_keeps_few_pair_tables_at_once() -> None:
    """Bytes per pair of clients: 4 are the table of divergences itself, 4 more find beta."""
    clients = 1200
    drawn_table(3).prototypes_for(["c0000"], 50)  # loads the kernels
    tracemalloc.start()
    try:
        table = drawn_table(clients)
        table.prototypes_for(table.clients, 50)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 9 * clients**2
