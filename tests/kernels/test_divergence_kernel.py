"""The pairwise Jensen-Shannon divergence against scipy, and its own promises."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from fuels.kernels.dispatch import use_kernels
from fuels.paper.divergence import pairwise_jsd
from helpers.panels import distributions

pytestmark = pytest.mark.usefixtures("fused")


def scipy_jsd(P: np.ndarray) -> np.ndarray:
    wide = P.astype(np.float64)
    return np.array([[np.mean(jensenshannon(p, q, axis=-1) ** 2) for q in wide] for p in wide])


@pytest.mark.parametrize("kernels", ["fused", "plain"])
@pytest.mark.parametrize("spread", [0.001, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("rows, width", [(24, 256), (3, 7)])
def test_jsd_equals_scipy(kernels: str, spread: float, rows: int, width: int) -> None:
    use_kernels(kernels)
    P = distributions(5, rows, width, seed=12, spread=spread)
    out = np.full((5, 5), 9.0, dtype=np.float32)
    pairwise_jsd(P, np.arange(5), out)
    wanted = scipy_jsd(P)
    np.fill_diagonal(wanted, 0.0)
    np.testing.assert_allclose(out, wanted, rtol=2e-6, atol=1e-12)  # also far below 1e-6


@pytest.mark.parametrize("kernels", ["fused", "plain"])
def test_jsd_with_zeros_by_hand(kernels: str) -> None:
    use_kernels(kernels)
    P = np.array([[[1, 0, 0]], [[0, 1, 0]], [[0.5, 0.5, 0]], [[1, 0, 0]]], dtype=np.float32)
    out = np.empty((4, 4), dtype=np.float32)
    pairwise_jsd(P, np.arange(4), out)
    half = 0.5 * (np.log(4 / 3) + 0.5 * np.log(2 / 3) + 0.5 * np.log(2))
    a, b = np.log(2), half
    wanted = np.array([[0, a, b, 0], [a, 0, b, a], [b, b, 0, b], [0, a, b, 0]])
    np.testing.assert_allclose(out, wanted, atol=1e-7)
    assert out[0, 3] == 0.0


def test_jsd_of_long_prototypes_of_single_peaks() -> None:
    """As long as a concatenation prototype, and as far apart as can be: ln 2 in every row."""
    rng = np.random.default_rng(4)
    peaks = np.stack([rng.permutation(16)[:2] for _ in range(888)])
    P = np.zeros((2, 888, 16), dtype=np.float32)
    for member in range(2):
        P[member, np.arange(888), peaks[:, member]] = 1.0
    out = np.zeros((2, 2), dtype=np.float32)
    pairwise_jsd(P, np.arange(2), out)
    assert abs(float(out[0, 1]) - np.log(2)) < 2e-7


def test_jsd_touches_only_pairs_with_a_fresh_member() -> None:
    P = distributions(9, 4, 32, seed=13, spread=0.5)
    out = np.full((9, 9), -1.0, dtype=np.float32)
    fresh = np.array([7, 2])
    pairwise_jsd(P, fresh, out)
    touched = np.zeros((9, 9), dtype=bool)
    touched[fresh] = touched[:, fresh] = True
    assert np.all(out[~touched] == -1.0)
    whole = np.empty((9, 9), dtype=np.float32)
    pairwise_jsd(P, np.arange(9), whole)
    assert np.array_equal(out[touched], whole[touched])
    assert np.array_equal(whole, whole.T)
    assert np.all(np.diag(whole) == 0.0)


def test_jsd_does_not_depend_on_threads() -> None:
    P = distributions(70, 6, 64, seed=14, spread=0.3)
    results = [np.empty((70, 70), dtype=np.float32) for _ in range(3)]
    for threads, out in zip((1, 2, 5), results, strict=True):
        pairwise_jsd(P, np.arange(70), out, threads)
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


def test_jsd_of_equal_points_is_exactly_zero() -> None:
    P = np.repeat(distributions(1, 5, 48, seed=15, spread=1.0), 3, axis=0)
    out = np.empty((3, 3), dtype=np.float32)
    pairwise_jsd(P, np.arange(3), out)
    assert np.all(out == 0.0)
