"""Reconstruction: how much of the clients' mean days attackers read from their uploads.

An attacker knows the typical day, the mean over the clients; what counts is what it learns beyond
that. A guess of the clients' deviations from it is scored by R2 at the best scale,

    R2 = max_s 1 - sum (deviation - s guess)^2 / sum deviation^2  =  cos^2 of guess and deviations,

on clients whose days the attacker has not seen; 0 if the guess points the wrong way. Choosing the
scale, the penalty and the round in the attacker's favour makes it an upper bound for each attack.

- informed: knows settings, seed and method, trains its own clients in the same way (observed.py),
  and learns a ridge regression from uploads to days.
- k clients: knows the days of k clients of the run, and learns from their uploads.
- blind: needs no model. The first principal component of a prototype over its rows, earlier by a
  step, signed so that it follows the typical day (it is low at night).
- distances: knows only which uploads are close to each other, which no order or rotation of their
  numbers hides. Principal coordinates of the clients, taken for the main patterns in which days
  differ; the attacker is given these patterns and the signs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fuels.arrays import Floats, Floats32, Integers
from fuels.research.audit.observed import Seen

PENALTIES = 10.0 ** np.arange(-5, 2.5, 0.5)  # in units of the mean squared length of an upload
PATTERNS = 3  # in which days differ
DRAWS = 5  # of the clients that the attacker knows, and of random truths


@dataclass(frozen=True)
class Reached:
    """The R2 of an attacker."""

    attacker: str
    one: float  # from the uploads of one round: the best
    every: float  # from those of all rounds
    first: float  # from those of the first round that had any

    @property
    def best(self) -> float:
        return max(self.one, self.every)


def r2(guess: Floats, days: Floats) -> float:
    """R2 of the deviations at the best scale, [client, phase] each."""
    guess, days = guess - guess.mean(axis=0), days - days.mean(axis=0)
    size = float((guess**2).sum() * (days**2).sum())
    product = float((guess * days).sum())
    return product**2 / size if product > 0 and size > 0 else 0.0


def learned(gram: Floats, known: Integers, days: Floats) -> Iterator[Floats]:
    """Ridge regressions from known uploads to days, applied to all uploads; one per penalty."""
    own = gram[np.ix_(known, known)]
    values, vectors = np.linalg.eigh(own)
    values = np.maximum(values, 0.0)
    scale = max(float(values.mean()), 1e-300)
    inner = vectors.T @ (days - days.mean(axis=0))
    towards = gram[:, known] @ vectors
    for penalty in PENALTIES:
        yield towards / (values + penalty * scale) @ inner


def informed(seen: Seen, gram: Floats) -> float:
    known = np.arange(seen.count, len(gram))
    guesses = learned(gram, known, seen.own_days)
    return max(r2(guess[: seen.count], seen.days) for guess in guesses)


def colluding(seen: Seen, gram: Floats, k: int) -> float:
    """Mean over draws of the k clients."""
    found = []
    for draw in range(DRAWS):
        order = np.random.default_rng([seen.count, k, draw]).permutation(seen.count)
        known, others = order[:k], order[k:]
        guesses = learned(gram[: seen.count, : seen.count], known, seen.days[known])
        found.append(max(r2(guess[others], seen.days[others]) for guess in guesses))
    return float(np.mean(found))


def distances(seen: Seen, gram: Floats) -> float:
    own = gram[: seen.count, : seen.count]
    _, vectors = np.linalg.eigh(own)
    deviations = seen.days - seen.days.mean(axis=0)
    places, sizes, patterns = np.linalg.svd(deviations, full_matrices=False)
    guess, best = np.zeros_like(seen.days), 0.0
    for j in range(min(PATTERNS, len(sizes), seen.count - 1)):
        place = vectors[:, -1 - j]
        sign = 1.0 if place @ places[:, j] > 0 else -1.0
        guess = guess + sign * sizes[j] * np.outer(place, patterns[j])
        best = max(best, r2(guess, seen.days))
    return best


def components(prototypes: Floats32, typical: Floats) -> Floats:
    """The first principal component of each prototype over its rows, [client, row]."""
    found = np.empty(prototypes.shape[:2])
    for i, prototype in enumerate(prototypes.astype(np.float64)):
        rows = prototype - prototype.mean(axis=0)
        _, vectors = np.linalg.eigh(rows @ rows.T)
        component = np.roll(vectors[:, -1], -1)
        found[i] = component if component @ typical >= 0 else -component
    return found


def attacks(seen: Seen) -> list[Reached]:
    """All attackers that this run's uploads allow."""
    every = [*seen.grams, seen.grams.sum(axis=0)]

    def each(attacker: str, scores: list[float]) -> Reached:
        return Reached(attacker, max(scores[:-1]), scores[-1], scores[0])

    found = [each("informed", [informed(seen, gram) for gram in every])]
    for k in colluders(seen.count):
        scores = [colluding(seen, gram, k) for gram in every]
        found.append(each(f"{k} clients", scores))
    if guesses := blind_guesses(seen):
        together = np.asarray(np.mean(guesses, axis=0))
        found.append(each("blind", [r2(guess, seen.days) for guess in [*guesses, together]]))
    found.append(each("distances", [distances(seen, gram) for gram in every]))
    return found


def blind_guesses(seen: Seen) -> list[Floats]:
    """From each round; none if the uploads have no row for each phase."""
    if seen.prototypes is None or seen.prototypes.shape[2] != seen.days.shape[1]:
        return []
    typical = seen.days.mean(axis=0)
    return [components(each, typical) for each in seen.prototypes]


def colluders(count: int) -> list[int]:
    """How many clients attackers know: five, and half of all."""
    return sorted({k for k in (5, count // 2) if 2 <= k <= count - 2})


def chance(seen: Seen) -> float:
    """The best R2 that attackers reach if the days are dealt to the clients at random: a floor."""
    found = []
    for draw in range(DRAWS):
        order = np.random.default_rng([seen.count, draw]).permutation(seen.count)
        dealt = replace(seen, days=seen.days[order])
        found.append(max(each.best for each in attacks(dealt)))
    return float(np.mean(found))
