"""Flower's database: refused if it is damaged, and kept small.

Flower deletes messages once they are delivered, but the file keeps its largest size, like its
write-ahead log, and the output of every run stays in it. That output is also in the server's logs.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from fuels.errors import FuelsError
from fuels.federation.flower.folders import log

WASTE = 8 * 2**20  # bytes of free space, or of the write-ahead log, from which it is compacted
LINES = 1000  # of the output of runs that may stay
WAIT = 2.0  # seconds to wait for the SuperLink, which may be writing


def check(path: Path) -> None:
    """Refuse a damaged database, before the SuperLink fails on it."""
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(path, timeout=WAIT)) as connection:
            found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        found = str(error)
    found = " ".join(found.split())
    if found != "ok":
        raise FuelsError(
            f"{path}: Flower's database is damaged ({found}); delete it and the files that begin"
            " with its name: the keys are registered again from server.toml, and an interrupted"
            " run continues"
        )


def shrink(path: Path) -> bool:
    """Remove old output and give free space back, while no run is in progress.

    Returns whether the file was compacted; a database in use is left for the next time.
    """
    log_file = path.with_name(f"{path.name}-wal")
    try:
        with closing(sqlite3.connect(path, timeout=WAIT, isolation_level=None)) as connection:
            _forget_output(connection)
            pages, free, size = (
                connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
            waste = free * size + (log_file.stat().st_size if log_file.exists() else 0)
            if waste < WASTE:
                return False
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            log.info("compacted Flower's database: %d of %d pages were free", free, pages)
            return True
    except (sqlite3.Error, OSError) as error:
        log.info("Flower's database could not be compacted: %s", error)
        return False


def _forget_output(connection: sqlite3.Connection) -> None:
    """Delete the output of runs but for the newest lines, if Flower keeps it where it does now."""
    named = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'task_logs'").fetchone()
    if named:
        connection.execute(
            "DELETE FROM task_logs WHERE rowid <= (SELECT max(rowid) FROM task_logs) - ?", (LINES,)
        )
