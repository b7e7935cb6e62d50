"""The losses and prototypes of FUELS, by hand and in single against double precision."""

from __future__ import annotations

from math import e, exp, log

import pytest
import torch
from torch import Tensor

from fuels.kernels.dispatch import use_kernels
from fuels.model.network import Target
from fuels.paper.losses import (
    Inter,
    Intra,
    inter_loss,
    intra_loss,
    local_losses,
    prediction_loss,
    unit,
)
from fuels.paper.prototypes import ConcatenationPrototype, PeriodicPrototype

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


def test_a_loss_that_is_zero_has_no_gradient() -> None:
    """The second row has no true negative, the first has itself alone: W_00 moves, rows do not."""
    rows = AXES.clone().requires_grad_(True)
    W = torch.tensor([[[3.0, -1.0], [-1.0, -1.0]]], requires_grad=True)
    loss = intra_loss(unit(rows), AXES, W, 0.02, HALF)
    assert number(loss.detach()) == pytest.approx(log(4) / 2)
    slopes = torch.autograd.grad(loss.sum(), [rows, W])
    assert slopes[0].tolist() == [[[0.0, 0.0], [0.0, 0.0]]]
    assert slopes[1].tolist() == [[[pytest.approx(1 / 8), 0.0], [0.0, 0.0]]]


def test_a_masked_row_is_never_a_negative() -> None:
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

CLIENTS, ROWS, WIDTH = 2, 24, 256
TINY = float(torch.finfo(torch.float32).tiny)  # the smallest normal number of float32


