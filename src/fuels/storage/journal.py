"""The state of a run on disk: a full checkpoint, then only what each round changed.

If only some clients train in a round, most of the state does not change. The changed rows then go
into a small numbered file next to the full checkpoint. Once these files are together as large as
the full state, it is written again. A small file names the full checkpoint that it belongs to by
its checksum, so a file left over after a kill is never applied to a later state.

On a slow disk, or with short rounds, saving every round would take longer than training (160 MB for
a hundred clients: 0.2 s to memory, 3 s to a busy disk, with rounds of 5 s). A journal with a share
below 1 skips rounds, so that saving takes about that share of the time.
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
FIRST = "first"  # prefix of arrays of which a small file holds only some rows
LARGEST = 0.25  # of the full state: if more changed, write all of it; copied rows need memory
QUICK = 0.1  # seconds: a save that is this fast happens every round
LONGEST = 60.0  # seconds: longest time between two saves


class Journal:
    """A full state in `path`, and later changes in numbered files next to it."""

    def __init__(self, path: Path, share: float = 1.0) -> None:
        self.path = path
        self.share = share  # of the time that saving may take; 1: save every round
        self.took = self.ended = 0.0  # duration of the last save, and when it ended
        self.missed: Rows | None = None  # rows changed in skipped rounds
        self.round = -1  # the latest round passed to `save` in this process
        self.whole = self.since = 0  # bytes of the full state, and of the changes since
        self.steps = 0  # small files that belong to the full state
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
        """Save the state of a round if a save is due; `changed` is relative to the round before.

        The last round is always saved: the work after it may take long.
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
        """The latest saved state, as views of a file: copy what you keep."""
        arrays, facts = load_state(self.path, mapped=True)
        whole, step = stamp(self.path), 1
        while (path := self._step(step)).exists():
            try:
                if facts_of(path).get("after") != whole:  # belongs to an earlier full state
                    break
                given, about = load_state(path)
            except FuelsError as error:
                raise FuelsError(
                    f"{error}; delete it to continue from the round before, {facts.get('round')}"
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
        """The full state in an unlinked copy of the file: writing to it needs no memory."""
        copy = self.path.with_name(f"{self.path.name}.tmp")
        try:
            shutil.copyfile(self.path, copy)
            return map_arrays(copy, shared=True)
        except OSError as error:
            raise FuelsError(f"{copy}: cannot be written ({error.strerror})") from None
        finally:
            copy.unlink(missing_ok=True)  # the content remains while it is mapped

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)
        self._delete_steps()

    def _delete_steps(self) -> None:
        for path in self.path.parent.glob(f"{self.path.stem}-*{self.path.suffix}*"):
            path.unlink(missing_ok=True)

    def _step(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.stem}-{number}{self.path.suffix}")


def _united(one: Rows, other: Rows) -> Rows:
    """The rows changed in either round; arrays missing from one may have changed as a whole."""
    return {name: np.union1d(one[name], other[name]) for name in one.keys() & other.keys()}
