"""What a site has answered: one set of sites for each sum, and one reply, also after a restart.

A second set for the same step would reveal the difference of the two sets, and a second reply to
the same sum with other numbers would use its masks twice. So a site writes its reply down, on disk
and flushed, before it sends it; asked again for the same sum it repeats these bytes, and anything
else for that step is refused.

The record must not be lost while its key is in use. A key that was used has a mark in its folder:
if the record is missing, nothing is answered until the site has a new key.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from fuels.errors import FuelsError
from fuels.sharing.fixed_point import Words
from fuels.sharing.masks import SumId
from fuels.sharing.roster import Roster

KEPT = 64  # newest replies of each name that can be repeated
WAIT = 60.0  # seconds to wait for another process of this site
TABLES = """
CREATE TABLE IF NOT EXISTS sets (
    name TEXT, step INTEGER, sites TEXT, PRIMARY KEY (name, step)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS answers (
    series TEXT, name TEXT, step INTEGER, sum BLOB, words BLOB, PRIMARY KEY (series, name, step)
);
CREATE TABLE IF NOT EXISTS rosters (serial INTEGER PRIMARY KEY, digest BLOB);
"""


class Answers:
    """The sums that a site has answered, in a database at `path`; `mark` belongs to its key."""

    def __init__(self, path: Path, mark: Path) -> None:
        self.path, self.mark = path, mark

    def given(self, asked: SumId, source: str = "") -> Words | None:
        """The reply already given to a sum; None if it may be answered now.

        `source`: what the numbers are computed from, if not all sums of this name and step have the
        same: a second set is refused only for the same source.
        """
        with self._open() as database:
            return self._before(database, asked, source)

    def answer(self, asked: SumId, make: Callable[[], Words], source: str = "") -> Words:
        """The reply to a sum: the one already given or, the first time, what `make` returns."""
        if (before := self.given(asked, source)) is not None:
            return before
        words = make()  # may take long: no lock is held meanwhile
        content = words.astype("<u8").tobytes()
        with self._open() as database:
            before = self._before(database, asked, source)
            if before is not None:  # another process was faster
                return before
            key = (asked.name, asked.step)
            known = (asked.name + source, asked.step, ",".join(asked.sites))
            database.execute("INSERT OR IGNORE INTO sets VALUES (?, ?, ?)", known)
            database.execute(
                "INSERT INTO answers VALUES (?, ?, ?, ?, ?)",
                (asked.series, *key, _digest(asked), content),
            )
            database.execute(
                "UPDATE answers SET words = NULL WHERE name = ? AND words IS NOT NULL AND rowid NOT"
                " IN (SELECT rowid FROM answers WHERE name = ? ORDER BY rowid DESC LIMIT ?)",
                (asked.name, asked.name, KEPT),
            )
        return words

    def accept(self, roster: Roster) -> None:
        """Refuse a roster that is older than one seen before, or differs under the same serial."""
        serial, digest = roster.serial, roster.digest
        with self._open() as database:
            newest = database.execute(
                "SELECT serial, digest FROM rosters ORDER BY serial DESC LIMIT 1"
            ).fetchone()
            if newest is not None and newest[0] > serial:
                raise FuelsError(
                    f"the roster {serial} is older than roster {newest[0]}, which this site has"
                    " already seen"
                )
            if newest is not None and newest[0] == serial and newest[1] != digest:
                raise FuelsError(f"this site has already seen another roster {serial}")
            database.execute("INSERT OR IGNORE INTO rosters VALUES (?, ?)", (serial, digest))

    def _before(self, database: sqlite3.Connection, asked: SumId, source: str) -> Words | None:
        """The reply that was already given to this sum; refuses another sum of the same step."""
        found = database.execute(
            "SELECT sites FROM sets WHERE name = ? AND step = ?", (asked.name + source, asked.step)
        ).fetchone()
        if found is not None and found[0] != ",".join(asked.sites):
            raise FuelsError(
                f"{asked}: this site has already answered with the sites {found[0]}; a second set"
                f" ({','.join(asked.sites)}) would reveal the difference"
            )
        given = database.execute(
            "SELECT sum, words FROM answers WHERE series = ? AND name = ? AND step = ?",
            (asked.series, asked.name, asked.step),
        ).fetchone()
        if given is None:
            return None
        if given[0] != _digest(asked):
            raise FuelsError(
                f"{asked}: this site has already answered it in another form or under another"
                " roster; a second answer would reuse its masks"
            )
        if given[1] is None:
            raise FuelsError(f"{asked}: it was answered too long ago to be repeated")
        return np.frombuffer(given[1], dtype="<u8").astype(np.uint64)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A transaction; when it ends without an error, it is on disk."""
        if not self.path.exists() and self.mark.exists():
            raise FuelsError(
                f"{self.path.name} is missing, the record of the sums that this site has answered:"
                " create a new key with fuels site renew-key, so that no mask is used twice"
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=WAIT, isolation_level=None)) as found:
                found.execute("PRAGMA synchronous = EXTRA")  # flushes the folder as well
                found.executescript(TABLES)
                self._leave_mark()
                found.execute("BEGIN IMMEDIATE")
                try:
                    yield found
                except BaseException:
                    found.execute("ROLLBACK")
                    raise
                found.execute("COMMIT")
        except sqlite3.Error as error:
            raise FuelsError(
                f"{self.path.name}, the record of the sums that this site has answered, cannot be"
                f" used ({error}); delete it and create a new key with fuels site renew-key"
            ) from None

    def _leave_mark(self) -> None:
        """Before the first reply with a key: it was used."""
        if self.mark.exists():
            return
        with self.mark.open("wb") as file:
            os.fsync(file.fileno())
        folder = os.open(self.mark.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _digest(asked: SumId) -> bytes:
    return hashlib.sha256(asked.info(("", ""))).digest()
