"""The state of a run on disk: a full checkpoint, then only what each round changed.

If only some clients train in a round, most of the state does not change. The changed rows then go
into a small numbered file next to the full checkpoint. Once these files are together as large as
the full state, it is written again. A small file names the full checkpoint that it belongs to by
its checksum, so a file left over after a kill is never applied to a later state.

On a slow disk, or with short rounds, saving every round would take longer than training (160 MB for
a hundred clients: 0.2 s to memory, 3 s to a busy disk, with rounds of 5 s). A journal with a share
below 1 skips rounds, so that saving takes about that share of the time.

Sites in other processes write their own state to files in `shares/`, which the full checkpoint
names with their checksums. Files of the round before are deleted once it is replaced.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Integers
from fuels.data.files import os_errors
from fuels.errors import FuelsError
from fuels.storage.checkpoint import facts_of, load_state, map_arrays, prefixed, save_state, stamp

Arrays = dict[str, NDArray[Any]]
Rows = Mapping[str, Integers]  # of some arrays: the rows that changed
SITES = "transport"  # prefix of the sites' arrays
SHARES = "shares"  # the fact that names the sites' own files
REMEDY = "restore it from a backup, or start a new run"
FIRST = "first"  # prefix of arrays of which a small file holds only some rows
LARGEST = 0.25  # of the full state: if more changed, write all of it; copied rows need memory
QUICK = 0.1  # seconds: a save that is this fast happens every round
LONGEST = 60.0  # seconds: longest time between two saves


@runtime_checkable
class Writer(Protocol):
    """Sites that can write their own state, so that it need not come here."""

    def write(self, folder: Path, number: int) -> dict[str, str] | None:
        """Write the state of a round; returns files in order, with checksums, None: not possible.

        Concatenated, the arrays of the files are those of `state`.
        """
        ...

    def state(self) -> Arrays: ...


class Journal:
    """A full state in `path`, and later changes in numbered files next to it."""

    def __init__(self, path: Path, share: float = 1.0) -> None:
        self.path, self.shares = path, path.parent / "shares"
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
        writer: Writer | None = None,
    ) -> None:
        """Save the state of a round if a save is due; `changed` is relative to the round before.

        The last round is always saved: the work after it may take long. `writer` writes arrays that
        are not in `arrays`.
        """
        begun = time.monotonic()
        follows = number == self.round + 1 and bool(self.stamp)
        if follows and self.missed is not None:
            changed = _united(self.missed, changed)
        pause = min(LONGEST, self.took * (1 / self.share - 1))
        if self.took > QUICK and begun - self.ended < pause and not last:
            self.round, self.missed = number, changed
            return
        if writer is not None:
            arrays, facts = self._with_shares(number, arrays, facts, writer)
        size = sum(
            array.nbytes * len(changed[name]) // max(1, len(array))
            if name in changed
            else array.nbytes
            for name, array in arrays.items()
        )
        if (
            writer is not None
            or not follows
            or size > LARGEST * self.whole
            or self.since + size > self.whole
        ):
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
        named = facts.get(SHARES, {})
        for file in self.shares.glob("*") if self.shares.is_dir() else ():
            if file.name not in named:
                file.unlink(missing_ok=True)

    def _with_shares(
        self, number: int, arrays: Arrays, facts: Mapping[str, Any], writer: Writer
    ) -> tuple[Arrays, dict[str, Any]]:
        """Arrays and facts with the files that the sites wrote, or with the arrays themselves."""
        files = writer.write(self.shares, number)
        if files is None:
            return arrays | prefixed(SITES, writer.state()), dict(facts)
        return arrays, {**facts, SHARES: files}

    def _read_shares(self, files: Mapping[str, str]) -> Arrays:
        """The arrays that the sites wrote, those of all files concatenated."""
        parts = []
        for name, expected in files.items():
            path = self.shares / name
            try:
                part, _ = load_state(path, mapped=True)
                if stamp(path) != expected:
                    raise FuelsError(f"{path}: belongs to another checkpoint")
            except FuelsError as error:
                raise FuelsError(f"{error}; {REMEDY}") from None
            parts.append(part)
        return prefixed(SITES, {n: np.concatenate([p[n] for p in parts]) for n in parts[0]})

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
        try:
            arrays, facts = load_state(self.path, mapped=True)
        except FuelsError as error:
            raise FuelsError(f"{error}; {REMEDY}") from None
        if files := facts.pop(SHARES, None):
            return arrays | self._read_shares(files), facts
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
            with os_errors(copy, "cannot be written"):
                shutil.copyfile(self.path, copy)
                return map_arrays(copy, shared=True)
        finally:
            copy.unlink(missing_ok=True)  # the content remains while it is mapped

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)
        self._delete_steps()
        shutil.rmtree(self.shares, ignore_errors=True)

    def _delete_steps(self) -> None:
        for path in self.path.parent.glob(f"{self.path.stem}-*{self.path.suffix}*"):
            path.unlink(missing_ok=True)

    def _step(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.stem}-{number}{self.path.suffix}")


def _united(one: Rows, other: Rows) -> Rows:
    """The rows changed in either round; arrays missing from one may have changed as a whole."""
    return {name: np.union1d(one[name], other[name]) for name in one.keys() & other.keys()}
