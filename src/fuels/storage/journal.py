"""The state of a run on disk, round after round: the whole of it, or only what a round changed.

Where few of many clients train in a round, nearly all of the state is what it was. Then the rows
that changed go into a small file beside the whole one, and the next round's into another, until
together they are as large as the whole, which is then written anew. A small file names the whole
one it belongs to by its checksum: one that a kill left behind is no part of a later state.

Where a disk is slow, or rounds are short, saving each of them would take longer than training does
(160 MB of a hundred clients: 0.2 s to memory, 3 s to a busy disk, beside rounds of 5 s). A journal
with a share below 1 then leaves rounds out, so that saving takes about that share of the time.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.errors import FuelsError
from fuels.storage.checkpoint import facts_of, load_state, map_arrays, save_state, stamp

Arrays = dict[str, NDArray[Any]]
Rows = Mapping[str, NDArray[np.int64]]  # of some arrays: the rows that changed
FIRST = "first"  # prefix of the arrays of which a small file holds some rows only
LARGEST = 0.25  # of the whole: with more changed, the whole is written; the rows are held twice
QUICK = 0.1  # seconds: what takes no longer is saved in every round
LONGEST = 60.0  # seconds: that long ago the last save may be, however long it took


class Journal:
    """A state in `path`, and what changed since in numbered files beside it."""

    def __init__(self, path: Path, share: float = 1.0) -> None:
        self.path = path
        self.share = share  # of the time that saving may take; 1: every round is saved
        self.took = self.ended = 0.0  # how long the last save took, and when it was over
        self.missed: Rows | None = None  # what changed in rounds that were left out
        self.round = -1  # the newest that was given to save, here and in this process
        self.whole = self.since = 0  # bytes of the whole state, and of what changed since
        self.steps = 0  # small files that belong to it
        self.stamp = ""

    def save(
        self,
        number: int,
        arrays: Arrays,
        facts: Mapping[str, Any],
        changed: Rows,
        *,
        last: bool = False,
    ) -> None:
        """Make the state of a round durable, if it is due; `changed` is since the round before.

        The last round always is: what comes after it may take long.
        """
        begun = time.monotonic()
        follows = number == self.round + 1 and bool(self.stamp)
        if follows and self.missed is not None:
            changed = _united(self.missed, changed)
        pause = min(LONGEST, self.took * (1 / self.share - 1))
        if self.took > QUICK and begun - self.ended < pause and not last:
            self.round, self.missed = number, changed
            return
        size = sum(
            array.nbytes * len(changed[name]) // max(1, len(array))
            if name in changed
            else array.nbytes
            for name, array in arrays.items()
        )
        if not follows or size > LARGEST * self.whole or self.since + size > self.whole:
            self._save_whole(arrays, facts)
        else:
            self._save_step(arrays, facts, changed)
            self.since += size
        self.round, self.missed, self.ended = number, None, time.monotonic()
        self.took = self.ended - begun

    def _save_whole(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        save_state(self.path, arrays, facts)
        self.stamp, self.steps = stamp(self.path), 0
        self.whole, self.since = sum(array.nbytes for array in arrays.values()), 0
        self._delete_steps()

    def _save_step(self, arrays: Arrays, facts: Mapping[str, Any], changed: Rows) -> None:
        given: Arrays = {}
        for name, array in arrays.items():
            if name in changed:
                rows = changed[name]
                given[f"{FIRST}/{name}"], given[f"{FIRST}-rows/{name}"] = array[rows], rows
            else:
                given[name] = array
        save_state(self._step(self.steps + 1), given, {"after": self.stamp, "facts": dict(facts)})
        self.steps += 1

    def load(self) -> tuple[Arrays, dict[str, Any]]:
        """The state that was saved last, as views of a file: copy what is kept."""
        arrays, facts = load_state(self.path, mapped=True)
        whole, step = stamp(self.path), 1
        while (path := self._step(step)).exists():
            try:
                if facts_of(path).get("after") != whole:  # left over from an earlier whole
                    break
                given, about = load_state(path)
            except FuelsError as error:
                raise FuelsError(
                    f"{error}; delete it to go on from the round before, {facts.get('round')}"
                ) from None
            if step == 1:
                arrays = self._copied()
            for name, array in given.items():
                kind, _, own = name.partition("/")
                if kind == FIRST:
                    arrays[own][given[f"{FIRST}-rows/{own}"]] = array
                elif kind != f"{FIRST}-rows":
                    arrays[name] = array
            facts, step = about["facts"], step + 1
        return arrays, facts

    def _copied(self) -> Arrays:
        """The whole in a file that has no name any more: what is written to it needs no memory."""
        copy = self.path.with_name(f"{self.path.name}.tmp")
        try:
            shutil.copyfile(self.path, copy)
            return map_arrays(copy, shared=True)
        except OSError as error:
            raise FuelsError(f"{copy}: cannot be written ({error.strerror})") from None
        finally:
            copy.unlink(missing_ok=True)  # its content stays until nobody looks at it

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)
        self._delete_steps()

    def _delete_steps(self) -> None:
        for path in self.path.parent.glob(f"{self.path.stem}-*{self.path.suffix}*"):
            path.unlink(missing_ok=True)

    def _step(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.stem}-{number}{self.path.suffix}")


def _united(one: Rows, other: Rows) -> Rows:
    """The rows that changed in two rounds; of an array that is not in both, all may have."""
    return {name: np.union1d(one[name], other[name]) for name in one.keys() & other.keys()}
