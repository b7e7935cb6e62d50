"""The audit log: what it contains, and that a missing or changed line is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuels.federation.audit import START, Audit


@pytest.fixture
def book(tmp_path: Path) -> Audit:
    audit = Audit(tmp_path / "state" / "audit.jsonl")
    audit.add("joined", site="north", clients=2)
    audit.add_all([{"event": "sent", "site": site} for site in ("north", "süd")])
    return audit


def test_lines_are_numbered_dated_and_chained(book: Audit) -> None:
    count, head, problem = book.check()
    assert (count, problem) == (3, "") and len(head) == 64
    first, second, third = book.entries()
    assert first["before"] == START and (first["site"], first["clients"]) == ("north", 2)
    assert [entry["number"] for entry in (first, second, third)] == [1, 2, 3]
    assert second["before"] != third["before"] and third["site"] == "süd"
    Audit(book.path).add("refused", site="north")  # another process
    assert book.check()[0] == 4 and book.check()[2] == ""


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_deleted_line_is_noticed(book: Audit, gone: int) -> None:
    lines = book.path.read_bytes().splitlines(keepends=True)
    del lines[gone]
    book.path.write_bytes(b"".join(lines))
    expected = f"line {gone + 1} does not follow" if gone < 2 else "ends with line 2; 3 lines"
    assert expected in book.check()[2]
    book.add("sent", site="north")  # writing on does not heal it
    assert book.check()[2] != ""


def test_a_changed_line_is_noticed(book: Audit) -> None:
    text = book.path.read_text()
    book.path.write_text(text.replace('"north"', '"south"', 1))
    assert "line 2 does not follow" in book.check()[2]


def test_a_missing_log_and_a_line_cut_off_are_noticed(book: Audit) -> None:
    whole = book.path.read_bytes()
    book.path.write_bytes(whole[:-20])
    book.add("sent", site="north")  # what follows stays readable
    assert json.loads(book.path.read_bytes().splitlines()[-1])["event"] == "sent"
    assert "line 3 does not follow" in book.check()[2]
    book.path.unlink()
    assert "missing" in book.check()[2]


def test_a_kill_before_the_small_file_is_written_is_no_change(book: Audit) -> None:
    head = book.head.read_text()
    book.add("sent", site="north")
    book.head.write_text(head)
    assert book.check()[2] == ""
    book.add("sent", site="north")
    assert book.check()[0] == 5 and book.check()[2] == ""


def test_without_a_log_nothing_is_wrong(tmp_path: Path) -> None:
    assert Audit(tmp_path / "audit.jsonl").check() == (0, START, "")
    assert Audit(tmp_path / "audit.jsonl").entries() == []
