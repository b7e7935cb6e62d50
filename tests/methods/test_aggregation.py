"""Robust rules against independent NumPy and SciPy versions, and against what they must resist."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import trim_mean

from fuels.config import Defence
from fuels.methods.admission import (
    admitted,
    divergences,
    median,
    shares_of_votes,
    unit_rows,
)
from fuels.methods.aggregation import (
    admitted_models,
    aggregated,
    clipped,
    false_clients,
    jointly_bounded,
    krum,
    squared_distances,
    update_norms,
    weights_by_site,
)
from fuels.methods.base import weighted_mean
from fuels.methods.messages import Arrays
from fuels.paper.similarity import SimilarityTable

SIZES = {"encoder": 5000, "decoder": 7}  # more than one block of columns


def models(clients: int, seed: int = 0) -> tuple[Arrays, Arrays]:
    """A global model and clients that moved in a common direction, each with its own deviation."""
    rng = np.random.default_rng(seed)
    before = {n: rng.standard_normal(size).astype(np.float32) for n, size in SIZES.items()}
    sent = {}
    for name, size in SIZES.items():
        common = rng.standard_normal(size)
        moves = 0.1 * (common + rng.standard_normal((clients, size)))
        sent[name] = (before[name] + moves).astype(np.float32)
    return sent, before


def joined(arrays: Arrays) -> np.ndarray:
    return np.concatenate([arrays[name] for name in SIZES], axis=-1).astype(np.float64)


@pytest.mark.parametrize("clients", [1, 2, 3, 10, 11])
def test_rules_equal_independent_versions(clients: int) -> None:
    sent, before = models(clients)
    weights, rows = np.arange(1, clients + 1), joined(sent)
    cut = false_clients(clients, 0.2)
    expected = {
        "mean": np.average(rows, axis=0, weights=weights),
        "trimmed": trim_mean(rows, cut / clients + 1e-12, axis=0),
        "median": np.median(rows, axis=0),
        "krum": plain_multi_krum(rows, cut),
    }
    for rule, value in expected.items():
        found = aggregated(sent, weights, before, Defence(aggregation=rule))
        np.testing.assert_allclose(joined(found), value, rtol=0, atol=2e-6, err_msg=rule)


def plain_multi_krum(rows: np.ndarray, false: int) -> np.ndarray:
    """The mean of the n - f models with the lowest scores, with loops."""
    count = len(rows)
    scores = []
    for i in range(count):
        apart = sorted(((rows[i] - rows[j]) ** 2).sum() for j in range(count) if j != i)
        scores.append(sum(apart[: max(1, count - false - 2)]))
    kept = sorted(range(count), key=lambda i: scores[i])[: count - false]
    return np.asarray(np.mean([rows[i] for i in kept], axis=0))


def test_without_defences_the_mean_is_the_same_to_the_bit() -> None:
    sent, before = models(9)
    weights = np.arange(1, 10)
    found = aggregated(sent, weights, before, Defence())
    for name in SIZES:
        assert found[name].tobytes() == weighted_mean(sent[name], weights).tobytes()


def test_clipping_shortens_only_what_is_too_long() -> None:
    sent, before = models(7)
    sent["encoder"][2] = before["encoder"] + 50
    norms = update_norms(sent, before)
    np.testing.assert_allclose(norms, np.linalg.norm(joined(sent) - joined(before), axis=1))
    short = clipped(sent, before, 2.0)
    bound = 2 * np.median(norms)
    moved = joined(short) - joined(before)
    assert np.linalg.norm(moved[2]) == pytest.approx(bound, rel=1e-4)
    direction = (joined(sent)[2] - joined(before)) / norms[2]
    np.testing.assert_allclose(moved[2] / bound, direction, atol=1e-5)
    for name in SIZES:
        assert (np.delete(short[name], 2, 0) == np.delete(sent[name], 2, 0)).all()


def test_with_clipping_nobody_counts_for_more_than_the_median_client() -> None:
    """Two of ten claim a hundred times the samples; whoever has fewer still counts for less."""
    sent, before = models(10)
    claimed = np.array([90_000, 90_000, 450, *[900] * 7])
    bounded = np.array([900, 900, 450, *[900] * 7])
    found, expected = (
        joined(aggregated(sent, weights, before, defence))
        for weights, defence in ((claimed, Defence(clip=1e6)), (bounded, Defence()))
    )
    np.testing.assert_array_equal(found, expected)
    assert np.abs(joined(aggregated(sent, claimed, before, Defence())) - expected).max() > 0.01


def plain_joint_bound(updates: np.ndarray, k: float) -> np.ndarray:
    """The same with a singular value decomposition of all updates, and loops."""
    left, lengths, directions = np.linalg.svd(updates, full_matrices=False)
    for column, length in enumerate(lengths):
        moves = left[:, column] * length
        middle = np.median(moves)
        spread = k * np.median(np.abs(moves - middle))
        left[:, column] = [min(max(m, middle - spread), middle + spread) / length for m in moves]
    return np.asarray(left @ np.diag(lengths) @ directions)


@pytest.mark.parametrize(("clients", "k"), [(5, 1.0), (11, 2.0), (20, 4.0)])
def test_the_joint_bound_equals_a_plain_version(clients: int, k: float) -> None:
    sent, before = models(clients)
    sent = {name: rows + 0.2 * (np.arange(clients) < 2)[:, None] for name, rows in sent.items()}
    sent = {name: rows.astype(np.float32) for name, rows in sent.items()}
    found = joined(jointly_bounded(sent, before, k)) - joined(before)
    expected = plain_joint_bound(joined(sent) - joined(before), k)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(joined(sent) - joined(before) - expected).max() > 0.01, "nothing was cut"


def test_what_some_clients_do_together_is_bounded_and_the_rest_stays() -> None:
    """Four of twenty push in a common direction, with updates no longer than the others'."""
    rng = np.random.default_rng(2)
    honest = rng.standard_normal((20, 400))
    push = np.zeros(400)
    push[7] = np.median(np.linalg.norm(honest, axis=1))
    sent = honest.copy()
    sent[:4] = push
    before = {"encoder": np.zeros(400, np.float32)}

    def mean(rows: np.ndarray, joint: float = 0.0) -> np.ndarray:
        given = {"encoder": rows.astype(np.float32)}
        return aggregated(given, np.ones(20), before, Defence(clip=2.0, joint=joint))["encoder"]

    assert abs(mean(sent, joint=5.0)[7]) < 0.4 * mean(sent)[7]
    others = np.arange(400) != 7
    np.testing.assert_allclose(mean(sent, joint=5.0)[others], mean(sent)[others], atol=0.1)
    np.testing.assert_allclose(mean(honest, joint=5.0), mean(honest), atol=0.05)


