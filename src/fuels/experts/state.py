"""What mixtures and intervals have in common: a state by client, divided, joined and saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats
from fuels.errors import FuelsError

State = dict[str, Floats]
COUNT = "steps"  # seen so far, by all clients: the only array without clients


class Learner:
    """Learns of each client, step by step: its own `state`, and the learners `inside` it."""

    what: ClassVar[str] = "mixture"  # in messages
    state: State  # named arrays, the client first
    inside: Mapping[str, Learner]

    def __init__(self, state: State, inside: Mapping[str, Learner] | None = None) -> None:
        self.state, self.inside = state, inside or {}

    def part(self, rows: slice) -> Self:
        """The learner of some clients; except for the step count, the whole learns what it does."""
        part = copy(self)
        part.state = {n: a.copy() if n == COUNT else a[rows] for n, a in self.state.items()}
        part.inside = {name: learner.part(rows) for name, learner in self.inside.items()}
        return part

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The learner of several groups of clients, one after the other."""
        whole = copy(parts[0])
        whole.state = {
            name: array if name == COUNT else np.concatenate([part.state[name] for part in parts])
            for name, array in whole.state.items()
        }
        whole.inside = {
            name: learner.joined([part.inside[name] for part in parts])
            for name, learner in whole.inside.items()
        }
        return whole

    def count(self, steps: int) -> None:
        """Count steps that the parts have learned."""
        if COUNT in self.state:
            self.state[COUNT] += steps
        for learner in self.inside.values():
            learner.count(steps)

    def arrays(self, copy: bool = True) -> State:
        """All states, to be saved; without a copy only until the next step."""
        found = copied(self.state) if copy else dict(self.state)
        for inner, learner in self.inside.items():
            found |= {f"{inner}-{name}": array for name, array in learner.arrays(copy).items()}
        return found

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue from saved states, which must have the names and shapes of these."""
        for inner, learner in self.inside.items():
            start = f"{inner}-"
            learner.load(
                {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}
            )
        for name, mine in self.state.items():
            if name not in arrays or arrays[name].shape != mine.shape:
                found = arrays[name].shape if name in arrays else "missing"
                raise FuelsError(
                    f"the saved {self.what} does not fit: '{name}' is {found}, expected"
                    f" {mine.shape}; clients, experts, levels or horizon have changed, so train"
                    " again"
                )
        self.state = {name: np.array(arrays[name], dtype=np.float64) for name in self.state}


def copied(state: State) -> State:
    return {name: array.copy() for name, array in state.items()}
