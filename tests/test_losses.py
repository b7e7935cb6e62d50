"""The losses and prototypes of FUELS, by hand and in single against double precision."""

from __future__ import annotations

from math import e, exp, log

import pytest
import torch
from torch import Tensor

from fuels.losses import inter_loss, intra_loss, prediction_loss, unit
from fuels.prototypes import ConcatenationPrototype, PeriodicPrototype

HALF = torch.tensor([[0.5, 0.5]])
AXES = torch.eye(2).unsqueeze(0)  # two rows at right angles: similarity 1 with itself, else 0


def number(value: Tensor) -> float:
    assert value.shape == (1,)
    return float(value)


# -- by hand ---------------------------------------------------------------------------------------


def test_unit_rows() -> None:
    rows = unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    assert rows.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0.0, 0.0]]


def test_prediction_loss_is_the_mean_square_over_the_rows_that_count() -> None:
    y, predicted = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 4.0]])
    assert number(prediction_loss(y, predicted, HALF)) == 2.5  # (1 + 4) / 2
    assert number(prediction_loss(y, predicted, torch.tensor([[0.0, 1.0]]))) == 4.0


def test_intra_loss() -> None:
    # SM = [[e, 1], [1, e]] at tau = 1. Row 0: both entries of W are positive, Z = [e, 2].
    # Row 1: W < 0 takes row 0 out, Z = [-, 3e].
    W = torch.tensor([[[1.0, 2.0], [-1.0, 3.0]]])
    expected = (-log(e / (e + e + 2)) - log(e / (e + 3 * e))) / 2
    assert number(intra_loss(AXES, AXES, W, 1.0, HALF)) == pytest.approx(expected, rel=1e-6)


def test_intra_loss_without_a_true_negative_is_zero() -> None:
    W = -torch.ones(1, 2, 2)
    assert number(intra_loss(AXES, AXES, W, 0.02, HALF)) == 0.0


def test_intra_loss_without_the_filter_takes_all_other_rows() -> None:
    expected = -log(e / (e + 1))
    assert number(intra_loss(AXES, AXES, None, 1.0, HALF)) == pytest.approx(expected, rel=1e-6)


def test_a_row_that_does_not_count_is_nobodys_negative() -> None:
    W = torch.tensor([[[1.0, 2.0], [-1.0, 3.0]]])
    first_only = torch.tensor([[1.0, 0.0]])
    assert number(intra_loss(AXES, AXES, W, 1.0, first_only)) == pytest.approx(log(2), rel=1e-6)


def test_inter_loss() -> None:
    # Row 0 is on its PR and at right angles to its NR, row 1 the other way round; tau = 0.5.
    positive, negative = AXES[:, [0, 0]], AXES[:, [1, 1]]
    expected = (-log(exp(2) / (exp(2) + 1)) - log(1 / (1 + exp(2)))) / 2
    found = number(inter_loss(AXES, positive, negative, 0.5, HALF))
    assert found == pytest.approx(expected, rel=1e-6)


def test_periodic_prototype_averages_complete_batches_only() -> None:
    """Two clients, B = 1, width 2; the second client's middle batch is incomplete."""
    prototype = PeriodicPrototype(2, 1, 2, torch.device("cpu"))
    complete = [[True, True], [True, False], [True, True]]
    for index, values in enumerate(([1.0, 2.0], [3.0, 6.0], [8.0, 1.0])):
        r = torch.tensor(values).expand(2, 1, 2)
        prototype.add(r, index, torch.tensor(complete[index]))
    assert prototype.value().tolist() == [[[4.0, 3.0]], [[4.5, 1.5]]]


def test_concatenation_prototype_keeps_every_row() -> None:
    prototype = ConcatenationPrototype(1, 2, 2, 1, torch.device("cpu"))
    prototype.add(torch.tensor([[[1.0], [2.0]]]), 0, torch.tensor([True]))
    prototype.add(torch.tensor([[[3.0], [4.0]]]), 1, torch.tensor([True]))
    assert prototype.value().tolist() == [[[1.0], [2.0], [3.0], [4.0]]]


# -- single against double precision ---------------------------------------------------------------


def losses_and_gradients(
    dtype: torch.dtype, tau: float, spread: float
) -> dict[str, tuple[Tensor, list[Tensor]]]:
    """Every contrastive loss of two clients, 24 rows of width 256, with all its gradients."""
    draw = torch.Generator().manual_seed(11)
    centre = torch.rand(2, 1, 256, generator=draw) * 2 - 1
    r, augmented, positive, negative = (
        (centre + spread * torch.randn(2, 24, 256, generator=draw)).clamp(-1, 1) for _ in range(4)
    )
    augmented = (r + 0.5 * (augmented - centre)).clamp(-1, 1)
    W = torch.randn(2, 24, 24, generator=draw)
    weight = torch.full((2, 24), 1 / 24, dtype=dtype)
    result = {}
    for name in ("intra", "without W", "inter"):
        x, x_augmented, filter_ = (t.to(dtype).requires_grad_(True) for t in (r, augmented, W))
        if name == "inter":
            sides = unit(positive.to(dtype)), unit(negative.to(dtype))
            loss, inputs = inter_loss(unit(x), *sides, tau, weight), [x]
        elif name == "intra":
            loss = intra_loss(unit(x), unit(x_augmented), filter_, tau, weight)
            inputs = [x, x_augmented, filter_]
        else:
            loss = intra_loss(unit(x), unit(x_augmented), None, tau, weight)
            inputs = [x, x_augmented]
        gradients = torch.autograd.grad(loss.sum(), inputs)
        result[name] = (loss.detach(), list(gradients))
    return result


@pytest.mark.parametrize("spread", [0.5, 0.1, 0.02])
@pytest.mark.parametrize("tau", [1e-3, 0.02, 0.1, 1.0, 10.0])
def test_single_precision_equals_double_at_any_temperature(tau: float, spread: float) -> None:
    """To 1e-4, relative to the largest entry where that is above 1."""
    single = losses_and_gradients(torch.float32, tau, spread)
    double = losses_and_gradients(torch.float64, tau, spread)
    for name, (loss, gradients) in double.items():
        pairs = zip([single[name][0], *single[name][1]], [loss, *gradients], strict=True)
        for found, expected in pairs:
            assert found.dtype == torch.float32
            assert found.isfinite().all(), name
            scale = max(1.0, float(expected.abs().max()))
            assert float((found - expected).abs().max()) < 1e-4 * scale, name
        if float(loss.min()) > 1e-3:
            assert torch.allclose(single[name][0].double(), loss, rtol=1e-4, atol=0), name


def test_the_losses_are_alive_at_the_papers_temperature() -> None:
    found = losses_and_gradients(torch.float64, 0.02, 0.1)
    for name, (loss, gradients) in found.items():
        assert (loss > 0.01).all(), name
        assert all(float(g.abs().max()) > 1e-4 for g in gradients), name