def test_a_joint_bound_that_cuts_nothing_changes_no_bit() -> None:
    sent, before = models(9)
    assert jointly_bounded(sent, before, 1e6) is sent
    few, _ = models(4)
    assert jointly_bounded(few, before, 0.1) is few
    still = {name: np.tile(row, (6, 1)) for name, row in before.items()}
    assert jointly_bounded(still, before, 0.1) is still


def test_the_joint_bound_counts_votes_of_sites() -> None:
    """A site that invents most of the clients decides the median, unless sites vote."""
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((16, 60))
    rows[6:, 0] += 40
    sent, before = {"encoder": rows.astype(np.float32)}, {"encoder": np.zeros(60, np.float32)}
    votes = shares_of_votes([*map(str, range(6)), *["crowd"] * 10])
    assert jointly_bounded(sent, before, 3.0)["encoder"][6:, 0].mean() > 30
    assert jointly_bounded(sent, before, 3.0, votes)["encoder"][6:, 0].mean() < 20


def test_distances_of_huge_weights_do_not_overflow() -> None:
    sent, _ = models(4)
    sent["decoder"][1] = 3e38
    apart = squared_distances(sent)
    assert np.isfinite(apart).all()
    assert 1 not in krum(sent, 0.25)


@pytest.mark.parametrize("value", [-10.0, 3e38])
@pytest.mark.parametrize(
    "defence",
    [Defence(aggregation=rule) for rule in ("trimmed", "median", "krum")]
    + [Defence(clip=1.0), Defence(clip=2.0, joint=5.0)],
)
def test_two_of_ten_attackers_cannot_turn_the_model(value: float, defence: Defence) -> None:
    sent, before = models(10)
    honest = joined(sent)[2:].mean(axis=0) - joined(before)
    for name in SIZES:
        update = sent[name][:2] - before[name]
        sent[name][:2] = before[name] + value * update if value > -11 and value < 0 else value
    found = joined(aggregated(sent, np.ones(10, int), before, defence)) - joined(before)
    cosine = found @ honest / np.linalg.norm(found) / np.linalg.norm(honest)
    assert cosine > 0.6


# -- admission -------------------------------------------------------------------------------------


