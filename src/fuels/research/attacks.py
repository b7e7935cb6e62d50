"""Attacks on what clients send: false uploads of colluding clients, made from everything they know.

Attackers see all uploads of the round, honest ones included, and know the defence. They replace
their own uploads where these leave the site, and try to stay just inside what the defence accepts:
an update as long as the bound, a prototype as far from the others as an admitted one may be (some
may be too far to be a negative, and trials cannot be foreseen).
Against a bound on what clients do together (`defence.joint`), they also try shorter updates, and
updates with a part of their own, which hides what they have in common; they compute what the server
would make of each and send the best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from fuels.arrays import Flags, Floats, Floats32
from fuels.config import Defence
from fuels.federation.site import Site
from fuels.federation.transport import Failure, LocalTransport, Reply
from fuels.methods.admission import admitted
from fuels.methods.aggregation import aggregated
from fuels.methods.messages import Arrays, Download, Upload
from fuels.randomness import generator

ATTACKERS, NOISE = 101, 102  # purposes of random numbers that nothing in the core uses
HALVINGS = 8  # of the interval in which the largest admitted step is searched
LENGTHS, OWN_PARTS = (1.0, 0.5, 0.25), (0.0, 0.5, 1.0)  # what attackers try


@dataclass(frozen=True)
class Position:
    """What the attackers know of a round: updates of models, or prototypes, flattened."""

    own: Floats  # their own honest rows, [attacker, size]
    honest: Floats  # of all others, [client, size]
    start: Floats  # what rows are relative to: the global model, or 0, [size]
    rng: np.random.Generator


def sign_flip(at: Position) -> Floats:
    return -at.own


def scaled(at: Position) -> Floats:
    return -10.0 * at.own


def inner_product(at: Position) -> Floats:
    """Against the mean of the others (Xie et al., UAI 2019)."""
    return np.tile(-at.honest.mean(axis=0), (len(at.own), 1))


def alie(at: Position) -> Floats:
    """A little is enough (Baruch et al., NeurIPS 2019): as far off as the honest majority is."""
    false, count = len(at.own), len(at.own) + len(at.honest)
    needed = count // 2 + 1 - false  # honest clients that must be farther from the mean
    share = (len(at.honest) - needed) / len(at.honest)
    z = NormalDist().inv_cdf(min(max(share, 0.5), 0.999))
    return np.tile(at.honest.mean(axis=0) - z * at.honest.std(axis=0), (false, 1))


def mimic(at: Position) -> Floats:
    """All send what one client sends (Karimireddy et al., ICLR 2022): the least typical one."""
    apart = np.square(at.honest - at.honest.mean(axis=0)).sum(axis=1)
    return np.tile(at.honest[apart.argmax()], (len(at.own), 1))


def constant(at: Position) -> Floats:
    return np.tile(1e6 - at.start, (len(at.own), 1))  # cut to the bound where there is one


def random(at: Position) -> Floats:
    return at.rng.standard_normal(at.own.shape)


@dataclass(frozen=True)
class Attack:
    name: str
    title: str
    forge: Callable[[Position], Floats] | None  # None: a prototype rolled by half a period
    stretches: bool = True  # may be lengthened to the bound without losing its point


ATTACKS = {
    attack.name: attack
    for attack in (
        Attack("sign-flip", "sign flip", sign_flip),
        Attack("scaled", "update scaled by -10", scaled),
        Attack("inner-product", "inner product", inner_product),
        Attack("alie", "ALIE", alie, stretches=False),
        Attack("mimic", "mimic", mimic, stretches=False),
        Attack("constant", "constant", constant),
        Attack("random", "random", random),
        Attack("roll", "half-day roll", None),
    )
}


def attackers(clients: Sequence[str], share: float, seed: int) -> tuple[str, ...]:
    """The false clients; those of a smaller share are among those of a larger one."""
    order = generator(seed, ATTACKERS).permutation(len(clients))
    return tuple(clients[i] for i in sorted(order[: round(share * len(clients))]))


class PoisonedTransport(LocalTransport):
    """One site whose attackers send something else than they trained."""

    def __init__(
        self, site: Site, false: Sequence[str], attack: Attack, defence: Defence, seed: int
    ) -> None:
        super().__init__(site)
        self.false, self.attack, self.defence, self.seed = set(false), attack, defence, seed

    def train(
        self, round_number: int, clients: Sequence[str], download: Download
    ) -> tuple[list[Reply], list[Failure]]:
        replies, failures = super().train(round_number, clients, download)
        rng = generator(self.seed, NOISE, round_number)
        poisoned = [
            Reply(r.site, self._poison(r.upload, download, rng), r.report, r.asked) for r in replies
        ]
        return poisoned, failures

    def _poison(self, upload: Upload, download: Download, rng: np.random.Generator) -> Upload:
        is_false = np.array([client in self.false for client in upload.clients])
        if not is_false.any() or is_false.all():
            return upload
        if "prototype" in upload.arrays:
            arrays = {"prototype": self._prototypes(upload.arrays["prototype"], is_false, rng)}
        else:
            arrays = self._models(upload, download.shared, is_false, rng)
        return Upload(upload.clients, upload.arrays | arrays, upload.samples)

    def _models(
        self, upload: Upload, before: Arrays, is_false: Flags, rng: np.random.Generator
    ) -> Arrays:
        sent, names = upload.arrays, list(upload.arrays)
        start = np.concatenate([before[name] for name in names]).astype(np.float64)
        updates = np.concatenate([sent[name] for name in names], axis=1) - start
        at = Position(updates[is_false], updates[~is_false], start, rng)
        assert self.attack.forge is not None, "models have no phases to roll"
        wanted = self.attack.forge(at)
        length = norms(wanted)
        if self.defence.clip and self.attack.stretches:  # as long as the server lets it be
            bound = self.defence.clip * np.median(np.linalg.norm(at.honest, axis=1))
            length = np.full_like(length, bound)

        def accepted(rows: Floats) -> Flags:
            updates[is_false] = rows
            return admitted(updates.astype(np.float32)[:, None, :], self.defence.admission)

        first = beginning(at.own, at.honest, accepted(at.own), is_false)
        forged = just_inside(stretched(wanted, norms(first)), first, accepted, is_false)
        forged = stretched(forged, length)
        ends = np.cumsum([before[name].size for name in names])[:-1]

        def models(rows: Floats) -> Arrays:
            updates[is_false] = rows
            pieces = np.split(updates + start, ends, axis=1)
            return {n: piece.astype(np.float32) for n, piece in zip(names, pieces, strict=True)}

        if not (self.defence.joint and self.attack.stretches):
            return models(forged)

        def progress(rows: Floats) -> float:
            """How far the server would move in the wanted direction."""
            new = aggregated(models(rows), upload.weights, before, self.defence)
            moved = np.concatenate([new[name] for name in names]) - start
            return float(moved @ wanted.mean(axis=0)) if accepted(rows)[is_false].all() else -np.inf

        own = generator(self.seed, NOISE).standard_normal(forged.shape)  # the same in all rounds
        tried = [
            stretched(forged + part * stretched(own, length), share * length)
            for part in OWN_PARTS
            for share in LENGTHS
        ]
        return models(max(tried, key=progress))

    def _prototypes(self, sent: Floats32, is_false: Flags, rng: np.random.Generator) -> Floats32:
        shape = sent[is_false].shape
        if self.attack.forge is None:
            wanted = np.roll(sent[is_false], sent.shape[1] // 2, axis=1).astype(np.float64)
        else:
            flat = sent.reshape(len(sent), -1).astype(np.float64)
            at = Position(flat[is_false], flat[~is_false], np.zeros(flat.shape[1]), rng)
            wanted = self.attack.forge(at).reshape(shape)
        wanted = np.clip(wanted, -1.0, 1.0)  # what the guard accepts
        result = sent.copy()

        def accepted(rows: Floats) -> Flags:
            result[is_false] = rows
            return admitted(result, self.defence.admission)

        own, honest = (sent[rows].astype(np.float64) for rows in (is_false, ~is_false))
        start = beginning(own, honest, accepted(own), is_false)
        result[is_false] = just_inside(wanted, start, accepted, is_false)
        return result


def beginning(own: Floats, honest: Floats, used: Flags, is_false: Flags) -> Floats:
    """Rows that are admitted: the attackers' own, or else that of the most typical other client."""
    apart = np.square(honest - honest.mean(axis=0)).sum(axis=tuple(range(1, honest.ndim)))
    start = own.copy()
    start[~used[is_false]] = honest[apart.argmin()]
    return start


def norms(rows: Floats) -> Floats:
    """The length of every row, [client, 1]."""
    return np.asarray(np.linalg.norm(rows, axis=1, keepdims=True))


def stretched(rows: Floats, length: Floats) -> Floats:
    """The rows with another length."""
    return np.asarray(rows / np.maximum(norms(rows), 1e-300) * length)


def just_inside(
    wanted: Floats,
    start: Floats,
    accepted: Callable[[Floats], Flags],
    is_false: Flags,
) -> Floats:
    """The wanted rows, or what is still accepted of all attackers on the way there."""
    if accepted(wanted)[is_false].all():
        return wanted
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        step = (low + high) / 2
        inside = accepted(start + step * (wanted - start))[is_false].all()
        low, high = (step, high) if inside else (low, step)
    return np.asarray(start + low * (wanted - start))
