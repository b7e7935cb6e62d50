"""The guarantee as an attacker meets it, who guesses from all releases which hours took part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from fuels.privacy.accountant import multipliers
from fuels.privacy.ledger import Budget, Ledger, Release
from fuels.privacy.sensitivity import Protected, Relation, Unit
from fuels.research.audit.one_run import DELTA, epsilon_bound
from fuels.sharing import private_statistics as private
from fuels.sharing.similar_clients import own_days

EPSILON, HOUR = 4.0, 3600
CLIENTS, STEPS, APART = 20, 500, 26
LAGS = (1, 2, 24)
CELL, DAY = np.arange(STEPS) % 24, np.zeros(48)
ALL = ("own mean day", "mean day", "live mean", "statistics")
Floats = np.ndarray


def coins() -> list[tuple[int, int]]:
    """Hours of clients that a coin decides about: none share a row, or an hour."""
    return [(c, t) for c in range(CLIENTS) for t in range(30 + c, STEPS - APART, APART)]


def released(names: Iterable[str], weaker: float) -> tuple[Ledger, dict[str, Release]]:
    """The releases, with noise that is `weaker` times too small."""
    protected = Protected(Unit.HOUR, Relation.REMOVED, HOUR)
    noise = multipliers(EPSILON, DELTA, dict.fromkeys(names, 1))
    of = {
        "own mean day": (
            protected.cells(private.CLIP, STEPS, 24, 24, counts=False),
            (CLIENTS, 24),
        ),
        "mean day": (protected.cells(private.CLIP, STEPS, 24, 24), (2, 48)),
        "live mean": (protected.values(private.CLIP, STEPS), (STEPS,)),
        "statistics": (protected.products(private.NORM, STEPS, LAGS), (10,)),
    }
    return Ledger(Budget(EPSILON, DELTA, Unit.HOUR, Relation.REMOVED)), {
        name: Release("run", name, 0, STEPS * HOUR, of[name][0] / weaker, noise[name], of[name][1])
        for name in names
    }


def contributions(name: str, values: Floats, clients: Sequence[int] = range(CLIENTS)) -> Floats:
    """What clients with values [client, step] add, [client, ...]."""
    if name == "own mean day":
        found = np.zeros((len(values), CLIENTS, 24))
        found[np.arange(len(values)), clients] = own_days(values, CELL, 24)
        return found
    if name == "mean day":
        return np.stack([private.day_sums(own, CELL, 48) for own in values])
    if name == "live mean":
        return private.deviations(values, DAY, CELL)
    rows = private.Rows.of(LAGS, (), DAY, CELL, STEPS)
    return np.stack([rows.packed(own) for own in rows.make(values, None, 0, STEPS)])


def bound(seed: int, names: Iterable[str] = ALL, weaker: float = 1.0) -> tuple[float, float]:
    """The lower bound on epsilon for an attacker who knows everything but the coins."""
    rng, chosen = np.random.default_rng(seed), coins()
    without = rng.normal(size=(CLIENTS, STEPS))
    for c, t in chosen:
        without[c, t] = np.nan
    one = np.repeat(without[[c for c, _ in chosen]], 1, axis=0)  # of one client, by coin
    one[np.arange(len(chosen)), [t for _, t in chosen]] = 9.0  # beyond every clipping bound
    member, taking_part = rng.random(len(chosen)) < 0.5, without.copy()
    for heads, (c, t) in zip(member, chosen, strict=True):
        taking_part[c, t] = 9.0 if heads else np.nan
    ledger, releases = released(names, weaker)
    added, seen = [], []
    for name, release in releases.items():
        base = contributions(name, without)
        of_coin = contributions(name, one, [c for c, _ in chosen]) - base[[c for c, _ in chosen]]
        noised = ledger.release(release, contributions(name, taking_part)).values
        added.append(of_coin.reshape(len(chosen), -1) / release.sigma)
        seen.append((noised - base.sum(axis=0)).ravel() / release.sigma)
    # The best linear guess of coins with mean 1/2 and variance 1/4 from all releases together.
    design, result = np.concatenate(added, axis=1), np.concatenate(seen)
    guess = design @ design.T + 4 * np.eye(len(chosen))
    score = np.linalg.solve(guess, design @ (result - design.sum(axis=0) / 2))
    return epsilon_bound(score, member), ledger.epsilon


def exceeded(seeds: Iterable[int]) -> int:
    found = [bound(seed) for seed in seeds]
    return sum(lower > spent for lower, spent in found)


def test_the_one_run_bound_does_not_contradict_the_ledger() -> None:
    assert exceeded(range(20)) <= 1


def test_the_one_run_bound_finds_noise_that_is_too_weak() -> None:
    lower, spent = bound(0, ["live mean"], weaker=10.0)
    assert lower > spent


@pytest.mark.nightly
def test_the_one_run_bound_holds_over_many_seeds() -> None:
    assert exceeded(range(100, 300)) <= 10
