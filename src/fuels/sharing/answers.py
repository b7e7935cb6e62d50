"""What a site has answered: one set of sites for each sum, and one reply, also after a restart.

A second set for the same step would reveal the difference of the two sets, and a second reply to
the same sum with other numbers would use its masks twice. So a site writes its reply down, on disk
and flushed, before it sends it; asked again for the same sum it repeats these bytes, and anything
else for that step is refused. For some sums it is not the step that decides, but what the numbers
are computed from (`Origin`).

A sum of one name may cover times that sums of another name cover as well: the live mean before
training has all steps of the training part, a step of a live series one. `Span` says so: for each
time of a span, too, there is one set only.

The record must not be lost while its key is in use. A key that was used has a mark in its folder:
if the record is missing or empty, nothing is answered until the site has a new key.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fuels.errors import FuelsError
from fuels.privacy.ledger import sync_folder
from fuels.sharing.fixed_point import Words
from fuels.sharing.masks import SumId
from fuels.sharing.roster import Roster

KEPT = 64  # newest replies of each name that can be repeated
RECORD = "the record of the sums that this site has answered"
WAIT = 60.0  # seconds to wait for another process of this site
TABLES = """
CREATE TABLE IF NOT EXISTS spans (
    name TEXT, first INTEGER, last INTEGER, sites TEXT, PRIMARY KEY (name, first)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS origins (
    name TEXT, source TEXT, sites TEXT, clients TEXT, bound TEXT, PRIMARY KEY (name, source)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS answers (
    series TEXT, name TEXT, step INTEGER, sum BLOB, words BLOB, PRIMARY KEY (series, name, step)
);
CREATE TABLE IF NOT EXISTS rosters (serial INTEGER PRIMARY KEY, digest BLOB);
"""


EARLIER = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'sets'"
MOVED = """
BEGIN IMMEDIATE;
INSERT OR IGNORE INTO spans SELECT name, step, step + 1, sites FROM sets;
DROP TABLE sets;
COMMIT;
"""


class Span(NamedTuple):
    """Numbers that sums of several names may contain, at times from `first` to before `last`."""

    name: str
    first: int
    last: int


class Origin(NamedTuple):
    """What a site's numbers are computed from, and how.

    From one source, a site answers for one set of sites, one choice of its clients and one bound,
    at any step and in any run: the difference of two totals would be the numbers of the sites or
    clients in which they differ, or of the clients that only one of two bounds shortens.
    """

    source: str  # a digest
    clients: tuple[str, ...]  # of this site
    bound: str = ""  # on what a client adds

    @property
    def choice(self) -> str:
        """A digest of the clients: their names would take much more room."""
        return hashlib.sha256(json.dumps(sorted(self.clients)).encode()).hexdigest()


class Answers:
    """The sums that a site has answered, in a database at `path`; `mark` belongs to its key."""

    def __init__(self, path: Path, mark: Path) -> None:
        self.path, self.mark = path, mark

    def given(
        self, asked: SumId, origin: Origin | None = None, also: Sequence[Span] = ()
    ) -> Words | None:
        """The reply already given to a sum; None if it may be answered now.

        `origin`: what decides instead of the step. `also`: what else the sum contains that has one
        set only.
        """
        with self._open() as database:
            return self._before(database, asked, origin, _spans(asked, origin, also))

    def answer(
        self,
        asked: SumId,
        make: Callable[[], Words],
        origin: Origin | None = None,
        also: Sequence[Span] = (),
    ) -> Words:
        """The reply to a sum: the one already given or, the first time, what `make` returns."""
        if (before := self.given(asked, origin, also)) is not None:
            return before
        words = make()  # may take long: no lock is held meanwhile
        content = words.astype("<u8").tobytes()
        with self._open() as database:
            spans = _spans(asked, origin, also)
            before = self._before(database, asked, origin, spans)
            if before is not None:  # another process was faster
                return before
            name, sites = asked.name, ",".join(asked.sites)
            for span in spans:
                _keep(database, span, sites)
            if origin is not None:
                added = (name, origin.source, sites, origin.choice, origin.bound)
                database.execute("INSERT OR IGNORE INTO origins VALUES (?, ?, ?, ?, ?)", added)
            database.execute(
                "INSERT INTO answers VALUES (?, ?, ?, ?, ?)",
                (asked.series, name, asked.step, bytes.fromhex(asked.digest), content),
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

    def _before(
        self,
        database: sqlite3.Connection,
        asked: SumId,
        origin: Origin | None,
        spans: Sequence[Span],
    ) -> Words | None:
        """The reply already given to this sum; refuses another of the same step or origin."""
        sites = ",".join(asked.sites)
        for span in spans:
            _refuse_second_set(asked, database.execute(
                "SELECT sites FROM spans"
                " WHERE name = ? AND first < ? AND last > ? AND sites != ? LIMIT 1",
                (span.name, span.last, span.first, sites),
            ).fetchone())  # fmt: skip
        if origin is not None:
            found = database.execute(
                "SELECT sites, clients, bound FROM origins WHERE name = ? AND source = ?",
                (asked.name, origin.source),
            ).fetchone()
            _refuse_second_set(asked, found)
            if found is not None and found[1] != origin.choice:
                raise FuelsError(
                    f"{asked}: this site has already answered for another choice of its"
                    " clients; a second one would reveal the difference"
                )
            if found is not None and found[2] != origin.bound:
                raise FuelsError(
                    f"{asked}: this site has already answered with another bound on updates; a"
                    " second one would reveal which updates it shortens"
                )
        given = database.execute(
            "SELECT sum, words FROM answers WHERE series = ? AND name = ? AND step = ?",
            (asked.series, asked.name, asked.step),
        ).fetchone()
        if given is None:
            return None
        if given[0] != bytes.fromhex(asked.digest):
            raise FuelsError(
                f"{asked}: this site has already answered this sum in another form, on other terms"
                " or under another roster; it answers each sum only once"
            )
        if given[1] is None:
            raise FuelsError(f"{asked}: it was answered too long ago to be repeated")
        return np.frombuffer(given[1], dtype="<u8").astype(np.uint64)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A transaction; when it ends without an error, it is on disk."""
        if not self.path.exists():
            self._refuse_used_key("missing")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=WAIT, isolation_level=None)) as found:
                found.execute("PRAGMA synchronous = EXTRA")  # flushes the folder as well
                if not found.execute("SELECT 1 FROM sqlite_master").fetchone():
                    self._refuse_used_key("empty")
                found.executescript(TABLES)
                if found.execute(EARLIER).fetchone():
                    found.executescript(MOVED)
                self._leave_mark()
                found.execute("BEGIN IMMEDIATE")
                try:
                    yield found
                except BaseException:
                    found.execute("ROLLBACK")
                    raise
                found.execute("COMMIT")
        except sqlite3.OperationalError as error:  # such as a full disk: the record is intact
            raise FuelsError(
                f"{self.path.name}, {RECORD}, cannot be used now ({error}); do not delete it"
            ) from None
        except sqlite3.Error as error:
            raise FuelsError(
                f"{self.path.name}, {RECORD}, cannot be used ({error}); delete it and create a new"
                " key with fuels site renew-key"
            ) from None

    def _refuse_used_key(self, state: str) -> None:
        """A key that was used needs its record."""
        if self.mark.exists():
            raise FuelsError(
                f"{self.path.name} is {state}, {RECORD}: create a new key with fuels site"
                " renew-key, so that no mask is used twice"
            )

    def _leave_mark(self) -> None:
        """Before the first reply with a key: it was used."""
        if self.mark.exists():
            return
        with self.mark.open("wb") as file:
            os.fsync(file.fileno())
        sync_folder(self.mark.parent)


