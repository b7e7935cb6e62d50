"""The turns: contenders run one after another, repeatedly, so that a slow moment affects all.

Round 1 warms everything up and is not timed; its results are compared, to make sure that all
contenders do the same work. Every later round is a turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fuels.config import Engine, nearest
from fuels.errors import FuelsError
from fuels.research.bench import flower_rival, pfl_rival
from fuels.research.bench.divergence import Divergences
from fuels.research.bench.eager import Eager
from fuels.research.bench.floor import FLOORS, Turn
from fuels.research.bench.ours import Ours
from fuels.research.bench.process import Answer
from fuels.research.bench.work import METHODS, PERIOD, Given, Sizes
from fuels.training.runtime import set_up

OURS, FLOOR, JSD = "ours", "floor", "jsd"
EAGER, FLOWER, PFL = "eager", "flower", "pfl"
SKIPPABLE = (EAGER, FLOWER, PFL, FLOOR, JSD)
ROWS = {"fuels": 2 * PERIOD, "fedavg": PERIOD}  # of a batch: FUELS has raw and augmented ones
ASKED = "skipped on request"

Key = tuple[str, str]  # what (a method, or jsd), who
Figures = dict[Key, float]  # of one turn: ms per client-epoch, or microseconds per pair
Say = Callable[[str], None]


class Contender(Protocol):
    """Anything that takes turns."""

    clients: int  # it trains in a turn

    def turn(self, method: str, round_number: int, given: Given) -> Answer: ...

    def close(self) -> None: ...


@dataclass
class Race:
    """What was measured."""

    sizes: Sizes
    threads: int
    turns: list[Figures] = field(default_factory=list)
    clients: dict[str, int] = field(default_factory=dict)  # who: clients in a turn
    difference: dict[Key, float] = field(default_factory=dict)  # from ours, after the first round
    skipped: dict[str, str] = field(default_factory=dict)  # who: a sentence
    eager_threads: int = 0  # with which PyTorch was fastest; 0: eager took no part
    seconds: float = 0.0

    def series(self, key: Key) -> list[float]:
        """The figure of every turn; empty for those that took no part to the end."""
        found = [figures[key] for figures in self.turns if key in figures]
        return found if len(found) == len(self.turns) else []


def race(
    sizes: Sizes,
    threads: int = 0,
    *,
    turns: int = 7,
    seconds: float = 150.0,
    skip: Collection[str] = (),
    say: Say = lambda line: None,
) -> Race:
    """Take turns until there were `turns`, or until another one would pass `seconds`."""
    begun = time.perf_counter()
    for name in skip:
        if name not in SKIPPABLE:
            raise FuelsError(f"--skip {name} is unknown{nearest(name, SKIPPABLE)}")
    if turns < 1:
        raise FuelsError(f"--turns must be at least 1, not {turns}")
    result = Race(sizes, set_up(Engine(threads=threads)))
    runners = Runners(result, skip)
    try:
        say("warming up: compiling, and starting the contenders that run in separate processes")
        runners.warm_up()
        say(f"warm after {time.perf_counter() - begun:.0f} seconds")
        longest = 0.0
        while len(result.turns) < turns:
            start = time.perf_counter()
            if result.turns and start - begun + longest > seconds:
                say(f"{seconds:.0f} seconds are not enough for another turn")
                break
            result.turns.append(runners.turn(len(result.turns) + 2))
            longest = max(longest, time.perf_counter() - start)
            say(f"turn {len(result.turns)} of {turns}: {in_short(result.turns[-1])}")
    finally:
        runners.close()
    result.seconds = time.perf_counter() - begun
    return result


class Runners:
    """All contenders."""

    def __init__(self, result: Race, skip: Collection[str]) -> None:
        self.result = result
        sizes, threads = result.sizes, result.threads
        self.ours = Ours(sizes, threads)
        self.rivals: dict[str, Contender] = {}
        self.floors: dict[Key, Turn] = {}
        self.divergences = None if JSD in skip else Divergences(sizes, threads)
        for name in skip:
            result.skipped[name] = ASKED
        if FLOOR not in skip:
            self.floors = {
                (method, name): make(threads, ROWS[method], sizes.batches, sizes.hidden)
                for method in METHODS
                for name, make in FLOORS.items()
            }
        if EAGER not in skip:  # before the others start: it finds its best number of threads
            eager = self.rivals[EAGER] = Eager(sizes, threads)
            result.eager_threads = eager.threads
        try:
            for who, rival, make in (
                (FLOWER, flower_rival, flower_rival.Flower),
                (PFL, pfl_rival, pfl_rival.Pfl),
            ):
                if not rival.available():
                    result.skipped.setdefault(who, rival.MISSING)
                if who not in result.skipped:
                    self.rivals[who] = make(sizes, threads)
        except BaseException:
            self.close()
            raise
        result.clients = {OURS: self.ours.clients}
        result.clients |= {who: rival.clients for who, rival in self.rivals.items()}

    def warm_up(self) -> None:
        """Round 1, in which FUELS clients have nothing from the server yet."""
        for method in METHODS:
            _, expected = self.ours.turn(method, 1)
            for who in self._rivals(method):
                answer = self._ask(who, method, 1, {})
                if answer is not None:
                    gap = float(np.abs(answer[1] - expected).max())
                    self.result.difference[method, who] = gap
        for product in self.floors.values():
            product()
        if self.divergences is not None:
            self.divergences.ours()

    def turn(self, round_number: int) -> Figures:
        """One turn of each contender."""
        given, figures = self.ours.given(), Figures()
        for method in METHODS:
            seconds, _ = self.ours.turn(method, round_number)
            figures[method, OURS] = 1e3 * seconds / self.ours.clients
            for who in self._rivals(method):
                answer = self._ask(who, method, round_number, given)
                if answer is not None:
                    figures[method, who] = 1e3 * answer[0] / self.result.clients[who]
            products = [turn() for (of, _), turn in self.floors.items() if of == method]
            if products:
                figures[method, FLOOR] = min(products)
        if self.divergences is not None:
            figures[JSD, OURS] = self.divergences.ours()
            figures[JSD, "scipy"] = self.divergences.scipy()
        return figures

    def close(self) -> None:
        for rival in self.rivals.values():
            rival.close()

    def _rivals(self, method: str) -> list[str]:
        """The rivals for a method; pfl has only federated averaging."""
        return [who for who in self.rivals if (method, who) != ("fuels", PFL)]

    def _ask(self, who: str, method: str, round_number: int, given: Given) -> Answer | None:
        """A rival's turn; one that fails is skipped from now on, with its reason."""
        try:
            return self.rivals[who].turn(method, round_number, given)
        except FuelsError as error:
            self.result.skipped[who] = str(error)
            self.rivals.pop(who).close()
            return None


def in_short(figures: Figures) -> str:
    """A turn in one line."""
    parts = []
    for what, unit in (("fuels", "ms"), ("fedavg", "ms"), (JSD, "us")):
        mine = [f"{who} {value:.3g}" for (of, who), value in figures.items() if of == what]
        if mine:
            parts.append(f"{what} {', '.join(mine)} {unit}")
    return "; ".join(parts)
