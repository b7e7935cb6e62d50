"""Day membership and linkage, from a second run in which a coin decides whether days take part.

For every client a few days are candidates. A coin is tossed for each: heads, the day trains; tails,
it is missing and filled as any gap is. The attacker knows all values of the clients and does not
know the coins. It reads the clients' mean days from their uploads (reconstruct.py), and asks for
each candidate how far it moved the mean, as a least-squares fit of all candidates of the client.

The second run has another seed, so its models start elsewhere. A client is linked if its day as
read from the first run is closest to its own day as read from the second; also tried are the
clients' sorted distances to all others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fuels.arrays import Flags, Floats, Integers
from fuels.config import Settings, merge
from fuels.data.panel import Panel
from fuels.data.windows import Dataset
from fuels.research.audit.observed import Seen, mean_days
from fuels.research.audit.one_run import epsilon_bound
from fuels.research.audit.reconstruct import blind_guesses, learned
from fuels.runs.build import load_dataset

CANDIDATES = 4  # days of each client
FALSE_POSITIVES = 0.01


@dataclass(frozen=True)
class Coins:
    """The second run: its settings and data, and what was tossed."""

    settings: Settings
    panel: Panel
    heads: Flags  # [client, candidate]
    moves: Floats  # of the mean day by each candidate, [client, candidate, phase]
    without: Floats  # the mean day without any candidate, [client, phase]


@dataclass(frozen=True)
class Membership:
    """How well members are told from others, and the least epsilon that allows it."""

    auc: float
    tpr: float  # true positive rate at 1 % false positives
    epsilon: float  # lower bound at 95 % confidence for each reading tried; the largest
    coins: int


def toss(settings: Settings, dataset: Dataset) -> Coins:
    """The second run of these settings on this data."""
    ids, period = dataset.ids, dataset.period
    changes = {"data": {"clients": 0, "ids": list(ids), "newcomers": ""}}
    again = merge(settings, {**changes, "seed": settings.seed + 1}, "audit")
    rng = np.random.default_rng([settings.seed, len(ids)])
    first, last = dataset.sample.reach_periods + 1, dataset.split.train // period - 1
    days = np.arange(first, last, 2)  # never two in a row: a gap is filled from its neighbours
    count = min(CANDIDATES, len(days) // 2)
    chosen = np.stack([rng.permutation(days)[:count] for _ in ids])
    heads = rng.random(chosen.shape) < 0.5
    nothing = np.zeros_like(heads)
    without = mean_days_with(again, dataset, chosen, nothing)
    moves = np.empty((*chosen.shape, period))
    for i in range(count):
        only = nothing.copy()
        only[:, i] = True
        moves[:, i] = mean_days_with(again, dataset, chosen, only) - without
    panel = with_days(dataset, chosen, heads)
    return Coins(again, panel, heads, moves, without)


def with_days(dataset: Dataset, days: Integers, present: Flags) -> Panel:
    """The data without the candidate days that are not present."""
    values, period = dataset.panel.values.copy(), dataset.period
    for client, (own, there) in enumerate(zip(days, present, strict=True)):
        for day in own[~there]:
            start = day * period - dataset.offset
            values[start : start + period, client] = np.nan
    return replace(dataset.panel, values=values)


def mean_days_with(settings: Settings, dataset: Dataset, days: Integers, present: Flags) -> Floats:
    return mean_days(load_dataset(settings, with_days(dataset, days, present)))


def membership(seen: Seen, coins: Coins) -> Membership:
    """Of the candidates in the second run; the attack that separates them best counts."""
    found = [evaluate(scores(guess, coins), coins.heads.ravel()) for guess in readings(seen)]
    best = max(found, key=lambda each: each.auc)
    bound = max(each.epsilon for each in found)
    return replace(best, epsilon=bound)


def readings(seen: Seen) -> list[Floats]:
    """The clients' mean days as attackers read them, in the attacker's scale of days."""
    own = np.arange(seen.count, seen.grams.shape[1])
    typical = seen.days.mean(axis=0)
    found = []
    for gram in (seen.grams[0], seen.grams[-1], seen.grams.sum(axis=0)):
        guesses = learned(gram, own, seen.own_days)
        found += [typical + guess[: seen.count] for guess in list(guesses)[::4]]
    return found


def scores(guess: Floats, coins: Coins) -> Floats:
    """How strongly each candidate shows in the days that were read, flattened."""
    found = np.empty(coins.heads.shape)
    for client, moves in enumerate(coins.moves):
        rest = guess[client] - coins.without[client]
        found[client] = np.linalg.lstsq(moves.T, rest, rcond=None)[0]
    return found.ravel()


def evaluate(score: Floats, member: Flags) -> Membership:
    return Membership(
        auc=auc(score, member),
        tpr=tpr(score, member),
        epsilon=epsilon_bound(score - np.median(score), member),
        coins=len(score),
    )


def auc(score: Floats, member: Flags) -> float:
    """The probability that a member's score is above another's; ties count half."""
    if member.all() or not member.any():
        return 0.5
    inside, outside = score[member][:, None], score[~member][None, :]
    return float((inside > outside).mean() + 0.5 * (inside == outside).mean())


def tpr(score: Floats, member: Flags) -> float:
    """The share of members above the score that at most 1 % of the others exceed."""
    if member.all() or not member.any():
        return 0.0
    outside = np.sort(score[~member])[::-1]
    limit = outside[int(FALSE_POSITIVES * len(outside))]
    return float((score[member] > limit).mean())


def linkage(first: Seen, second: Seen) -> float:
    """The share of clients that are recognised; the best attack counts."""
    found = [0.0]
    for read in (informed_days, blind_days, profiles):
        a, b = read(first), read(second)
        if a is not None and b is not None:
            found.append(recognised(a, b))
    return max(found)


def informed_days(seen: Seen) -> Floats | None:
    own = np.arange(seen.count, seen.grams.shape[1])
    guesses = list(learned(seen.grams.sum(axis=0), own, seen.own_days))
    return guesses[len(guesses) // 2][: seen.count]


def blind_days(seen: Seen) -> Floats | None:
    guesses = blind_guesses(seen)
    return np.asarray(np.mean(guesses, axis=0)) if guesses else None


def profiles(seen: Seen) -> Floats | None:
    """Each client's distances to all, sorted: no order of an upload's numbers hides them."""
    own = seen.grams[:, : seen.count, : seen.count].sum(axis=0)
    squares = np.diag(own)
    apart = np.sqrt(np.maximum(squares[:, None] + squares[None, :] - 2 * own, 0.0))
    return np.asarray(np.sort(apart, axis=1) / max(float(apart.mean()), 1e-300))


def recognised(a: Floats, b: Floats) -> float:
    """The share of rows of `a` whose most similar row of `b` is the same client's."""
    a, b = (each - each.mean(axis=0) for each in (a, b))
    a, b = (
        each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1e-300) for each in (a, b)
    )
    return float(((a @ b.T).argmax(axis=1) == np.arange(len(a))).mean())