def situation(name: str) -> dict[str, Tensor]:
    """Rows in float32. Of a client they lie around a centre, its augmented rows around the rows.

    saturated: every row is next to its augmented view and to PR and at right angles to all others,
    mistaken: its view and PR are those of another row. The filters of both leave out the diagonal.
    """
    draw = torch.Generator().manual_seed(11)
    spread = {"far": 1.0, "alike": 0.1, "nearly equal": 0.01}.get(name, 1.0)
    shape = (CLIENTS, ROWS, WIDTH)
    noise = [torch.randn(shape, generator=draw) for _ in range(4)]
    if name in ("saturated", "mistaken"):
        # One block of columns per row: rows of different blocks are nearly at right angles.
        axes = torch.eye(ROWS).repeat_interleave(WIDTH // ROWS, dim=1)
        r = 0.1 * noise[0]
        r[:, :, : axes.shape[1]] += axes
        near = r + 0.02 * noise[1]
        other = near.roll(1, dims=1)
        pairs = (near, other) if name == "saturated" else (other, near)
        rows = {"r": r, "augmented": pairs[0], "positive": pairs[0], "negative": pairs[1]}
    else:
        centre = torch.rand(CLIENTS, 1, WIDTH, generator=draw) * 2 - 1
        r, positive, negative = ((centre + spread * n).clamp(-1, 1) for n in noise[:3])
        augmented = (r + 0.5 * spread * noise[3]).clamp(-1, 1)
        rows = {"r": r, "augmented": augmented, "positive": positive, "negative": negative}
    W = torch.randn(CLIENTS, ROWS, ROWS, generator=draw)
    if name in ("saturated", "mistaken"):
        W -= 100 * torch.eye(ROWS)
    return rows | {"W": W}


def contrastive(term: str, given: dict[str, Tensor], tau: float) -> dict[str, Tensor]:
    """A loss [client] with its gradients [client, ...], from the functions of the equations."""
    moving = {name: value.clone().requires_grad_(True) for name, value in given.items()}
    weight = torch.full((CLIENTS, ROWS), 1 / ROWS, dtype=given["r"].dtype)
    u = unit(moving["r"])
    if term == "inter":
        loss = inter_loss(u, unit(moving["positive"]), unit(moving["negative"]), tau, weight)
    else:
        W = moving["W"] if term == "intra" else None
        loss = intra_loss(u, unit(moving["augmented"]), W, tau, weight)
    return {"loss": loss.detach()} | with_gradients(loss, moving)


def fused(term: str, given: dict[str, Tensor], tau: float, kernels: str) -> dict[str, Tensor]:
    """The same from `local_losses`, with no weight on L_pred."""
    moving = {name: value.clone().requires_grad_(True) for name, value in given.items()}
    nothing, weight = torch.zeros(CLIENTS, ROWS, 1), torch.full((CLIENTS, ROWS), 1 / ROWS)
    target = Target(nothing, nothing, torch.zeros(ROWS, 1, 0))
    encoded, intra, inter = moving["r"], None, None
    if term == "inter":
        inter = Inter(given["positive"], given["negative"], tau, weight, rho=1.0)
    else:
        encoded = torch.cat([moving["r"], moving["augmented"]], dim=1)
        intra = Intra(moving["W"] if term == "intra" else None, tau, weight)
    decoder = torch.zeros(CLIENTS, WIDTH + 1)
    use_kernels(kernels)
    try:
        loss, _ = local_losses(decoder, encoded, target, intra, inter)
    finally:
        use_kernels("auto")
    return {"loss": loss.detach()} | with_gradients(loss, moving)


def with_gradients(loss: Tensor, moving: dict[str, Tensor]) -> dict[str, Tensor]:
    found = torch.autograd.grad(loss.sum(), list(moving.values()), allow_unused=True)
    return {n: g for n, g in zip(moving, found, strict=True) if g is not None}


def assert_equal_to_1e_4(found: dict[str, Tensor], exact: dict[str, Tensor]) -> None:
    """Of each client, ||found - exact|| <= 1e-4 ||exact||, in the loss and in every gradient.

    The norm is over all numbers of the client in that tensor. Only what is below the smallest
    normal number of float32 is compared absolutely: there float32 has no digits left to compare.
    """
    for name, value in found.items():
        assert value.dtype == torch.float32, name
        assert value.isfinite().all(), name
        gap = (value.double() - exact[name]).reshape(CLIENTS, -1).norm(dim=1)
        size = exact[name].reshape(CLIENTS, -1).norm(dim=1)
        least = TINY * (value.numel() / CLIENTS) ** 0.5
        assert (gap <= 1e-4 * size + least).all(), (name, (gap / size).max())


SITUATIONS = ["far", "alike", "nearly equal", "saturated", "mistaken"]


@pytest.mark.parametrize("name", SITUATIONS)
@pytest.mark.parametrize("tau", [1e-3, 3e-3, 0.01, 0.02, 0.1, 1.0, 10.0])
def test_single_precision_equals_double_at_any_temperature(tau: float, name: str) -> None:
    """Losses and gradients of float32 rows equal a float64 evaluation of the same rows to 1e-4.

    The gradients are those in the rows before they are scaled to length one, so that `unit` is
    part of what is tested, and in W; see assert_equal_to_1e_4 for what equal means.
    """
    given = situation(name)
    for term in ("intra", "without W", "inter"):
        exact = contrastive(term, {key: value.double() for key, value in given.items()}, tau)
        assert_equal_to_1e_4(contrastive(term, given, tau), exact)
        for kernels in ("fused", "plain"):
            assert_equal_to_1e_4(fused(term, given, tau, kernels), exact)


def test_the_situations_are_what_they_are_called() -> None:
    """At the paper's temperature: saturated losses are far below float32's 1e-7, and no 0."""
    size = {}
    for name in SITUATIONS:
        given = {key: value.double() for key, value in situation(name).items()}
        for term in ("intra", "inter"):
            found = contrastive(term, given, 0.02)
            size[name, term] = [float(found[key].abs().max()) for key in ("loss", "r")]
    for term in ("intra", "inter"):
        loss, gradient = size["saturated", term]
        assert 1e-35 < loss < 1e-12 and 1e-35 < gradient < 1e-10, term
        assert size["mistaken", term][0] > 20
        assert min(size["alike", term]) > 1e-3
