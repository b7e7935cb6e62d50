"""Compiled twin of paper/losses.py: Eq. 3-6 and 11-15 with their gradients, client by client.

One call takes the encoded rows of a client and gives its losses and the gradient of their sum
(Eq. 15). The losses need little arithmetic: separate operators spend their time on intermediate
results, while here the rows of a client, 48 kB, stay in the cache until their gradient is written.

All sums are in double precision (paper/losses.py explains why). With the similarities
s_bi = r_b . r'_i / (|r_b| |r'_i|) and c_bi, the slope of the loss in s_bi, the gradient is

    dr_b  = sum_i c_bi / (|r_b| |r'_i|) r'_i  -  (sum_i c_bi s_bi) / |r_b|^2  r_b
    dr'_i = sum_b c_bi / (|r_b| |r'_i|) r_b   -  (sum_b c_bi s_bi) / |r'_i|^2  r'_i

a combination of the rows themselves, so only coefficients are stored between the steps.
"""

from __future__ import annotations

from math import exp, log, log1p, sqrt
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numba import float64, int64, void
from torch import Tensor
from torch.autograd.function import once_differentiable

from fuels.kernels.checks import check_losses
from fuels.kernels.jit import compiled
from fuels.kernels.simd import address, get, put
from fuels.kernels.simd_f64 import combine, dots, exponentials, pairs
from fuels.kernels.stages import (
    STAGE,
    Stage,
    int_matrix,
    ints,
    matrix,
    reals,
    run,
    scratch,
    vector,
)

if TYPE_CHECKING:
    from fuels.model.network import Target
    from fuels.paper.losses import Inter, Intra

SHORTEST = 1e-8  # a shorter row is divided by this instead of its length
NONE = 0  # the address of an absent array


