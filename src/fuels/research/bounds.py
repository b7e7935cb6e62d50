"""The two bounds of the paper's analysis (Section 4), as functions of their constants.

Convergence (Theorem 4.6, Eq. 17-19): after T rounds of I local steps of plain gradient descent at
rate eta, the mean squared gradient norm of a client is below xi. The other clients disturb it,
because their prototypes change between its rounds; `floor` = rho L_h N alpha I G is that
disturbance, and nothing can be guaranteed for a xi below it.

Generalisation (Theorem 4.2, Eq. 16): the loss of a federation exceeds that of its best models by at
most `Generalisation.total`, with probability 1 - kappa.

The functions refuse constants for which the formulas guarantee nothing. docs/explanation/theory.md
explains how far the theorems apply.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fuels.errors import FuelsError


@dataclass(frozen=True)
class Constants:
    """The constants of a federation in the convergence bound."""

    gap: float  # Lambda: loss of a client at the start, less that of its best model
    gradient: float  # G: bound of the expected norm of a gradient
    smoothness: float  # L_1: L(w) - L(v) <= <grad L(v), w - v> + L_1 ||w - v||^2
    coupling: float  # L_h: Lipschitz constant of L_inter in the encoder of any client
    rho: float  # weight of L_inter
    clients: int  # N
    selection: float  # alpha
    iterations: int  # I: local steps in a round

    def __post_init__(self) -> None:
        above = {"L_1": self.smoothness, "N": self.clients, "I": self.iterations}
        for name, value in above.items():
            if not 0 < value < math.inf:
                raise FuelsError(f"{name} must be positive and finite; it is {value}")
        least = {"Lambda": self.gap, "G": self.gradient, "L_h": self.coupling, "rho": self.rho}
        for name, value in least.items():
            if not 0 <= value < math.inf:
                raise FuelsError(f"{name} must be finite and not negative; it is {value}")
        if not 0 < self.selection <= 1:
            raise FuelsError(f"alpha is a share above 0 and at most 1; it is {self.selection}")

    @property
    def floor(self) -> float:
        """rho L_h N alpha I G: what xi has to exceed."""
        others = self.clients * self.selection
        return self.rho * self.coupling * others * self.iterations * self.gradient


def largest_rate(constants: Constants, xi: float) -> float:
    """Eq. 19: the learning rate has to stay below (xi - floor) / (L_1 xi)."""
    if not 0 < xi < math.inf:
        raise FuelsError(f"xi must be positive and finite; it is {xi}")
    if xi <= constants.floor:
        raise FuelsError(
            f"xi = {xi:.4g} is not above rho L_h N alpha I G = {constants.floor:.4g}: the other"
            " clients disturb a client by more than that, and no learning rate is admissible"
        )
    return (xi - constants.floor) / (constants.smoothness * xi)


def best_rate(constants: Constants, xi: float) -> float:
    """The rate for which Eq. 17 asks for the fewest rounds: half of the largest one."""
    return largest_rate(constants, xi) / 2


def rounds(constants: Constants, xi: float, eta: float) -> float:
    """Eq. 17: T = Lambda / (xi I (eta - L_1 eta^2) - rho eta L_h N alpha I^2 G)."""
    limit = largest_rate(constants, xi)
    if not eta > 0:
        raise FuelsError(f"the learning rate eta must be positive; it is {eta}")
    if eta >= limit:
        raise FuelsError(
            f"eta = {eta:.4g} is not admissible: for xi = {xi:.4g} it has to stay below"
            f" {limit:.4g} (Eq. 19), otherwise the denominator of Eq. 17 is not positive"
        )
    steps = constants.iterations
    gained = xi * steps * (eta - constants.smoothness * eta**2)
    return constants.gap / (gained - eta * steps * constants.floor)


@dataclass(frozen=True)
class Generalisation:
    """A bound on the excess loss: the terms for the hypothesis class and for chance."""

    complexity: float
    chance: float
    largest_loss: float  # C

    @property
    def total(self) -> float:
        return self.complexity + self.chance

    @property
    def vacuous(self) -> bool:
        """Whether it says nothing: losses between 0 and C never differ by more than C."""
        return self.total >= self.largest_loss


def generalisation(
    dimension: float, samples: int, largest_loss: float, kappa: float
) -> Generalisation:
    """Theorem 4.2 as printed: sqrt(2d/D log(eD/d)) + sqrt(C^2 D^2 / 2 log(1/kappa))."""
    _check(dimension, [samples], largest_loss, kappa)
    return Generalisation(
        complexity=_class_term(dimension, samples),
        chance=largest_loss * samples * math.sqrt(math.log(1 / kappa) / 2),
        largest_loss=largest_loss,
    )


def generalisation_by_client(
    dimension: float, samples: Sequence[int], largest_loss: float, kappa: float
) -> Generalisation:
    """The same proof without its last two inequalities, from the samples |D_n| of each client.

    The class costs sum_n |D_n|/D sqrt(2d/|D_n| log(e|D_n|/d)), the line before step (c). Changing
    the model of client n moves the weighted loss by at most c_n = C |D_n| / D, where the paper
    takes C |D_n|^2 / D, and sum_n c_n^2 is used as it is.
    """
    _check(dimension, samples, largest_loss, kappa)
    total = sum(samples)
    shares = [count / total for count in samples]
    moved = math.sqrt(sum(share**2 for share in shares))
    return Generalisation(
        complexity=sum(
            share * _class_term(dimension, count)
            for share, count in zip(shares, samples, strict=True)
        ),
        chance=largest_loss * moved * math.sqrt(math.log(1 / kappa) / 2),
        largest_loss=largest_loss,
    )


def _class_term(dimension: float, samples: int) -> float:
    return math.sqrt(2 * dimension / samples * math.log(math.e * samples / dimension))


def _check(dimension: float, samples: Sequence[int], largest_loss: float, kappa: float) -> None:
    if not samples:
        raise FuelsError("the generalisation bound needs the samples of at least one client")
    if not 1 <= dimension < math.inf:
        raise FuelsError(f"the VC dimension d must be finite and at least 1; it is {dimension}")
    fewest = min(samples)
    if fewest < dimension:
        raise FuelsError(
            f"{fewest} samples are fewer than the VC dimension d = {dimension:g}: Sauer's lemma,"
            " on which the bound rests, needs at least d samples"
        )
    if not 0 < largest_loss < math.inf:
        raise FuelsError(f"C, the largest loss, must be positive and finite; it is {largest_loss}")
    if not 0 < kappa < 1:
        raise FuelsError(f"kappa is a probability between 0 and 1; it is {kappa}")
