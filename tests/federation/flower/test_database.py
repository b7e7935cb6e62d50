"""Flower's database stays small, and a damaged one is named with the remedy."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fuels.errors import FuelsError
from fuels.federation.flower import database

pytest.importorskip("flwr")


def fill(path: Path, megabytes: int) -> None:
    """As Flower leaves it: objects that were deleted, and lines of output."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE objects (content BLOB)")
        connection.execute("CREATE TABLE task_logs (log TEXT)")
        for _ in range(megabytes):
            connection.execute("INSERT INTO objects VALUES (zeroblob(1048576))")
        connection.executemany(
            "INSERT INTO task_logs VALUES (?)", [(f"line {n}",) for n in range(3000)]
        )
        connection.execute("DELETE FROM objects")
        connection.commit()


def test_free_space_is_given_back_and_old_output_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "flower.db"
    fill(path, 12)
    assert path.stat().st_size > 12 * 2**20
    assert database.shrink(path)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 2**20
    with closing(sqlite3.connect(path)) as connection:
        lines = [line for (line,) in connection.execute("SELECT log FROM task_logs")]
    assert lines == [f"line {n}" for n in range(2000, 3000)]
    assert not database.shrink(path)
    database.check(path)


def test_a_database_in_use_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "WAIT", 0.1)
    path = tmp_path / "flower.db"
    fill(path, 12)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert not database.shrink(path)
        other.execute("COMMIT")
    assert database.shrink(path)


def test_the_tables_are_flowers_own() -> None:
    """Its schema names the table whose old rows are deleted."""
    from flwr.supercore.state.schema import corestate_models

    assert '"task_logs"' in Path(corestate_models.__file__).read_text()


@pytest.mark.parametrize("content", [b"no database" * 1000, None])
def test_a_damaged_database_is_refused_with_the_remedy(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "flower.db"
    fill(path, 1)
    whole = path.read_bytes()
    path.write_bytes(content or whole[:4096] + b"\xff" * 12288 + whole[16384:])
    with pytest.raises(FuelsError, match=r"flower.db: .* is damaged .*delete it") as caught:
        database.check(path)
    assert "\n" not in str(caught.value)
    database.check(tmp_path / "none.db")