def _refuse_second_set(asked: SumId, found: tuple[str, ...] | None) -> None:
    """Refuse a sum whose numbers another set has had, `found[0]`."""
    sites = ",".join(asked.sites)
    if found is not None and found[0] != sites:
        raise FuelsError(
            f"{asked}: this site has already answered with the sites {found[0]}; a second set"
            f" ({sites}) would reveal the difference"
        )


def _spans(asked: SumId, origin: Origin | None, also: Sequence[Span]) -> list[Span]:
    """Everything that a sum contains and that has one set only."""
    return [*also] if origin else [Span(asked.name, asked.step, asked.step + 1), *also]


def _keep(database: sqlite3.Connection, span: Span, sites: str) -> None:
    """Add a span, as one with those of the same set that it overlaps or touches."""
    key = (span.name, sites, span.last, span.first)
    near = "FROM spans WHERE name = ? AND sites = ? AND first <= ? AND last >= ?"
    first, last = database.execute(f"SELECT MIN(first), MAX(last) {near}", key).fetchone()
    if first is not None:
        span = Span(span.name, min(first, span.first), max(last, span.last))
        database.execute(f"DELETE {near}", key)
    row = (span.name, span.first, span.last, sites)
    database.execute("INSERT INTO spans VALUES (?, ?, ?, ?)", row)