def prototypes(clients: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    common = rng.uniform(-0.6, 0.6, (12, 32))
    own = rng.uniform(0.1, 0.3, (clients, 1, 1)) * rng.standard_normal((clients, 12, 32))
    return (common + own).clip(-1, 1).astype(np.float32)


def test_divergences_equal_loops() -> None:
    sent = prototypes(7)
    found = divergences(sent)
    for i in range(7):
        apart = []
        for j in range(7):
            if j != i:
                norms = np.linalg.norm(sent[i], axis=1) * np.linalg.norm(sent[j], axis=1)
                apart.append(1 - np.mean((sent[i] * sent[j]).sum(axis=1) / norms))
        assert found[i] == pytest.approx(np.median(apart), abs=1e-6)


@pytest.mark.parametrize("attack", ["flip", "constant", "random", "shift"])
def test_crude_prototypes_are_not_admitted(attack: str) -> None:
    sent = prototypes(20)
    assert admitted(sent, 5.0).sum() >= 19
    sent[:4] = {
        "flip": -sent[:4],
        "constant": np.ones_like(sent[:4]),
        "random": np.random.default_rng(1).uniform(-1, 1, sent[:4].shape),
        "shift": sent[:4] + 0.9,  # a softmax over the columns does not notice it
    }[attack]
    used = admitted(sent, 5.0)
    assert not used[:4].any() and used[4:].sum() >= 15


def test_few_clients_are_all_admitted() -> None:
    sent = prototypes(4)
    sent[0] = -sent[0]
    assert admitted(sent, 1.0).all() and admitted(prototypes(20), 0.0).all()


def test_rows_of_zeros_stay() -> None:
    rows = np.array([[[3.0, 4.0], [0.0, 0.0]]], np.float32)
    np.testing.assert_allclose(unit_rows(rows), [[[0.6, 0.8], [0, 0]]])


def test_flipped_updates_are_not_admitted() -> None:
    sent, before = models(10)
    sent = {name: rows.copy() for name, rows in sent.items()}
    for name in SIZES:
        sent[name][:2] = 2 * before[name] - sent[name][:2]
    used = admitted_models(sent, before, 5.0)
    assert not used[:2].any() and used[2:].sum() >= 7


def test_a_weighted_median_is_the_value_at_half_of_the_votes() -> None:
    values, votes = np.array([3.0, 1.0, 2.0, 9.0]), np.array([1.0, 1.0, 1.0, 4.0])
    assert median(values, None) == 2.5 and median(values, votes) == 9.0
    assert median(values, np.array([1.0, 1.0, 1.0, 0.5])) == 2.0
    rows = np.stack([values, values[::-1]])
    np.testing.assert_array_equal(median(rows, np.ones(4)), [2.0, 2.0])


def test_a_site_that_invents_clients_has_one_vote() -> None:
    """Ten sites of one honest client, and one with thirty that send the opposite."""
    rng = np.random.default_rng(3)
    honest = 1 + 0.1 * rng.standard_normal((10, 40))
    sent = {"encoder": np.vstack([honest, -honest[rng.integers(10, size=30)]]).astype(np.float32)}
    before = {"encoder": np.zeros(40, dtype=np.float32)}
    sites, samples = [*map(str, range(10)), *["crowd"] * 30], np.full(40, 5)
    assert admitted_models(sent, before, 5.0)[10:].all()  # the crowd decides
    kept = admitted_models(sent, before, 5.0, shares_of_votes(sites))
    assert kept[:10].all() and not kept[10:].any()
    weights = weights_by_site(samples, sites)
    mean = aggregated(sent, weights, before, Defence())["encoder"].mean()
    assert mean == pytest.approx((10 - 1) / 11, abs=0.05)
    counted = aggregated(sent, samples, before, Defence())["encoder"].mean()
    assert counted == pytest.approx((10 - 30) / 40, abs=0.05)


def test_prototypes_of_a_site_share_one_vote() -> None:
    """A client of north and two of south are alike, and one of east is not."""
    rows = np.array([[[1, 0, 0]], [[0.98, 0, 0]], [[0.96, 0, 0]], [[0, 0, 1]]], dtype=np.float32)
    clients = ("a", "b", "c", "e")

    def positive(sites: tuple[str, ...]) -> float:
        table, again = (SimilarityTable(clients, (1, 3)) for _ in range(2))
        table.update(clients, rows, sites)
        again.load(table.state())
        having, found, _ = again.prototypes_for(["a"], 50.0)
        assert having == ("a",)
        return float(found[0, 0, 0])

    assert positive(()) == pytest.approx((1 + 0.98 + 0.96) / 3)
    assert positive(("north", "south", "south", "east")) == pytest.approx((1 + 0.97) / 2)