def local_losses(
    decoder: Tensor,
    encoded: Tensor,
    target: Target,
    intra: Intra | None = None,
    inter: Inter | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    losses = Losses(decoder, encoded, target, intra, inter, encoded.requires_grad, shared=False)
    W = None if intra is None else intra.W
    total = cast(Tensor, cast(Any, _LocalLosses).apply(encoded, decoder, W, losses))
    return total, losses.terms()


class _LocalLosses(torch.autograd.Function):
    """The forward call computes the gradients too; they wait for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, encoded: Tensor, decoder: Tensor, W: Tensor | None, losses: Losses
    ) -> Tensor:
        run([losses.stage()], losses.clients)
        ctx.gradients = (losses.d_encoded, losses.d_decoder, losses.d_W)
        return losses.total.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        found: tuple[Tensor | None, ...] = ctx.gradients
        if any(factor != 1.0 for factor in slope.tolist()):  # 1 if the losses are summed
            found = tuple(
                None if d is None else d * slope.view(-1, *[1] * (d.dim() - 1)) for d in found
            )
        return *found, None


class Losses:
    """Input and output of the losses of a batch.

    The stage reads `encoded` when it runs, so an earlier stage may fill it. `deep` asks for the
    gradient of `encoded`. Gradients that are `shared` hold one client at a time.
    """

    def __init__(
        self,
        decoder: Tensor,
        encoded: Tensor,
        target: Target,
        intra: Intra | None,
        inter: Inter | None,
        deep: bool,
        shared: bool,
    ) -> None:
        self.intra, self.inter, self.shared = intra, inter, shared
        given = check_losses(decoder, encoded, target, intra, inter)
        self.given = [None if t is None else t.detach().contiguous() for t in given]
        self.clients, self.rows, self.width = encoded.shape
        _, self.B, self.H = target.y.shape
        self.total, self.parts = torch.empty(self.clients), torch.empty(3, self.clients)
        room = 1 if shared else self.clients
        self.d_encoded = torch.empty(room, self.rows, self.width) if deep else None
        self.d_decoder = torch.empty(room, decoder.shape[1])
        filtered = intra is not None and intra.W is not None
        self.d_W = torch.empty(room, self.B, self.B) if filtered else None

    def stage(self) -> Stage:
        """Losses of a client, and the gradient of their sum."""
        intra, inter, given = self.intra, self.inter, self.given
        return Stage(
            losses_and_gradients,
            self.clients, self.rows, self.B, self.width, self.H, self.d_decoder.shape[1] // self.H,
            *given[:5], intra is not None, intra is not None and intra.detach, *given[5:],
            self.total, self.parts, self.shared,
            self.d_encoded, self.d_decoder, self.d_W,
            scratch(2 * numbers_needed(self.rows, self.B, self.H)),
            float(intra.tau) if intra else 1.0,
            float(inter.tau) if inter else 1.0, float(inter.rho) if inter else 0.0,
        )  # fmt: skip

    def terms(self) -> dict[str, Tensor]:
        """The terms of the loss by name, [client]."""
        there = (True, self.intra, self.inter)
        named = zip(("prediction", "intra", "inter"), there, self.parts.unbind(), strict=True)
        return {name: value for name, given, value in named if given}


# -- compiled loops, one client at a time ----------------------------------------------------------


@compiled()
def _softplus(x: float) -> tuple[float, float]:
    """log(1 + e^x) and its slope 1 / (1 + e^-x), with all digits where x is far below 0."""
    small = exp(-abs(x))
    if x < 0:
        return log1p(small), small / (1.0 + small)
    return x + log1p(small), 1.0 / (1.0 + small)


@compiled()
def _inverse_lengths(r: int, rows: int, width: int, inverse: np.ndarray) -> None:
    """1 / |r| of each row."""
    pairs(r, width, rows, r, width, width, address(inverse))
    for row in range(rows):
        inverse[row] = 1.0 / max(sqrt(inverse[row]), SHORTEST)


@compiled()
def prediction_loss(
    r: int, phi: int, y: int, weight: int, clock: int, B: int, H: int, width: int, columns: int,
    slope: np.ndarray, d_phi: int,
) -> float:  # fmt: skip
    """Eq. 14 of the heads [weights of r | of the clock | bias] for 1, ..., H steps ahead.

    Fills the slopes [H B] in the forecasts, and the gradient in the heads.
    """
    loss, head = 0.0, width + columns + 1
    for h in range(H):
        said, phi_h, d_phi_h = h * B, phi + 4 * h * head, d_phi + 4 * h * head
        at = address(slope) + 8 * said
        pairs(r, width, B, phi_h, 0, width, at)
        bias = 0.0
        for b in range(B):
            error = slope[said + b] + get(phi_h, head - 1)
            for column in range(columns):
                error += get(phi_h, width + column) * get(clock, (b * H + h) * columns + column)
            error -= get(y, b * H + h)
            slope[said + b] = 2.0 * get(weight, b * H + h) * error
            loss += get(weight, b * H + h) * error * error
            bias += slope[said + b]
        combine(at, 0, 1, r, width, B, 0, 0, 1, d_phi_h, width, width)
        for column in range(columns):
            total = 0.0
            for b in range(B):
                total += slope[said + b] * get(clock, (b * H + h) * columns + column)
            put(d_phi_h, width + column, np.float32(total))
        put(d_phi_h, head - 1, np.float32(bias))
    return loss


@compiled()
def intra_loss(
    s: np.ndarray, W: int, tau: float, weight: int, top: np.ndarray, c: np.ndarray, d_W: int
) -> float:
    """Eq. 3-6 of one client from its similarities s [B, B]; fills the slopes c in s, and in W.

    Z_bi = W_bi exp(s_bi / tau) for i in TN_b = {i : W_bi > 0}; without W, W = 1 for all i != b.
    The loss of row b is log(1 + sum_i Z_bi / SM_bb), the softplus of a logarithm; the largest
    similarity, top, is factored out of the sum, which then neither overflows nor vanishes. Pairs
    that do not count are summed as 0: a processor predicts branches on them badly.
    """
    B = s.shape[0]
    for b in range(B):
        top[b] = -np.inf
        for i in range(B):  # Eq. 4 and 5
            negative = get(W, b * B + i) > 0 if W != NONE else i != b
            c[b, i] = s[b, i] if negative and get(weight, i) != 0 else -np.inf
            top[b] = max(top[b], c[b, i])
        if top[b] == -np.inf:
            top[b] = 0.0
        for i in range(B):
            c[b, i] = (c[b, i] - top[b]) / tau
    exponentials(address(c), B * B)
    loss = 0.0
    for b in range(B):
        total = others = 0.0
        for i in range(B):
            total += c[b, i] * (get(W, b * B + i) if W != NONE else 1.0)
        slope = 0.0  # and a loss of 0, without a true negative
        if total != 0:
            value, slope = _softplus((top[b] - s[b, b]) / tau + log(total))  # Eq. 6
            loss += get(weight, b) * value
            slope *= get(weight, b) / total
        for i in range(B):
            c[b, i] *= slope
            if W != NONE:
                put(d_W, b * B + i, np.float32(c[b, i]))
                c[b, i] *= get(W, b * B + i)
            c[b, i] /= tau
        c[b, b] = 0.0  # Z_bb / SM_bb = W_bb does not depend on s
        for i in range(B):
            others += c[b, i]
        c[b, b] = -others
    return loss


@compiled()
def _project(s: np.ndarray, c: np.ndarray, inverse: np.ndarray, own: np.ndarray) -> None:
    """Turn slopes c in s into slopes in r_b . r'_i; own [2 B] gets those along each row."""
    B = s.shape[0]
    for b in range(B):
        along = 0.0
        for i in range(B):
            pull = c[b, i] * s[b, i]
            along += pull
            own[B + i] -= pull
            c[b, i] *= inverse[b] * inverse[B + i]
        own[b] -= along


@compiled()
def inter_loss(
    r: int, pr: int, nr: int, tau: float, rho: float, weight: int, B: int, width: int,
    inverse: np.ndarray, own: np.ndarray, towards: np.ndarray, away: np.ndarray, work: np.ndarray,
) -> float:  # fmt: skip
    """Eq. 11-13 of one client; towards and away [B] are the slopes in r_b . PR_b and r_b . NR_b."""
    loss = 0.0
    _inverse_lengths(pr, B, width, towards)
    _inverse_lengths(nr, B, width, away)
    pairs(r, width, B, pr, width, width, address(work))
    pairs(r, width, B, nr, width, width, address(work) + 8 * B)
    for b in range(B):
        towards[b] *= inverse[b]
        away[b] *= inverse[b]
        beyond = work[B + b] * away[b] - work[b] * towards[b]  # sim to NR_b less sim to PR_b
        value, slope = _softplus(beyond / tau)
        loss += get(weight, b) * value
        slope *= rho * get(weight, b) / tau
        towards[b] *= -slope
        away[b] *= slope
        own[b] -= slope * beyond
    return loss


@compiled(void(int64[:, ::1], int64, float64[::1], int64, int64, int64))
def _set_term(
    terms: np.ndarray, t: int, scale: np.ndarray, first: int, row: int, distance: int
) -> None:
    """A line of the table that `combine` reads."""
    terms[t, 0], terms[t, 1], terms[t, 2] = address(scale) + 8 * first, row, distance


def numbers_needed(rows: int, B: int, H: int) -> int:
    """Scratch numbers: inverse, own, slope, towards, away, work, s, c, terms."""
    return 2 * rows + H * B + 4 * B + 2 * B * B + 3 * (H + 3)


@compiled(STAGE)
def losses_and_gradients(table: int, n: int) -> None:
    """Total [client] and terms [(prediction, intra, inter), client], and the total's gradients.

    Arrays come by address, row by row, with the client first: encoded [rows, width] holds r and,
    for Eq. 3-6, r' below it; decoder [H, head]; y and weight [B, H]; the clock, the same for all
    clients, [B, H, columns]; the other weights [B]; W [B, B]; positive and negative [B, width].
    Without W there is no filter, without positive no Eq. 11-13, without d_encoded no gradient of
    encoded. Shared gradients hold the client at hand only. `room` is the address of
    numbers_needed(rows, B, H) scratch numbers of 8 bytes.
    """
    clients, rows, B, width, H, head = ints(table, 0, 6)
    encoded, decoder, y, weight, clock = ints(table, 6, 5)
    intra, detach, W, intra_weight, positive, negative, inter_weight = ints(table, 11, 7)
    total, parts, shared, d_encoded, d_decoder, d_W = ints(table, 18, 6)
    room = ints(table, 24, 1)[0]
    intra_tau, inter_tau, rho = reals(table, 25, 3)
    here = 0 if shared else n
    inverse, own = vector(room, 0, rows), vector(room, rows, rows)
    slope, at = vector(room, 2 * rows, H * B), 2 * rows + H * B
    towards, away = vector(room, at, B), vector(room, at + B, B)
    work = vector(room, at + 2 * B, 2 * B)
    s, c = matrix(room, at + 4 * B, B, B), matrix(room, at + 4 * B + B * B, B, B)
    terms = int_matrix(room, at + 4 * B + 2 * B * B, H + 3, 3)
    inter = positive != NONE
    r, phi = encoded + 4 * n * rows * width, decoder + 4 * n * H * head
    r_augmented = r + 4 * B * width
    pr, nr = positive + 4 * n * B * width, negative + 4 * n * B * width
    of_client = 4 * n * B
    for row in range(rows):
        own[row] = 0.0
    l_intra = l_inter = 0.0
    l_prediction = prediction_loss(
        r, phi, y + of_client * H, weight + of_client * H, clock, B, H, width, head - width - 1,
        slope, d_decoder + 4 * here * H * head,
    )  # fmt: skip
    if intra or inter:
        _inverse_lengths(r, rows, width, inverse)
    if intra:
        dots(r, width, B, r_augmented, width, B, width, address(s), B)
        for b in range(B):
            for i in range(B):
                s[b, i] *= inverse[b] * inverse[B + i]
        W_n = W + of_client * B if W != NONE else NONE
        at = intra_weight + of_client
        l_intra = intra_loss(s, W_n, intra_tau, at, work, c, d_W + 4 * here * B * B)
        _project(s, c, inverse, own)
    if inter:
        l_inter = inter_loss(
            r, pr, nr, inter_tau, rho, inter_weight + of_client, B, width,
            inverse, own, towards, away, work,
        )  # fmt: skip
    put(total, n, np.float32(l_prediction + l_intra + rho * l_inter))  # Eq. 15
    put(parts, n, np.float32(l_prediction))
    put(parts, clients + n, np.float32(l_intra))
    put(parts, 2 * clients + n, np.float32(l_inter))
    if d_encoded == NONE:
        return
    for row in range(rows if intra or inter else 0):  # a row too short has no direction
        own[row] *= inverse[row] ** 2 if inverse[row] < 1.0 / SHORTEST else 0.0
    for h in range(H):
        _set_term(terms, h, slope, h * B, phi + 4 * h * head, 0)
    _set_term(terms, H, own, 0, r, width)
    _set_term(terms, H + 1, towards, 0, pr, width)
    _set_term(terms, H + 2, away, 0, nr, width)
    count = H + (3 if inter else 1 if intra else 0)
    d_r = d_encoded + 4 * here * rows * width
    combine(
        address(c), B, 1, r_augmented, width, B if intra else 0,
        address(terms), count, B, d_r, width, width,
    )  # fmt: skip
    if intra:
        _set_term(terms, 0, own, B, r_augmented, width)
        depth, count = (0, 0) if detach else (B, 1)
        d_r_augmented = d_r + 4 * B * width
        combine(
            address(c), 1, B, r, width, depth,
            address(terms), count, B, d_r_augmented, width, width,
        )  # fmt: skip
